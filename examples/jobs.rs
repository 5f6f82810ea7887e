//! Background jobs: a worker sends as many emails as its provider allows, and a queue refunds emails that were not
//! sent.
//!
//! ```sh
//! cargo run --example jobs
//! REDIS_URL=redis://127.0.0.1/ cargo run --example jobs
//! ```
//!
//! With Redis, a second run within an hour continues with the units that remain after the first run.
//!
//! ```toml
//! [dependencies]
//! http = "1.3"
//! tokio = { version = "1.47", features = ["macros", "rt-multi-thread", "time"] }
//! tower = { version = "0.5", features = ["util"] }
//! tower-quota = "0.1.0"
//! ```

use std::{convert::Infallible, env, error::Error, sync::Arc};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Availability, ChargeTime, Decision, Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, RedisStore, Refund, Store,
    key,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = store()?;
    let accepted_at = accept(&store).await?;
    work(&store).await?;
    undeliverable(&store, accepted_at).await
}

/// The store shared by the API, its workers and the queue.
fn store() -> Result<Arc<dyn Store>, Box<dyn Error>> {
    Ok(match env::var("REDIS_URL") {
        Ok(url) => Arc::new(RedisStore::new(url)?),
        Err(_) => Arc::new(MemoryStore::new()),
    })
}

fn customer() -> key::Header {
    key::header("x-customer")
}

/// The limits of the API: a request costs one unit per recipient.
fn limits(store: &Arc<dyn Store>) -> Result<RateLimitLayer, Box<dyn Error>> {
    let limits = RateLimitLayer::builder(Arc::clone(store))
        .decision_in_response()
        .scope("mails of customers")
        .key(customer())
        .cost_by(|request| {
            let recipients = request
                .headers
                .get("x-recipients")
                .and_then(|count| count.to_str().ok());
            recipients.and_then(|count| count.parse().ok()).unwrap_or(1)
        })
        .policy(QuotaPolicy::per_hour("hour", 50))
        .build()?;
    Ok(limits)
}

/// The API accepts a request and stores the time of its charge in the job.
async fn accept(store: &Arc<dyn Store>) -> Result<Option<ChargeTime>, Box<dyn Error>> {
    let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::from("accepted"))));
    let request = Request::post("/mails")
        .header("x-customer", "acme")
        .header("x-recipients", "40");
    let response = limits(store)?
        .layer(inner)
        .oneshot(request.body(String::new())?)
        .await?;
    println!("40 mails of acme: {}", response.status());
    let decision = response.extensions().get::<Decision>();
    for hour in decision.into_iter().flat_map(Decision::allowances) {
        println!(
            "  {} left of this hour, all of it again in {:?}",
            hour.remaining(),
            hour.full_after()
        );
    }
    Ok(decision.and_then(Decision::decided_at).map(ChargeTime::At))
}

/// A worker sends as many emails as its provider allows, at most 20 per batch.
async fn work(store: &Arc<dyn Store>) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(Arc::clone(store))
        .scope("mails of the provider")
        .policy(QuotaPolicy::per_minute("minute", 30))
        .build()?;
    let batch = limiter.caller("smtp.example").cost(20);
    for _ in 0..3 {
        match batch.clone().partial().hold().await {
            Ok(permit) => println!("the worker sends {}", permit.decision().granted()),
            Err(rejected) => println!(
                "the worker sends none, and asks again in {:?}",
                rejected.retry_after().unwrap_or_default()
            ),
        }
    }
    match batch.peek().await?.map(|decision| decision.availability()) {
        Some(Availability::After(wait)) => println!("20 at once pass in {wait:?}"),
        passes => println!("20 at once: {passes:?}"),
    }
    Ok(())
}

/// Later, in another process, the queue reports that 12 emails could not be sent. The queue delivers this message
/// twice.
async fn undeliverable(store: &Arc<dyn Store>, accepted_at: Option<ChargeTime>) -> Result<(), Box<dyn Error>> {
    let Some(charged_at) = accepted_at else {
        return Ok(());
    };
    let acme = limits(store)?.limiter().caller(&customer().key_of("acme"));
    let refund = Refund::new(12, charged_at).with_id("job 4711");
    for _ in 0..2 {
        println!("12 are given back: {:?}", acme.refund(&refund).await?);
    }
    let left = acme.peek().await?;
    for hour in left.iter().flat_map(Decision::allowances) {
        println!("  {} left of this hour", hour.remaining());
    }
    Ok(())
}

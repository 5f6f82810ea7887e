//! Compares requests with and without prefetching over a long round trip to Redis: the time that the layer adds to each
//! request, and the calls.
//!
//!     FAR_MS=80 FAR_SECONDS=60 cargo bench -p tower-quota-tests --bench prefetch
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`, behind a proxy that adds latency. One caller
//! uses 80 % of 60,000 a minute on four instances, each a layer with its own `RedisStore`. `FAR_MS` (80) is the
//! round-trip time, `FAR_SECONDS` (20) the time of a line. In the last line, the connection is cut for a quarter of the
//! time.
//!
//! - *calls*: decisions and settlements sent to Redis, per request.
//! - *then p99*: without the first second of each instance, in which connections are opened and the first batches are
//!   fetched.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use http::{Request, Response};
use test_kit::{Mode, Proxy, RedisServer};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Decision, Limiter, Measurement, Outcome, Plan, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore,
    Settlement, Store, StoreFuture, key,
};

const INSTANCES: u64 = 4;
const QUOTA: u64 = 60_000;
/// 80 % of the quota: 200 requests a second to each instance.
const PAUSE: Duration = Duration::from_millis(5);
const BATCH: u64 = 500;

#[derive(Debug)]
struct Counting {
    store: RedisStore,
    calls: Arc<AtomicUsize>,
}

impl Store for Counting {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        if !settlement.is_empty() {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

#[tokio::main]
async fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let (server, seconds) = (RedisServer::start(), rounds::setting("FAR_SECONDS", 20));
    println!(
        "{:>16} {:>9} {:>18} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "", "requests", "calls per request", "p50 ms", "p99 ms", "then p99", "most ms", "failed open"
    );
    let cut = Duration::from_secs(seconds / 4);
    for (name, batch, cut) in [
        ("without", 1, None),
        ("prefetch", BATCH, None),
        ("prefetch, cut", BATCH, Some(cut)),
    ] {
        run(&server, name, batch, seconds, cut).await;
    }
}

/// Sends the requests of one caller. If the connection is cut, then after half of the run.
async fn run(server: &RedisServer, name: &str, batch: u64, seconds: u64, cut: Option<Duration>) {
    let proxy = Arc::new(Proxy::start(server.port()).await);
    let way = Mode::Delay(Duration::from_micros(rounds::setting("FAR_MS", 80) * 500));
    proxy.set_mode(way);
    let calls = Arc::new(AtomicUsize::default());
    let requests = seconds * 1_000 / PAUSE.as_millis() as u64;
    let sent = (0..INSTANCES).map(|_| tokio::spawn(send(instance(proxy.url(), name, batch, &calls), requests)));
    let sent: Vec<_> = sent.collect();
    if let Some(time) = cut {
        tokio::time::sleep(Duration::from_secs(seconds / 2)).await;
        proxy.set_mode(Mode::Swallow);
        tokio::time::sleep(time).await;
        proxy.set_mode(way);
        proxy.cut().await;
    }
    let second = (Duration::from_secs(1).as_millis() / PAUSE.as_millis()) as usize;
    let (mut waits, mut later, mut failed_open) = (Vec::new(), Vec::new(), 0);
    for sent in join_all(sent).await {
        for (number, (wait, outcome)) in sent.expect("it ends").into_iter().enumerate() {
            waits.push(wait);
            later.extend((number >= second).then_some(wait));
            failed_open += usize::from(outcome == Outcome::FailedOpen);
        }
    }
    println!(
        "{name:>16} {:>9} {:>18.4} {:>9.3} {:>9.3} {:>9.3} {:>9.1} {failed_open:>12}",
        waits.len(),
        calls.load(Ordering::Relaxed) as f64 / waits.len() as f64,
        rounds::millis_at(0.5, &mut waits),
        rounds::millis_at(0.99, &mut waits),
        rounds::millis_at(0.99, &mut later),
        rounds::millis_at(1.0, &mut waits),
    );
}

fn instance(url: String, prefix: &str, batch: u64, calls: &Arc<AtomicUsize>) -> RateLimitLayer {
    let store = RedisStore::builder(url).key_prefix(format!("{prefix}:")).build();
    let store = Counting {
        store: store.expect("the URL is valid"),
        calls: Arc::clone(calls),
    };
    RateLimitLayerBuilder::from(Limiter::builder(store).deadline(Duration::from_secs(1)))
        .decision_in_response()
        .scope("far")
        .key(key::extension::<String>())
        .policy(QuotaPolicy::per_minute("minute", QUOTA).with_prefetch(batch))
        .build()
        .expect("the settings are valid")
}

async fn send(layer: RateLimitLayer, requests: u64) -> Vec<(Duration, Outcome)> {
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
    let mut interval = tokio::time::interval(PAUSE);
    let mut sent = Vec::new();
    for _ in 0..requests {
        interval.tick().await;
        let service = service.clone();
        sent.push(tokio::spawn(async move {
            let mut request = Request::new(String::new());
            request.extensions_mut().insert("somebody".to_owned());
            let start = Instant::now();
            let response = service.oneshot(request).await.expect("it cannot fail");
            let decision = response.extensions().get::<Decision>().expect("it was decided");
            (start.elapsed(), decision.outcome())
        }));
    }
    let sent = join_all(sent).await.into_iter();
    sent.map(|sent| sent.expect("it ends")).collect()
}

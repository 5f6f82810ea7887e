//! The gain and the price of prefetched units: calls to Redis for each request to a hot key, and the share of an exact
//! limiter's admissions that is admitted.
//!
//!     cargo bench -p tower-quota-tests --bench prefetch
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. Four instances, each a layer with its own
//! `RedisStore`, receive 40, 30, 20 and 10 percent of the requests of one caller, whose limit is 10,000 a second with
//! bursts of 2,000. The requests of each millisecond arrive together. A manual clock does not advance while they are
//! decided, so the figures do not depend on the speed of the machine. Only refunds of unspent units are later than in
//! production: a task makes them after one second of real time. Each line takes `SECONDS` (3) of the manual clock.
//!
//! - *load*: requests, relative to the caller's limit.
//! - *calls*: decisions and settlements sent to Redis, per request. A rejection needs a call too.
//! - *admitted*: requests, relative to those that pass with single charges.
//!
//! A second table is measured in real time, with a proxy that adds latency: the time that the layer adds to each
//! request, including the first one, of a caller that uses 80 % of 60,000 a minute on four instances. `FAR_MS` (80) is
//! a list of round-trip times, `FAR_SECONDS` (20) the time of a line. In the last line, the connection is cut for a
//! quarter of the time.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

#[path = "prefetch/far.rs"]
mod far;
mod rounds;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http::{Request, Response};
use test_kit::RedisServer;
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Decision, Limiter, Measurement, Outcome, Plan, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore,
    Settlement, Store, StoreFuture,
    clock::{Clock, Timestamp},
    key,
};

const RATE: u64 = 10_000;
const CAPACITY: u64 = 2_000;
const SHARES: [f64; 4] = [0.4, 0.3, 0.2, 0.1];
const LOADS: [f64; 4] = [0.5, 0.9, 1.1, 2.0];
const BATCHES: [u64; 4] = [1, 10, 100, 1_000];
const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

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

#[derive(Default)]
struct Outcomes {
    requests: usize,
    admitted: usize,
    calls: usize,
}

#[tokio::main]
async fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let server = RedisServer::start();
    let millis = (rounds::setting("SECONDS", 3.0) * 1_000.0) as usize;
    println!(
        "{:>6} {:>6} {:>10} {:>18} {:>10}",
        "load", "batch", "requests", "calls per request", "admitted"
    );
    for load in LOADS {
        let mut exact = None;
        for batch in BATCHES {
            let Outcomes {
                requests,
                admitted,
                calls,
            } = run(&server, load, batch, millis).await;
            let exact = *exact.get_or_insert(admitted);
            let calls = calls as f64 / requests as f64;
            let share = 100.0 * admitted as f64 / exact as f64;
            println!("{load:>6} {batch:>6} {requests:>10} {calls:>18.4} {share:>8.1} %");
        }
    }
    far::measure(&server).await;
}

async fn run(server: &RedisServer, load: f64, batch: u64, millis: usize) -> Outcomes {
    let (clock, calls) = (Clock::manual(START), Arc::new(AtomicUsize::default()));
    let instance = || {
        let store = RedisStore::builder(server.url())
            .key_prefix(format!("{load} {batch}:"))
            .clock(clock.clone())
            .build()
            .expect("the URL is valid");
        let policy = QuotaPolicy::per_second("hot", RATE).with_burst_capacity(CAPACITY);
        RateLimitLayerBuilder::from(
            Limiter::builder(Counting {
                store,
                calls: Arc::clone(&calls),
            })
            .deadline(Duration::from_secs(30))
            .clock(clock.clone()),
        )
        .decision_in_response()
        .scope("bench")
        .key(key::extension::<String>())
        .policy(policy.with_prefetch(batch))
        .build()
        .expect("the settings are valid")
    };
    let layers: Vec<_> = SHARES.map(|_| instance()).into();
    let mut outcomes = Outcomes::default();
    let mut due = SHARES.map(|_| 0.0);
    for _ in 0..millis {
        let mut sent = Vec::new();
        for ((layer, share), due) in layers.iter().zip(SHARES).zip(&mut due) {
            *due += load * share * RATE as f64 / 1_000.0;
            while *due >= 1.0 {
                *due -= 1.0;
                sent.push(is_admitted(layer));
            }
        }
        outcomes.requests += sent.len();
        let admitted = join_all(sent).await;
        outcomes.admitted += admitted.into_iter().filter(|is_admitted| *is_admitted).count();
        clock.advance(Duration::from_millis(1));
    }
    drop(layers);
    outcomes.calls = calls.load(Ordering::Relaxed);
    outcomes
}

async fn is_admitted(layer: &RateLimitLayer) -> bool {
    let service = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let mut request = Request::new(String::new());
    request.extensions_mut().insert("everybody".to_owned());
    let response = layer.layer(service).oneshot(request).await.expect("it cannot fail");
    let decision = response.extensions().get::<Decision>().expect("it was decided");
    assert!(matches!(decision.outcome(), Outcome::Allowed | Outcome::Rejected));
    decision.outcome() == Outcome::Allowed
}

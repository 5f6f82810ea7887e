//! The time that the layer adds to requests when the round trip to Redis is long.

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
use tower_quota::{Decision, Limiter, Outcome, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, key};

use super::{Counting, rounds};

const INSTANCES: u64 = 4;
const QUOTA: u64 = 60_000;
/// 80 % of the quota: 200 requests a second to each instance.
const PAUSE: Duration = Duration::from_millis(5);
const BATCH: u64 = 500;

/// The time that the layer has taken for each request, the shortest first.
struct Waits {
    sorted: Vec<Duration>,
    /// Without the first second of each instance, in which connections are opened and the first batches are fetched.
    later: Vec<Duration>,
    failed_open: usize,
    calls: usize,
}

impl Waits {
    fn add(&mut self, instance: Vec<(Duration, Outcome)>) {
        let second = Duration::from_secs(1).as_millis() / PAUSE.as_millis();
        for (number, (wait, outcome)) in (0..).zip(instance) {
            self.sorted.push(wait);
            self.later.extend((number >= second).then_some(wait));
            self.failed_open += usize::from(outcome == Outcome::FailedOpen);
        }
    }
}

/// Milliseconds.
fn at(sorted: &[Duration], part: f64) -> f64 {
    let index = ((sorted.len() - 1) as f64 * part) as usize;
    sorted[index].as_secs_f64() * 1_000.0
}

/// Prints a line for each distance, with and without prefetch, and for a region that is cut off.
pub(crate) async fn measure(server: &RedisServer) {
    let seconds = rounds::setting("FAR_SECONDS", 20);
    println!(
        "\n{:>8} {:>6} {:>9} {:>18} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "distance", "batch", "requests", "calls per request", "p50 ms", "p99 ms", "then p99", "most ms", "failed open"
    );
    let distances = std::env::var("FAR_MS").unwrap_or_else(|_| "80".to_owned());
    for distance in distances.split(',') {
        let distance = distance.parse().expect("FAR_MS is a list of milliseconds");
        for batch in [1, BATCH] {
            let waits = run(server, distance, batch, seconds, None).await;
            print(&format!("{distance} ms"), batch, &waits);
        }
    }
    let waits = run(server, 80, BATCH, seconds, Some(Duration::from_secs(seconds / 4))).await;
    print("80, cut", BATCH, &waits);
}

fn print(distance: &str, batch: u64, waits: &Waits) {
    println!(
        "{distance:>8} {batch:>6} {:>9} {:>18.4} {:>9.3} {:>9.3} {:>9.3} {:>9.1} {:>12}",
        waits.sorted.len(),
        waits.calls as f64 / waits.sorted.len() as f64,
        at(&waits.sorted, 0.5),
        at(&waits.sorted, 0.99),
        at(&waits.later, 0.99),
        at(&waits.sorted, 1.0),
        waits.failed_open,
    );
}

/// The requests of one caller. If there is a time to cut the way to the server off, it is after half of the run.
async fn run(server: &RedisServer, distance: u64, batch: u64, seconds: u64, cut: Option<Duration>) -> Waits {
    let proxy = Arc::new(Proxy::start(server.port()).await);
    let way = Mode::Delay(Duration::from_micros(distance * 500));
    proxy.set_mode(way);
    let calls = Arc::new(AtomicUsize::default());
    let prefix = format!("far {distance} {batch} {}:", cut.is_some());
    let layers: Vec<_> = (0..INSTANCES)
        .map(|_| instance(proxy.url(), &prefix, batch, &calls))
        .collect();
    let requests = seconds * 1_000 / PAUSE.as_millis() as u64;
    let sent: Vec<_> = layers
        .into_iter()
        .map(|layer| tokio::spawn(send(layer, requests)))
        .collect();
    if let Some(time) = cut {
        tokio::time::sleep(Duration::from_secs(seconds / 2)).await;
        proxy.set_mode(Mode::Swallow);
        tokio::time::sleep(time).await;
        proxy.set_mode(way);
        proxy.cut().await;
    }
    let mut waits = Waits {
        sorted: Vec::new(),
        later: Vec::new(),
        failed_open: 0,
        calls: 0,
    };
    for instance in join_all(sent).await {
        waits.add(instance.expect("it ends"));
    }
    waits.sorted.sort();
    waits.later.sort();
    waits.calls = calls.load(Ordering::Relaxed);
    waits
}

fn instance(url: String, prefix: &str, batch: u64, calls: &Arc<AtomicUsize>) -> RateLimitLayer {
    let store = RedisStore::builder(url).key_prefix(prefix).build();
    RateLimitLayerBuilder::from(
        Limiter::builder(Counting {
            store: store.expect("the URL is valid"),
            calls: Arc::clone(calls),
        })
        .deadline(Duration::from_secs(1)),
    )
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
    join_all(sent)
        .await
        .into_iter()
        .map(|sent| sent.expect("it ends"))
        .collect()
}

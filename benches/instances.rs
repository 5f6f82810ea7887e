//! The CPU time of instances and of Redis at a fixed rate, script calls of a skewed load, and the cost of 16 policies.
//!
//!     cargo bench -p tower-quota-tests --bench instances --features redis-rustls
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. With the feature `redis-rustls`, it also
//! listens for TLS, which needs a server that was built with TLS. Each instance is a layer with its own
//! `RedisStore`; all instances are in this process. Requests are due every millisecond and do not wait for responses:
//! `RATE` (30,000) per second for `SECONDS` (3), each in its own task and for the next instance in turn. The sides of a
//! table are measured in turns, `ROUNDS` (5) times; the tables show medians. A round before them opens the connections
//! and stores the callers, and does not count.
//!
//! - *CPU time of this process per request* (`schedstat`): 10,000 callers chosen uniformly, and three windows that
//!   admit all requests. With prefetch, there are 100 callers and batches of 100 units. The lines below the table are
//!   net of the bare service, which includes the load generator.
//! - *CPU time of Redis per decision* (`INFO cpu`): the same callers and windows on 4 and on 40 instances.
//! - *script calls per 1,000 requests* (`INFO commandstats`): four new instances and an empty server in each round.
//!   `CALLERS` (100,000) callers are chosen by Zipf with the exponent 1.1. The limits are 100 per second, 1,000 per
//!   minute and 50,000 per day, so the most frequent callers are rejected, most of them by the rejection cache; two more
//!   sides have limits that no caller exceeds. With prefetch, the calls include the refunds of unspent units by dropped
//!   instances. Concurrent decisions share calls, and how many share one depends on the machine.
//! - *time of a decision*: sixteen token buckets and three of the same, without rejections. `MemoryStore` alone makes
//!   100,000 decisions for 10,000 callers per round, on one thread; `RedisStore` alone makes decisions in 64 tasks for
//!   250,000 callers.
//!
//! A line that begins with *warning* means that requests were not decided, or that the run took 5 % longer than
//! `SECONDS`: the machine is too slow for `RATE`, or busy.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod decisions;
#[path = "instances/load.rs"]
mod load;
mod rounds;
#[path = "instances/tls.rs"]
mod tls;

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Ready, ready},
    slice, thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use http::{Request, Response};
use test_kit::RedisServer;
use tokio::runtime::Runtime;
use tower::{Layer, Service, service_fn, util::ServiceFn};
use tower_quota::{
    Limiter, MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimit, RateLimitLayerBuilder,
    RedisStore, Scope, Store, key,
};

use self::{
    decisions::{Bench, StoreAlone, own_seconds},
    load::{Callers, Load, Sent},
    rounds::{Side, Values},
};

/// Windows that admit all requests of the uniform load.
const WIDE: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 1_000),
    QuotaPolicy::per_minute("minute", 10_000),
    QuotaPolicy::per_day("day", 500_000),
];
/// Windows that the most frequent callers of the skewed load exceed.
const TIGHT: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 100),
    QuotaPolicy::per_minute("minute", 1_000),
    QuotaPolicy::per_day("day", 50_000),
];
/// Windows that no caller of the skewed load exceeds.
const AMPLE: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 20_000),
    QuotaPolicy::per_minute("minute", 1_000_000),
    QuotaPolicy::per_day("day", 1_000_000_000),
];
/// Callers of the uniform load.
const CALLERS: usize = 10_000;
const HOT_CALLERS: usize = 100;
const BATCH: u64 = 100;
const TASKS: usize = 64;

type Answer = fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>;
type Instance = RateLimit<ServiceFn<Answer>>;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let (server, by_tls) = tls::start();
    let bench = Bench {
        server,
        runtime: Runtime::new().expect("the runtime starts"),
        length: Duration::from_secs_f64(rounds::setting("SECONDS", 3.0)),
        undecided: Cell::default(),
    };
    let load = Load {
        rate: rounds::setting("RATE", 30_000.0),
        length: bench.length,
    };
    own_time(&bench, &load);
    server_time(&bench, &load, by_tls.as_deref());
    calls(&bench, &load);
    sixteen_policies(&bench);
}

fn answer(_: Request<String>) -> Ready<Result<Response<String>, Infallible>> {
    ready(Ok(Response::default()))
}

fn instance(store: impl Store, policies: impl IntoIterator<Item = QuotaPolicy>) -> Instance {
    let limiter = Limiter::builder(store).deadline(Duration::from_secs(30));
    let builder = RateLimitLayerBuilder::from(limiter)
        .scope("bench")
        .key(key::extension::<u64>());
    let builder = policies
        .into_iter()
        .fold(builder, |builder, policy| builder.policy(policy));
    let layer = builder.build().expect("the settings are valid");
    layer.layer(service_fn(answer as Answer))
}

fn prefetching(policies: [QuotaPolicy; 3], batch: u64) -> [QuotaPolicy; 3] {
    policies.map(|policy| policy.with_prefetch(batch))
}

/// Measures the sides, after a round that does not count, and prints a table.
fn table(title: &str, unit: &str, sides: &mut [Side<'_>]) -> Vec<Values> {
    rounds::measure(1, sides);
    let values = rounds::measure(rounds::setting("ROUNDS", 5), sides);
    rounds::print(title, unit, sides, &values);
    values
}

/// Sends requests, and returns the nanoseconds per request by which `seconds` grew.
fn per_request<S, B: 'static>(
    bench: &Bench,
    load: &Load,
    (instances, callers): (&[S], &Callers),
    seconds: impl Fn() -> f64,
) -> (f64, Sent)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let start = seconds();
    let sent = bench.runtime.block_on(load.send(instances, callers));
    ((seconds() - start) * 1e9 / sent.requests as f64, sent)
}

fn own_time(bench: &Bench, load: &Load) {
    let (all, hot) = (Callers::uniform(CALLERS), Callers::uniform(HOT_CALLERS));
    let store = || decisions::store(&bench.server);
    let bare = [service_fn(answer as Answer)];
    let layers = [
        ("MemoryStore", instance(MemoryStore::new(), WIDE), &all),
        ("RedisStore", instance(store(), WIDE), &all),
        (
            "RedisStore, prefetch, 100 callers",
            instance(store(), prefetching(WIDE, BATCH)),
            &hot,
        ),
    ];
    let mut sides = vec![Side::new("bare service", || {
        per_request(bench, load, (&bare, &all), own_seconds).0
    })];
    sides.extend(layers.iter().map(|(name, layer, callers)| {
        Side::new(*name, move || {
            let (nanos, sent) = per_request(bench, load, (slice::from_ref(layer), callers), own_seconds);
            sent.warn(name, load, false);
            nanos
        })
    }));
    let title = format!("CPU time of this process, {} requests/s", load.rate);
    let values = table(&title, "ns/request", &mut sides);
    for (side, own) in sides.iter().zip(&values).skip(1) {
        let net = own.without(&values[0]);
        let [median, least, most] = [net.median(), net.least(), net.most()].map(|nanos| nanos / 1e3);
        println!("  net, {}: {median:.2} us ({least:.2}..{most:.2})", side.name());
    }
}

fn server_time(bench: &Bench, load: &Load, by_tls: Option<&dyn Fn() -> RedisStore>) {
    let callers = Callers::uniform(CALLERS);
    let many = |number: usize, store: &dyn Fn() -> RedisStore| -> Vec<_> {
        (0..number).map(|_| instance(store(), WIDE)).collect()
    };
    let plain = || decisions::store(&bench.server);
    let mut all = vec![("4 instances", many(4, &plain)), ("40 instances", many(40, &plain))];
    match by_tls {
        Some(store) => all.extend([
            ("4 instances, TLS", many(4, store)),
            ("40 instances, TLS", many(40, store)),
        ]),
        None => println!("\nTLS is left out: it needs the feature redis-rustls"),
    }
    let sides = all.iter().map(|(name, instances)| {
        Side::new(*name, || {
            let (nanos, sent) = per_request(bench, load, (instances, &callers), || bench.server_seconds());
            sent.warn(name, load, false);
            nanos
        })
    });
    let title = format!("CPU time of Redis, {} decisions/s", load.rate);
    table(&title, "ns/decision", &mut sides.collect::<Vec<_>>());
}

fn calls(bench: &Bench, load: &Load) {
    let callers = Callers::zipf(rounds::setting("CALLERS", 100_000), 1.1);
    // The last run of each side: the percentage of rejected requests, the calls before unspent units are refunded, and
    // the microseconds of Redis per request.
    let last = [const { Cell::new([0.0; 3]) }; 5];
    let side = |name: &'static str, policies: [QuotaPolicy; 3], last| {
        let callers = &callers;
        Side::new(name, move || {
            bench.flush();
            let instances = [(); 4].map(|()| instance(decisions::store(&bench.server), policies.clone()));
            assert_eq!(bench.server.command(&["CONFIG", "RESETSTAT"]), "OK");
            let start = bench.server_seconds();
            let sent = bench.runtime.block_on(load.send(&instances, callers));
            let seconds = bench.server_seconds() - start;
            sent.warn(name, load, true);
            let per_request = |count: f64| count / sent.requests as f64;
            let calls = || 1e3 * per_request(script_calls(&bench.server));
            let rejected = 100.0 * per_request(sent.rejected as f64);
            Cell::set(last, [rejected, calls(), 1e6 * per_request(seconds)]);
            drop(instances);
            thread::sleep(Duration::from_millis(500));
            calls()
        })
    };
    let mut sides = [
        side("exact", TIGHT, &last[0]),
        side("prefetch, batches of 10", prefetching(TIGHT, 10), &last[1]),
        side("prefetch, batches of 50", prefetching(TIGHT, 50), &last[2]),
        side("exact, all admitted", AMPLE, &last[3]),
        side(
            "prefetch, batches of 50, all admitted",
            prefetching(AMPLE, 50),
            &last[4],
        ),
    ];
    let title = format!("script calls, Zipf 1.1, {} requests/s", load.rate);
    table(&title, "per 1,000", &mut sides);
    for (side, last) in sides.iter().zip(&last) {
        let ([rejected, calls, micros], name) = (last.get(), side.name());
        println!(
            "  {name}: {rejected:.1} % rejected; {calls:.1} calls before the instances are dropped, {micros:.1} us"
        );
    }
}

/// Calls of scripts since the counts of the server were reset.
fn script_calls(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "commandstats"]);
    let calls = info.lines().filter_map(|line| {
        let (command, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_script = ["eval", "evalsha", "fcall"].contains(&command);
        let calls = counts.split(',').next()?.parse::<f64>().ok();
        calls.filter(|_| is_script)
    });
    calls.sum()
}

/// Sixteen token buckets with windows of 1 second to 9 hours.
fn buckets() -> impl Iterator<Item = QuotaPolicy> {
    (0..16).map(|number| {
        let window = Duration::from_secs(1 << number);
        QuotaPolicy::new(format!("window {number}"), 10_000, window)
    })
}

fn sixteen_policies(bench: &Bench) {
    let memory = |number| {
        let decide = in_memory(buckets().take(number));
        Side::new(format!("MemoryStore, {number} policies"), decide)
    };
    let (three, sixteen) = (
        StoreAlone::new(&bench.server, buckets().take(3)),
        StoreAlone::new(&bench.server, buckets()),
    );
    let redis = |name, store| Side::new(name, move || 1e9 / bench.measure(store, TASKS));
    table("time of a decision", "ns", &mut [memory(3), memory(16)]);
    let sides = &mut [
        redis("RedisStore, 64 tasks, 3 policies", &three),
        redis("RedisStore, 64 tasks, 16 policies", &sixteen),
    ];
    table("time per decision", "ns", sides);
}

/// Returns a function that makes decisions and returns the nanoseconds of one.
fn in_memory(policies: impl IntoIterator<Item = QuotaPolicy>) -> impl FnMut() -> f64 {
    const DECISIONS: usize = 100_000;

    let (store, scope) = (MemoryStore::new(), Scope::new("bench"));
    let policies = PolicySet::new(policies).expect("the policies are valid");
    let partition = |user: usize| scope.partition(&PartitionKey::new("user", user.to_le_bytes()));
    let partitions: Vec<_> = (0..CALLERS).map(partition).collect();
    move || {
        let start = Instant::now();
        for number in 0..DECISIONS {
            let plan = Plan::new(policies.clone(), partitions[number * 7_919 % CALLERS], 1);
            let decision = store.decide(plan).now_or_never().expect("memory never waits");
            assert_eq!(decision.expect("memory never fails").outcome(), Outcome::Allowed);
        }
        start.elapsed().as_nanos() as f64 / DECISIONS as f64
    }
}

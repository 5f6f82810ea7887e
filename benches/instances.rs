//! The CPU time of instances at a fixed rate, and the script calls of a skewed load.
//!
//!     cargo bench -p tower-quota-tests --bench instances
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. Each instance is a layer with its own
//! `RedisStore`; all instances are in this process. Requests are due every millisecond and do not wait for responses:
//! `RATE` (30,000) per second for `SECONDS` (3), each in its own task and for the next instance in turn. The sides of a
//! table are measured in turns, `ROUNDS` (5) times; the tables show medians. A round before them opens the connections
//! and stores the callers, and does not count.
//!
//! - *CPU time of this process per request* (`schedstat`): 10,000 callers chosen uniformly, and three windows that
//!   admit all requests. With prefetch, there are 100 callers and batches of 100 units. The lines below the table are
//!   net of the bare service, which includes the load generator.
//! - *script calls per request* (`INFO commandstats`): four new instances and an empty server in each round.
//!   `CALLERS` (100,000) callers are chosen by Zipf with the exponent 1.1. The limits are 100 per second, 1,000 per
//!   minute and 50,000 per day, so the most frequent callers are rejected, most of them by the rejection cache. With
//!   prefetch, the calls include the refunds of unspent units by dropped instances. Concurrent decisions share calls,
//!   and how many share one depends on the machine.
//!
//! A line that begins with *warning* means that requests were not decided, or that the run took 5 % longer than
//! `SECONDS`: the machine is too slow for `RATE`, or busy.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

#[path = "instances/load.rs"]
mod load;
mod rounds;

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Ready, ready},
    slice, thread,
    time::Duration,
};

use http::{Request, Response};
use test_kit::RedisServer;
use tokio::runtime::Runtime;
use tower::{Layer, Service, service_fn, util::ServiceFn};
use tower_quota::{Limiter, MemoryStore, QuotaPolicy, RateLimit, RateLimitLayerBuilder, RedisStore, Store, key};

use self::{
    load::{Callers, Load, Sent},
    rounds::{Side, own_seconds, server},
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
/// Callers of the uniform load.
const CALLERS: usize = 10_000;
const HOT_CALLERS: usize = 100;
const BATCH: u64 = 100;

type Answer = fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>;
type Instance = RateLimit<ServiceFn<Answer>>;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let bench = Bench {
        server: RedisServer::start(),
        runtime: Runtime::new().expect("the runtime starts"),
        load: Load {
            rate: rounds::setting("RATE", 30_000.0),
            length: Duration::from_secs_f64(rounds::setting("SECONDS", 3.0)),
        },
    };
    own_time(&bench);
    calls(&bench);
}

struct Bench {
    server: RedisServer,
    runtime: Runtime,
    load: Load,
}

impl Bench {
    fn store(&self) -> RedisStore {
        RedisStore::new(self.server.url()).expect("the URL is valid")
    }

    fn send<S, B: 'static>(&self, instances: &[S], callers: &Callers) -> Sent
    where
        S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        self.runtime.block_on(self.load.send(instances, callers))
    }

    /// Sends requests, and returns the nanoseconds of CPU time of this process per request.
    fn nanos<S, B: 'static>(&self, instances: &[S], callers: &Callers) -> (f64, Sent)
    where
        S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let start = own_seconds();
        let sent = self.send(instances, callers);
        ((own_seconds() - start) * 1e9 / sent.requests as f64, sent)
    }
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

fn own_time(bench: &Bench) {
    let (all, hot) = (Callers::uniform(CALLERS), Callers::uniform(HOT_CALLERS));
    let bare = [service_fn(answer as Answer)];
    let layers = [
        ("MemoryStore", instance(MemoryStore::new(), WIDE), &all),
        ("RedisStore", instance(bench.store(), WIDE), &all),
        (
            "RedisStore, prefetch, 100 callers",
            instance(bench.store(), prefetching(WIDE, BATCH)),
            &hot,
        ),
    ];
    let mut sides = vec![Side::new("bare service", || bench.nanos(&bare, &all).0)];
    sides.extend(layers.iter().map(|(name, layer, callers)| {
        Side::new(*name, move || {
            let (nanos, sent) = bench.nanos(slice::from_ref(layer), callers);
            sent.warn(name, &bench.load, false);
            nanos
        })
    }));
    let title = format!("CPU time of this process, {} requests/s", bench.load.rate);
    let values = rounds::table(&title, "ns/request", 5, &mut sides);
    for (side, own) in sides.iter().zip(&values).skip(1) {
        let net = own.without(&values[0]);
        let [median, least, most] = [net.median(), net.least(), net.most()].map(|nanos| nanos / 1e3);
        println!("  net, {}: {median:.2} us ({least:.2}..{most:.2})", side.name());
    }
}

fn calls(bench: &Bench) {
    let callers = Callers::zipf(rounds::setting("CALLERS", 100_000), 1.1);
    // The percentage of rejected requests and the microseconds of Redis per request, in the last run of each side.
    let last = [const { Cell::new([0.0; 2]) }; 2];
    let side = |name: &'static str, policies: [QuotaPolicy; 3], last| {
        let callers = &callers;
        Side::new(name, move || {
            server::flush(&bench.server);
            let instances = [(); 4].map(|()| instance(bench.store(), policies.clone()));
            server::reset_statistics(&bench.server);
            let start = server::seconds(&bench.server);
            let sent = bench.send(&instances, callers);
            let seconds = server::seconds(&bench.server) - start;
            sent.warn(name, &bench.load, true);
            let per_request = |count: f64| count / sent.requests as f64;
            let rejected = 100.0 * per_request(sent.rejected as f64);
            Cell::set(last, [rejected, 1e6 * per_request(seconds)]);
            drop(instances);
            thread::sleep(Duration::from_millis(500));
            1e3 * per_request(server::script_calls(&bench.server))
        })
    };
    let mut sides = [
        side("exact", TIGHT, &last[0]),
        side("prefetch, batches of 50", prefetching(TIGHT, 50), &last[1]),
    ];
    let title = format!("script calls, Zipf 1.1, {} requests/s", bench.load.rate);
    rounds::table(&title, "per 1,000", 5, &mut sides);
    for (side, last) in sides.iter().zip(&last) {
        let [rejected, micros] = last.get();
        println!(
            "  {}: {rejected:.1} % rejected, {micros:.1} us of Redis per request",
            side.name()
        );
    }
}

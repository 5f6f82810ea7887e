//! The contract of stores, shown on each of them by the same tests. `differential` shows that the numbers are right.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use test_kit::{RedisServer, limits_by, load::until, memory, shared_server};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_quota::{
    Algorithm, Decision, Direction, Outcome, PartitionKey, Plan, QuotaPolicy, RateLimitBody, RateLimitLayerBuilder,
    RedisStore, RedisStoreBuilder, Settlement, Store,
    clock::{Clock, Timestamp},
    content::{RequestContentBody, RequestContentLayer},
    key,
    redis::{RedisConnectionManager, bb8},
    test_util::check_store,
};

use super::support::{life, plan, remaining, shared_cluster_store, user};

/// A pool of a program that also has other uses for Redis.
fn pool() -> bb8::Pool<RedisConnectionManager> {
    let manager = RedisConnectionManager::new(shared_server().url()).expect("the URL is valid");
    bb8::Pool::builder().build_unchecked(manager)
}

/// The start of the clocks.
const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A store with its own clock, and partitions that no other test uses.
struct Bench {
    store: Arc<dyn Store>,
    clock: Clock,
    scope: &'static str,
}

impl Bench {
    fn memory(scope: &'static str) -> Self {
        let clock = Clock::manual(NOW);
        Self {
            store: Arc::new(memory(&clock)),
            clock,
            scope,
        }
    }

    fn redis(scope: &'static str) -> Self {
        Self::on(scope, crate::shared_store())
    }

    fn pooled(scope: &'static str) -> Self {
        // The same server has the scope of the other store.
        Self::on(scope, RedisStore::from_pool(pool()).key_prefix("pooled:"))
    }

    fn cluster(scope: &'static str) -> Self {
        Self::on(scope, shared_cluster_store())
    }

    fn on(scope: &'static str, builder: RedisStoreBuilder) -> Self {
        let clock = Clock::manual(NOW);
        Self {
            store: Arc::new(builder.clock(clock.clone()).build().unwrap()),
            clock,
            scope,
        }
    }

    fn plan(&self, policies: &[QuotaPolicy], name: &str, cost: u64) -> Plan {
        plan(policies.iter().cloned(), user(self.scope, name), cost)
    }

    async fn decide(&self, policies: &[QuotaPolicy], cost: u64) -> Decision {
        self.store.decide(self.plan(policies, "alice", cost)).await.unwrap()
    }

    /// The units that are left, without a charge.
    async fn remaining(&self, policies: &[QuotaPolicy]) -> Vec<u64> {
        remaining(&self.decide(policies, 0).await)
    }

    /// Settlements are not waited for.
    async fn assert_left_soon(&self, policies: &[QuotaPolicy], expected: &[u64], what: Algorithm) {
        let what = format!("{expected:?} are left of {what:?}");
        until(&what, async || self.remaining(policies).await == expected).await;
    }
}

/// Sends a request of `sent` bytes without a declared length, whose body is read, and returns a response.
async fn transfer(
    bench: &Bench,
    policies: &[QuotaPolicy],
    sent: usize,
    response: String,
) -> RateLimitBody<Full<Bytes>> {
    let alice = key::from_fn(|_| Some(PartitionKey::new("user", "alice")));
    let builder = limits_by(alice, Arc::clone(&bench.store)).scope(bench.scope);
    let builder = policies.iter().cloned().fold(builder, RateLimitLayerBuilder::policy);
    let limits = builder.build().unwrap();
    let handler = service_fn(move |request: Request<RequestContentBody<Full<Bytes>>>| {
        let response = Full::from(response.clone());
        async {
            request.into_body().collect().await.unwrap();
            Ok::<_, Infallible>(Response::new(response))
        }
    });
    let service = ServiceBuilder::new()
        .layer(RequestContentLayer::new())
        .layer(limits)
        .service(handler);
    let response = service
        .oneshot(Request::new(Full::from("x".repeat(sent))))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($bench:ident) $body:block)+) => {
        $(mod $name {
            use super::*;

            async fn shown($bench: Bench) $body

            on_every_store!(@ $(#[$attribute])* $name in_memory memory);
            on_every_store!(@ $(#[$attribute])* $name in_redis redis);
            on_every_store!(@ $(#[$attribute])* $name in_redis_through_a_pool pooled);
            on_every_store!(@ $(#[$attribute])* $name in_a_cluster cluster);
        })+
    };
    (@ $(#[$attribute:meta])* $name:ident $place:ident $bench:ident) => {
        $(#[$attribute])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $place() {
            shown(Bench::$bench(stringify!($name))).await;
        }
    };
}

const SECOND: QuotaPolicy = QuotaPolicy::per_second("second", 5);
const DAY: QuotaPolicy = QuotaPolicy::per_day("day", 100);

on_every_store! {
    /// L25, L11
    async fn a_thousand_at_once_never_pass_more_than_the_limit(bench) {
        let tasks = (0..1_000).map(|_| {
            let (store, plan) = (Arc::clone(&bench.store), bench.plan(&[DAY], "alice", 1));
            tokio::spawn(async move { store.decide(plan).await.unwrap().outcome() })
        });
        let outcomes = join_all(tasks).await;
        let allowed = outcomes.iter().filter(|outcome| matches!(outcome, Ok(Outcome::Allowed))).count();
        assert_eq!(allowed, 100);
    }

    /// Found by looking at a rejected caller after the wait: nothing had been written, so it waited for the old time.
    async fn a_clock_that_steps_back_neither_gives_nor_holds(bench) {
        let log = QuotaPolicy::per_second("log", 5).with_algorithm(Algorithm::SlidingWindowLog);
        let window = QuotaPolicy::per_second("window", 5).with_algorithm(Algorithm::FixedWindow);
        let counter = QuotaPolicy::per_second("counter", 5).with_algorithm(Algorithm::SlidingWindowCounter);
        for policy in [SECOND, log, window, counter] {
            let policies = [policy];
            bench.clock.set(NOW);
            bench.decide(&policies, 5).await;
            bench.clock.set(Timestamp::from_micros(1_000_000_000_000_000));
            assert_eq!(bench.remaining(&policies).await, [0]);
            let rejected = bench.decide(&policies, 1).await;
            let wait = rejected.retry_after().unwrap();
            assert!(wait <= Duration::from_millis(1_200), "{policies:?}: {wait:?}");
            bench.clock.advance(wait);
            assert_eq!(bench.decide(&policies, 1).await.outcome(), Outcome::Allowed, "{policies:?}");
        }
    }

    /// A refund further back would have to rewrite all later entries.
    async fn a_log_gives_back_what_fewer_than_a_thousand_requests_have_come_behind(bench) {
        let log = [QuotaPolicy::per_hour("log", 5_000).with_algorithm(Algorithm::SlidingWindowLog)];
        for (others, comes_back) in [(999, 3), (1_000, 0)] {
            let first = bench.decide(&log, 3).await;
            join_all((0..others).map(|_| bench.decide(&log, 1))).await;
            bench.store.settle(Settlement::refund_all(&first)).await.unwrap();
            assert_eq!(bench.remaining(&log).await, [5_000 - 3 - others + comes_back], "{others} others");
            bench.store.reset(bench.plan(&log, "alice", 1)).await.unwrap();
        }
    }

    /// A12: through the layer, for every store and algorithm. The final charge is the number of bytes that were read.
    async fn bytes_are_charged_as_they_become_known(bench) {
        let algorithms = [
            Algorithm::TokenBucket,
            Algorithm::StrictTokenBucket,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindowCounter,
            Algorithm::SlidingWindowLog,
            Algorithm::LeakyBucketQueue { max_waiting: 9_999 },
        ];
        for algorithm in algorithms {
            let bytes = QuotaPolicy::per_day("bytes", 10_000).with_content_bytes(Direction::Both).with_algorithm(algorithm);
            let policies = [bytes, QuotaPolicy::concurrent("slots", 3)];
            let full = bench.remaining(&policies).await[0];
            let body = transfer(&bench, &policies, 8, "x".repeat(300)).await;
            bench.assert_left_soon(&policies, &[full - 308, 2], algorithm).await;
            drop(body.collect().await.unwrap());
            bench.assert_left_soon(&policies, &[full - 308, 3], algorithm).await;
            bench.store.reset(bench.plan(&policies, "alice", 1)).await.unwrap();
        }
    }
}

fn every_algorithm() -> Vec<QuotaPolicy> {
    let algorithms = [
        ("bucket", Algorithm::TokenBucket),
        ("strict", Algorithm::StrictTokenBucket),
        ("meter", Algorithm::LeakyBucketMeter),
        ("queue", Algorithm::LeakyBucketQueue { max_waiting: 90 }),
        ("window", Algorithm::FixedWindow),
        ("counter", Algorithm::SlidingWindowCounter),
        ("log", Algorithm::SlidingWindowLog),
    ];
    let policies = algorithms.map(|(name, algorithm)| QuotaPolicy::per_hour(name, 100).with_algorithm(algorithm));
    policies
        .into_iter()
        .chain([
            QuotaPolicy::concurrent("slots", 9),
            QuotaPolicy::per_calendar_month("month", 100, "Europe/Berlin"),
        ])
        .collect()
}

/// L14: nothing remains of a caller who does not return, however the charges ended.
#[tokio::test]
async fn every_key_expires_however_it_counts() {
    let server = RedisServer::start();
    // At the beginning of an hour, the windows of a counter and the jitter are more than twice a window.
    let store = RedisStore::builder(server.url()).lease_time(Duration::from_secs(60));
    let store = store.expiry_jitter(Duration::ZERO).build().unwrap();
    let ways: [fn(&Decision) -> Option<Settlement>; 4] = [
        |_| None,
        |decision| Some(Settlement::new(decision, 50)),
        |decision| Some(Settlement::new(decision, 0)),
        |decision| Some(Settlement::refund_all(decision)),
    ];
    for (number, policy) in every_algorithm().into_iter().enumerate() {
        for (way, settlement) in ways.into_iter().enumerate() {
            let plan = || plan([policy.clone()], user("expiry", [number as u8, way as u8]), 1);
            let decision = store.decide(plan()).await.unwrap();
            assert_eq!(decision.outcome(), Outcome::Allowed);
            store.decide(plan()).await.unwrap();
            if let Some(settlement) = settlement(&decision) {
                store.settle(settlement).await.unwrap();
            }
            for key in server.command(&["KEYS", "*"]).lines() {
                let life = life(&server, key);
                // Twice a window at most, which is how long a counter or a debt may last, or a month.
                let longest = policy.window().map_or(31 * 86_400_000, |_| 7_200_000);
                assert!((1..=longest).contains(&life), "{policy:?}, {way}: {life} ms");
            }
            server.command(&["FLUSHALL"]);
        }
    }
}

/// Sends requests of 200 callers half an hour before a window ends. Returns the seconds between the first key that
/// expires and the last one, and the longest life of a key.
async fn lives(policy: QuotaPolicy, jitter: Duration) -> (i64, i64) {
    let server = RedisServer::start();
    let half_past = Clock::manual(Timestamp::from_micros(1_700_008_200_000_000));
    let store = RedisStore::builder(server.url()).clock(half_past).expiry_jitter(jitter);
    let store = store.build().unwrap();
    for number in 0..200_u8 {
        store
            .decide(plan([policy.clone()], user("lives", [number]), 1))
            .await
            .unwrap();
    }
    let keys = server.command(&["KEYS", "*"]);
    // By the clock of a test, keys live for an hour longer.
    let lives = keys.lines().map(|key| life(&server, key) / 1_000 - 3_600);
    let lives: Vec<i64> = lives.collect();
    let [first, last] = [lives.iter().min(), lives.iter().max()].map(|life| *life.unwrap());
    (last - first, last)
}

#[tokio::test]
async fn the_keys_of_windows_that_end_together_expire_one_after_the_other() {
    let window = || QuotaPolicy::per_hour("window", 9).with_algorithm(Algorithm::FixedWindow);
    for (jitter, spread, most) in [
        (0, 0..=20, 1_800),
        (600, 300..=620, 2_400),
        // Never for longer than it had to live.
        (3_600, 900..=1_820, 3_600),
    ] {
        let (apart, longest) = lives(window(), Duration::from_secs(jitter)).await;
        assert!(spread.contains(&apart) && longest <= most, "{apart} s, {longest} s");
    }
    let minutes = Duration::from_secs(600);
    let days = QuotaPolicy::per_calendar_day("day", 9, "Europe/Berlin");
    assert!((300..=620).contains(&lives(days, minutes).await.0));
    // Buckets fill up at different times, so their keys need no jitter.
    let bucket = QuotaPolicy::per_hour("bucket", 1);
    assert!(lives(bucket, minutes).await.0 <= 20);
}

/// L14: one entry for each request, for any cost, and no entry that has stopped counting.
#[tokio::test]
async fn a_log_and_a_limit_of_slots_keep_no_entry_that_is_over() {
    let server = RedisServer::start();
    let clock = Clock::manual(NOW);
    let builder = RedisStore::builder(server.url()).lease_time(Duration::from_secs(60));
    let store = builder.clock(clock.clone()).build().unwrap();
    let policies = [
        QuotaPolicy::per_second("log", 20).with_algorithm(Algorithm::SlidingWindowLog),
        QuotaPolicy::concurrent("slots", 100_000),
    ];
    let plan = |cost| plan(policies.clone(), user("entries", "alice"), cost);
    let entries = |kind: &str| {
        let key = server.command(&["KEYS", &format!("*:{kind}:*")]);
        server.command(&["ZCARD", key.trim()]).parse::<u64>().unwrap()
    };
    for number in 0..300 {
        let cost = if number % 10 == 0 { 5 } else { 1 };
        let decision = store.decide(plan(cost)).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Allowed, "{number}");
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(entries("log"), 10);
    // A slot of a process that was killed long ago.
    let slots = server.command(&["KEYS", "*:slots:*"]);
    server.command(&["ZADD", slots.trim(), "1", "of another process"]);
    let before = entries("slots");
    store.decide(plan(1)).await.unwrap();
    assert_eq!(entries("slots"), before);
}

/// This applies to all partitions of a plan, even if one of them rejects and none is ever charged alone. It does not
/// apply to a cluster, where each node has its own clock, and partitions after the rejecting one are not called.
#[tokio::test]
async fn a_clock_that_steps_back_neither_gives_nor_holds_in_several_partitions() {
    for bench in [Bench::memory("steps back"), Bench::redis("steps back")] {
        for policy in every_algorithm() {
            let Some(window) = policy.window() else { continue };
            let acquire = async |cost| {
                let of = |name| plan([policy.clone()], user(name, policy.name()), cost);
                bench.store.decide(of("alice").join(of("bob"))).await.unwrap().outcome()
            };
            let start = bench.clock.now();
            while acquire(1).await == Outcome::Allowed {}
            bench
                .clock
                .set(Timestamp::from_micros(start.as_micros() - 1_000_000_000_000));
            assert_eq!(acquire(1).await, Outcome::Rejected, "{policy:?}");
            // Two windows after the step, no earlier charge counts.
            bench.clock.advance(2 * window);
            assert_eq!(acquire(1).await, Outcome::Allowed, "{policy:?}");
            bench.clock.set(start);
        }
    }
}

/// L14, L22: for any alternation of the plans that charge it.
#[tokio::test]
async fn a_key_holds_each_policy_once() {
    let server = RedisServer::start();
    let bench = Bench::on("once", RedisStore::builder(server.url()));
    let timed: Vec<QuotaPolicy> = every_algorithm()
        .into_iter()
        .filter(|it| it.window().is_some())
        .collect();
    // A header of 11 bytes, and at most 26 bytes per policy.
    let most = 11 + 26 * timed.len();
    for count in 1..timed.len() {
        for round in 0..12 {
            let (some, others) = timed.split_at(count);
            bench.decide(if round % 2 == 0 { some } else { others }, 1).await;
            let key = server.command(&["KEYS", "*}"]);
            let length: usize = server.command(&["STRLEN", key.trim()]).parse().unwrap();
            assert!(length <= most, "{length} bytes for {count} and others after {round}");
        }
        server.command(&["FLUSHALL"]);
    }
}

/// A service whose routes have different policies for the same callers.
#[tokio::test]
async fn a_caller_whom_many_policies_are_about_is_not_forgotten_by_all_of_them() {
    let (memory, redis) = (Bench::memory("many policies"), Bench::redis("many policies"));
    const DAY: Duration = Duration::from_secs(86_400);

    let policy = |number: u64| [QuotaPolicy::new(format!("route {number}"), 7_001 + number, DAY)];
    for bench in [memory, redis] {
        for number in 0..120 {
            bench.decide(&policy(number), 7_001 + number).await;
            // The most recent policies are kept, for any number of earlier ones.
            for known in number.saturating_sub(70)..=number {
                let left = bench.remaining(&policy(known)).await;
                assert_eq!(left, [0], "{known} after {number}");
            }
        }
    }
}

/// While a service is rolled out with another lease time.
#[tokio::test]
async fn an_instance_with_a_shorter_lease_time_does_not_end_the_leases_of_others() {
    let server = RedisServer::start();
    let store = |seconds| {
        let builder = RedisStore::builder(server.url()).lease_time(Duration::from_secs(seconds));
        builder.build().unwrap()
    };
    let [longer, shorter] = [600, 1].map(store);
    let plan = || plan([QuotaPolicy::concurrent("slots", 9)], user("leases", "alice"), 1);
    longer.decide(plan()).await.unwrap();
    let second = shorter.decide(plan()).await.unwrap();
    let key = server.command(&["KEYS", "*:slots:*"]);
    let assert_all_live_on = || {
        let life = life(&server, &key);
        assert!((500_000..=600_000).contains(&life), "{life} ms");
    };
    assert_all_live_on();
    let first_to_end = || server.command(&["ZRANGE", key.trim(), "0", "0", "WITHSCORES"]);
    let before = first_to_end();
    until("the lease is renewed", async || first_to_end() != before).await;
    assert_all_live_on();
    shorter.settle(Settlement::refund_all(&second)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_for_stores_of_others_passes_in_redis() {
    let number = std::sync::atomic::AtomicUsize::new(0);
    check_store(|clock| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let builder = crate::shared_store().clock(clock);
        builder.key_prefix(format!("suite {number}:")).build().unwrap()
    })
    .await;
}

//! The count of exhausted callers whose state the store has lost.

#![allow(clippy::disallowed_methods, reason = "Redis does not follow virtual time")]

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Empty;
use test_kit::{RedisServer, Setup, request};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, ChargeTime, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    RedisStore, Refund, Rules, Store,
    clock::{Clock, Timestamp},
};

use crate::{
    RemoteStore,
    metrics::{Page, builder_of, send},
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::StrictTokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
    Algorithm::LeakyBucketMeter,
];

fn lost(page: &Page) -> f64 {
    page.of("state_lost_total")
}

/// A layer that waits for its store as long as that takes, and a clock by which its cached rejections expire.
fn cached_builder(store: impl Store) -> (RateLimitLayerBuilder, Clock) {
    let clock = Clock::manual(START);
    let limiter = Limiter::builder(store)
        .deadline(Duration::from_secs(60))
        .clock(clock.clone());
    (builder_of(limiter), clock)
}

/// Sends requests of a caller until one is rejected, and one more after the cached rejection has expired.
async fn exhaust(layer: &RateLimitLayer, clock: &Clock, user: &str) {
    while send(layer, request(user)).await == 200 {}
    clock.advance(Duration::from_secs(2));
    assert_eq!(send(layer, request(user)).await, 429, "{user}");
    clock.advance(Duration::from_secs(2));
}

fn caller(user: &str) -> PartitionKey {
    PartitionKey::new("x-user-id", user)
}

#[tokio::test]
async fn an_exhausted_caller_whom_redis_has_forgotten_is_counted_once() {
    let page = Page::start();
    let server = RedisServer::start();
    let mut expected = 0.0;
    for algorithm in ALGORITHMS {
        let day = QuotaPolicy::per_day("day", 3).with_algorithm(algorithm);
        for policy in [day.clone(), day.with_lockout(Duration::from_secs(600))] {
            let (builder, clock) = cached_builder(RedisStore::new(server.url()).unwrap());
            let layer = builder.policy(policy.clone()).build().unwrap();
            exhaust(&layer, &clock, "alice").await;
            assert_eq!(lost(&page), expected, "{policy:?}");
            server.command(&["FLUSHALL"]);
            expected += 1.0;
            for _ in 0..2 {
                assert_eq!(send(&layer, request("alice")).await, 200, "{policy:?}");
                exhaust(&layer, &clock, "alice").await;
                assert_eq!(lost(&page), expected, "{policy:?}");
                layer.limiter().caller(&caller("alice")).reset().await.unwrap();
            }
            server.command(&["FLUSHALL"]);
        }
    }
}

/// The oldest keys are evicted first: the keys of callers who wait as instructed.
#[tokio::test]
async fn each_caller_whose_quota_redis_has_evicted_is_counted_when_he_comes_again() {
    let page = Page::start();
    let arguments = ["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::start_with(Setup {
        arguments: arguments.map(String::from).into(),
        ..Setup::default()
    });
    let (builder, clock) = cached_builder(RedisStore::new(server.url()).unwrap());
    let layer = builder.policy(QuotaPolicy::per_day("day", 2)).build().unwrap();
    let users: Vec<String> = (0..300).map(|user| user.to_string()).collect();
    for user in &users {
        while send(&layer, request(user)).await == 200 {}
    }
    let fill = "for n = 1, 500 do redis.call('SET', ARGV[1] .. n, string.rep('x', 100)) end";
    for round in 0..100 {
        server.command(&["EVAL", fill, "0", &format!("other:{round}:")]);
    }
    clock.advance(Duration::from_secs(10));
    assert_eq!(lost(&page), 0.0);
    let mut evicted = 0.0;
    for user in &users {
        if send(&layer, request(user)).await == 200 {
            evicted += 1.0;
        }
    }
    assert!(evicted > 0.0, "{}", server.command(&["INFO", "stats"]));
    assert_eq!(lost(&page), evicted);
}

#[tokio::test]
async fn a_reset_by_another_instance_counts_and_one_by_this_instance_does_not() {
    let page = Page::start();
    let store = RemoteStore::<1>(MemoryStore::new());
    let (own, clock) = cached_builder(store.clone());
    let policy = QuotaPolicy::per_day("day", 3);
    let own = own.policy(policy.clone()).build().unwrap();
    let other = cached_builder(store).0.policy(policy).build().unwrap();
    for (instance, expected) in [(&own, 0.0), (&other, 1.0), (&own, 1.0)] {
        exhaust(&own, &clock, "alice").await;
        instance.limiter().caller(&caller("alice")).reset().await.unwrap();
        clock.advance(Duration::from_secs(2));
        assert_eq!(send(&own, request("alice")).await, 200);
        assert_eq!(lost(&page), expected);
    }
}

/// A small generator with a fixed seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Limits of one name whose quotas differ, of a second and of an hour, some of them with prefetched units.
fn any_rules(numbers: &mut Numbers) -> Rules {
    let mut quota = || [1, 2, 5, 40][numbers.below(4) as usize];
    let (second, hour) = (quota(), quota());
    let algorithm = |numbers: &mut Numbers| ALGORITHMS[numbers.below(6) as usize];
    let second = QuotaPolicy::per_second("second", second).with_algorithm(algorithm(numbers));
    let hour = QuotaPolicy::per_hour("hour", hour).with_algorithm(algorithm(numbers));
    let hour = match numbers.below(3) {
        0 => hour.with_lockout(Duration::from_secs(3)),
        _ => hour,
    };
    match numbers.below(3) {
        0 => Rules::new().policy(second),
        1 => Rules::new().policy(hour),
        _ => Rules::new().policy(second).policy(hour),
    }
}

/// Sends a request with the actual cost `cost`, if there is one.
async fn send_costing(layer: &RateLimitLayer, user: &str, cost: Option<u64>) {
    let handler = async |request: Request<String>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        response.headers_mut().extend(request.headers().clone());
        Ok::<_, Infallible>(response)
    };
    let mut request = request(user);
    if let Some(cost) = cost {
        request.headers_mut().insert("x-cost", cost.into());
    }
    drop(layer.layer(service_fn(handler)).oneshot(request).await.unwrap());
}

fn costing(builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    builder.actual_cost(|response| response.headers.get("x-cost")?.to_str().ok()?.parse().ok())
}

/// Steps of callers and operators; `wait` lets time pass.
async fn live(
    layer: &RateLimitLayer,
    numbers: &mut Numbers,
    steps: u64,
    waits: [u64; 5],
    wait: impl AsyncFn(Duration),
) {
    for _ in 0..steps {
        let user = numbers.below(5).to_string();
        match numbers.below(40) {
            0 => layer.limiter().caller(&caller(&user)).reset().await.unwrap(),
            1 => {
                let refund = Refund::new(1 + numbers.below(5), ChargeTime::Now);
                layer.limiter().caller(&caller(&user)).refund(&refund).await.unwrap();
            }
            2 => layer.limiter().rules().replace(any_rules(numbers)).unwrap(),
            3..=9 => wait(Duration::from_micros(waits[numbers.below(5) as usize])).await,
            _ => {
                let together: Vec<_> = (0..1 + numbers.below(4))
                    .map(|_| [None, Some(0), Some(1), Some(3)][numbers.below(4) as usize])
                    .collect();
                join_all(together.into_iter().map(|cost| send_costing(layer, &user, cost))).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resets_refunds_and_new_rules_of_this_instance_are_no_loss() {
    let page = Page::start();
    let mut expected = 0.0;
    for seed in 0..30 {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let store = RemoteStore::<1>(store);
        let mut numbers = Numbers(seed);
        let instance = || costing(builder_of(Limiter::builder(store.clone()).clock(clock.clone())));
        let layer = instance().rules(any_rules(&mut numbers)).build().unwrap();
        let wait = async |time| clock.advance(time);
        let waits = [1, 1_000, 30_000, 400_000, 2_500_000];
        live(&layer, &mut numbers, 2_000, waits, wait).await;
        assert_eq!(lost(&page), expected, "seed {seed}");
        // The run has not made the instance blind.
        clock.advance(Duration::from_secs(7_200));
        let hour = || Rules::new().policy(QuotaPolicy::per_hour("hour", 5));
        layer.limiter().rules().replace(hour()).unwrap();
        exhaust(&layer, &clock, "0").await;
        let other = instance().rules(hour()).build().unwrap();
        other.limiter().caller(&caller("0")).reset().await.unwrap();
        send(&layer, request("0")).await;
        expected += 1.0;
        assert_eq!(lost(&page), expected, "seed {seed}");
    }
}

#[tokio::test]
async fn resets_refunds_and_new_rules_are_no_loss_on_redis() {
    let page = Page::start();
    let server = RedisServer::start();
    let rounds = std::env::var("STATE_LOST_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        server.command(&["FLUSHALL"]);
        let mut numbers = Numbers(seed);
        let limiter = Limiter::builder(RedisStore::new(server.url()).unwrap()).deadline(Duration::from_secs(60));
        let layer = costing(builder_of(limiter))
            .rules(any_rules(&mut numbers))
            .build()
            .unwrap();
        let waits = [100, 1_000, 10_000, 30_000, 300_000];
        live(&layer, &mut numbers, 400, waits, tokio::time::sleep).await;
        assert_eq!(lost(&page), 0.0, "seed {seed}");
    }
}

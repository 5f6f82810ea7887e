//! A Redis server that is out of memory, and what its `INFO` shows before that.

#![allow(clippy::disallowed_methods, reason = "Redis does not follow virtual time")]

use std::time::Duration;

use test_kit::{RedisServer, TestStore, request};
use tower_quota::{
    Algorithm, CircuitState, FailureMode, Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, RedisStore, StoreErrorKind,
};

use crate::metrics::{Page, builder, builder_of, send};

fn layer(server: &RedisServer, policy: QuotaPolicy) -> RateLimitLayer {
    let store = RedisStore::new(server.url()).unwrap();
    let limiter = Limiter::builder(store)
        .deadline(Duration::from_secs(60))
        .rejection_cache(0);
    builder_of(limiter).policy(policy).build().unwrap()
}

fn is_full(server: &RedisServer, full: bool) {
    server.command(&["CONFIG", "SET", "maxmemory", if full { "1" } else { "0" }]);
}

/// Sends this many requests of a user, and returns how many were admitted.
async fn admitted(layer: &RateLimitLayer, user: &str, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(send(layer, request(user)).await == 200);
    }
    admitted
}

#[tokio::test]
async fn while_redis_is_full_an_exhausted_caller_stays_rejected_and_others_get_one_quota_of_each_instance() {
    let page = Page::start();
    let server = RedisServer::start();
    // Redis lets a script that trims a log write on, so that logs are counted as before.
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
    ] {
        server.command(&["FLUSHALL"]);
        let instances = [1, 2].map(|_| layer(&server, QuotaPolicy::per_day("day", 5).with_algorithm(algorithm)));
        assert_eq!(admitted(&instances[0], "exhausted", 20).await, 5);
        assert_eq!(admitted(&instances[0], "half", 3).await, 3);
        for round in 0..3 {
            is_full(&server, true);
            // The first request that finds Redis full has no plan to decide again.
            for instance in &instances {
                send(instance, request("first")).await;
            }
            for (number, instance) in instances.iter().enumerate() {
                assert_eq!(admitted(instance, "exhausted", 20).await, 0, "{algorithm:?}");
                let most = if round == 0 { 5 } else { 0 };
                assert_eq!(admitted(instance, "half", 20).await, most, "{algorithm:?} {number}");
                assert_eq!(
                    admitted(instance, &format!("new {round}"), 20).await,
                    5,
                    "{algorithm:?}"
                );
                let circuit = instance.limiter().circuit();
                assert!(matches!(circuit, Some(CircuitState::Closed)), "{circuit:?}");
            }
            is_full(&server, false);
            assert_eq!(admitted(&instances[0], "exhausted", 20).await, 0, "{algorithm:?}");
            let left = if round == 0 { 2 } else { 0 };
            assert_eq!(admitted(&instances[0], "half", 20).await, left, "{algorithm:?}");
        }
    }
    assert!(page.by("undecided_total", "reason", "out_of_memory") > 0.0);
}

/// A stranger who invents keys evicts no caller who has used more than one request.
#[tokio::test]
async fn strangers_who_fill_redis_and_the_store_of_the_process_free_no_exhausted_caller() {
    let full = builder(TestStore::failing(StoreErrorKind::OutOfMemory));
    let layer = full.policy(QuotaPolicy::per_day("day", 5)).build().unwrap();
    send(&layer, request("first")).await;
    assert_eq!(admitted(&layer, "alice", 20).await, 5);
    for stranger in 0..70_000 {
        send(&layer, request(&format!("stranger {stranger}"))).await;
    }
    assert_eq!(admitted(&layer, "alice", 20).await, 0);
}

#[tokio::test]
async fn a_full_redis_leaves_the_decision_to_the_fallback_or_to_a_closed_failure_mode() {
    let server = RedisServer::start();
    let limiter = || {
        let limiter = Limiter::builder(RedisStore::new(server.url()).unwrap()).deadline(Duration::from_secs(60));
        limiter.policy(QuotaPolicy::per_day("day", 3))
    };
    is_full(&server, true);
    let closed = builder_of(limiter().failure_mode(FailureMode::Closed)).build().unwrap();
    assert_eq!(send(&closed, request("alice")).await, 503);
    let fallback = builder_of(limiter().fallback(MemoryStore::new())).build().unwrap();
    assert_eq!(admitted(&fallback, "alice", 9).await, 3);
}

#[tokio::test]
async fn a_partition_counts_as_new_when_redis_had_no_state_of_it() {
    let page = Page::start();
    let server = RedisServer::start();
    let new = || page.of("new_partitions_total");
    for (number, algorithm) in (0_u8..).zip([
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
        Algorithm::LeakyBucketMeter,
    ]) {
        let policy = QuotaPolicy::per_day("day", 9_000).with_algorithm(algorithm);
        let layer = layer(&server, policy);
        let before = if number == 0 { 0.0 } else { new() };
        for user in ["alice", "bob", "alice", "alice", "carol", "bob"] {
            send(&layer, request(&format!("{user} {number}"))).await;
        }
        assert_eq!(new() - before, 3.0, "{algorithm:?}");
    }
}

//! One policy of each algorithm: what a decision costs the server, and how many bytes it keeps for a caller.

use std::fmt::Write as _;

use tower_quota::{Algorithm, Outcome, QuotaPolicy, Settlement, Store};

use super::{
    ROUNDS,
    decisions::{Bench, Decide, POLICIES, StoreAlone, USERS},
    rounds::{self, Side, server},
};

const TASKS: usize = 512;

/// Decisions per second of the server's processor time, which does not depend on what else the machine does.
pub(super) fn measure(bench: &Bench) {
    let stores = cases().map(|(name, users, policies)| {
        let store = StoreAlone::new(bench.store(), policies);
        (name, AndRelease { store, users })
    });
    let sides = stores
        .iter()
        .map(|(name, store)| Side::new(*name, || bench.measure_server(store, TASKS)));
    let title = format!("algorithms, tasks: {TASKS}");
    rounds::table(&title, "per cpu s", ROUNDS, &mut sides.collect::<Vec<_>>());
}

/// Names, how many users come, and their policies.
fn cases() -> [(&'static str, usize, Vec<QuotaPolicy>); 9] {
    let minute = |algorithm| vec![QuotaPolicy::per_minute("minute", 100).with_algorithm(algorithm)];
    let log = Algorithm::SlidingWindowLog;
    let long = QuotaPolicy::per_hour("hour", 10_000).with_algorithm(log);
    [
        ("token bucket", USERS, minute(Algorithm::TokenBucket)),
        ("strict token bucket", USERS, minute(Algorithm::StrictTokenBucket)),
        ("fixed window", USERS, minute(Algorithm::FixedWindow)),
        ("sliding window counter", USERS, minute(Algorithm::SlidingWindowCounter)),
        ("sliding window log, few entries", USERS, minute(log)),
        ("sliding window log, hundreds of entries", 50, vec![long]),
        ("leaky bucket, meter", USERS, minute(Algorithm::LeakyBucketMeter)),
        ("leaky bucket, queue", USERS, minute(queue())),
        (
            "concurrent requests, with release",
            USERS,
            vec![QuotaPolicy::concurrent("slots", 100)],
        ),
    ]
}

fn queue() -> Algorithm {
    Algorithm::LeakyBucketQueue { max_waiting: 100 }
}

#[derive(Clone)]
struct AndRelease {
    store: StoreAlone,
    users: usize,
}

impl Decide for AndRelease {
    async fn decide(&self, user: usize) -> Outcome {
        let decision = self.store.acquire(user % self.users).await;
        let settlement = Settlement::new(&decision, 1);
        if !settlement.is_empty() {
            self.store.store.settle(settlement).await.expect("the server answers");
        }
        match decision.outcome() {
            // A meter that meets the same user twice rejects: a decision like any other.
            Outcome::Rejected => Outcome::Allowed,
            outcome => outcome,
        }
    }
}

/// The bytes of all keys of a caller with one policy.
pub(super) fn print_sizes(bench: &Bench) {
    let hour = |algorithm| QuotaPolicy::per_hour("hour", 10_000).with_algorithm(algorithm);
    println!("\nbytes in the server for one caller with one policy, keys included, after so many requests");
    for (name, policy, requests) in [
        ("token bucket", hour(Algorithm::TokenBucket), &[1][..]),
        ("token bucket, 7 per second", QuotaPolicy::per_second("second", 7), &[1]),
        ("strict token bucket", hour(Algorithm::StrictTokenBucket), &[1]),
        ("fixed window", hour(Algorithm::FixedWindow), &[1]),
        ("sliding window counter", hour(Algorithm::SlidingWindowCounter), &[1]),
        (
            "sliding window log",
            hour(Algorithm::SlidingWindowLog),
            &[1, 10, 100, 1_000],
        ),
        ("leaky bucket, meter", hour(Algorithm::LeakyBucketMeter), &[1]),
        ("leaky bucket, queue", hour(queue()), &[1]),
        ("concurrent requests", QuotaPolicy::concurrent("slots", 100), &[1, 8]),
    ] {
        print_line(name, bench, &[policy], requests);
    }
    print_line("token bucket, three windows", bench, &POLICIES, &[1]);
    // One unit of 20 per day is more than 2^32 microseconds, about 71 minutes.
    let [second, minute, _] = POLICIES;
    let wide = [second, minute, QuotaPolicy::per_day("day", 20)];
    print_line("three windows, wide", bench, &wide, &[1]);
}

fn print_line(name: &str, bench: &Bench, policies: &[QuotaPolicy], requests: &[usize]) {
    let mut line = format!("  {name:28}");
    for count in requests {
        let _ = write!(line, "  {count}: {}", bytes(bench, policies, *count));
    }
    println!("{line}");
}

fn bytes(bench: &Bench, policies: &[QuotaPolicy], requests: usize) -> u64 {
    server::flush(&bench.server);
    let store = StoreAlone::new(bench.store(), policies.to_vec());
    bench.runtime.block_on(async {
        for _ in 0..requests {
            assert_eq!(store.acquire(0).await.outcome(), Outcome::Allowed);
        }
    });
    let keys = bench.server.command(&["KEYS", "*"]);
    let bytes = |key| bench.server.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
    keys.lines()
        .map(|key| bytes(key).parse::<u64>().expect("a number"))
        .sum()
}

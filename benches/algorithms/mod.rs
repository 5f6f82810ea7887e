//! One policy of each algorithm: what a decision costs the server, and how many bytes it keeps for a caller.

use std::fmt::Write as _;

use futures_util::future::join_all;
use tower_quota::{Algorithm, Outcome, QuotaPolicy, Settlement, Store};

use super::{
    decisions::{Bench, Decide, POLICIES, StoreAlone, USERS},
    rounds::{self, Side},
};

const TASKS: usize = 512;

/// Decisions per second of the server's processor time, which does not depend on what else the machine does.
pub(super) fn measure(bench: &Bench, rounds: usize) {
    let stores: Vec<_> = cases()
        .into_iter()
        .map(|(name, users, policies)| {
            let store = StoreAlone::new(&bench.server, policies);
            (name, AndRelease { store, users })
        })
        .collect();
    let mut sides: Vec<_> = stores
        .iter()
        .map(|(name, store)| Side::new(*name, || bench.measure_server(store, TASKS)))
        .collect();
    rounds::measure(1, &mut sides);
    let values = rounds::measure(rounds, &mut sides);
    let title = format!("{rounds} rounds of {:?}, tasks: {TASKS}", bench.length);
    rounds::print(&title, "decisions/s", &sides, &values);
}

/// Names, how many users come, and their policies.
fn cases() -> Vec<(&'static str, usize, Vec<QuotaPolicy>)> {
    let minute = |algorithm| vec![QuotaPolicy::per_minute("minute", 100).with_algorithm(algorithm)];
    let log = Algorithm::SlidingWindowLog;
    let long = QuotaPolicy::per_hour("hour", 10_000).with_algorithm(log);
    let slots = QuotaPolicy::concurrent("slots", 100);
    let mixed = vec![
        QuotaPolicy::per_second("second", 10),
        QuotaPolicy::per_minute("minute", 100).with_algorithm(log),
        QuotaPolicy::per_day("day", 5_000).with_algorithm(Algorithm::FixedWindow),
        slots.clone(),
    ];
    vec![
        ("token bucket", USERS, minute(Algorithm::TokenBucket)),
        ("token bucket, three windows", USERS, POLICIES.to_vec()),
        ("strict token bucket", USERS, minute(Algorithm::StrictTokenBucket)),
        ("fixed window", USERS, minute(Algorithm::FixedWindow)),
        ("sliding window counter", USERS, minute(Algorithm::SlidingWindowCounter)),
        ("sliding window log, few entries", USERS, minute(log)),
        ("sliding window log, hundreds of entries", 50, vec![long]),
        ("leaky bucket, meter", USERS, minute(Algorithm::LeakyBucketMeter)),
        ("leaky bucket, queue", USERS, minute(queue())),
        ("concurrent requests, with release", USERS, vec![slots]),
        ("bucket, log, fixed window, slots, release", USERS, mixed),
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
}

/// Prints the server's memory for each of many callers, tables and the rest of allocations included.
///
/// A level of at most 2^32 microseconds is narrow. One unit of 30 a day is; one of 20 a day is not, nor are two of 30: a
/// caller who has used more than 71 minutes of a window takes as much as these.
pub(super) fn print_bytes_of_many(bench: &Bench) {
    const CALLERS: usize = 250_000;
    println!("\nbytes in the server for a caller with three token buckets, of {CALLERS} callers with a request each");
    for (layout, a_day) in [("narrow", 30), ("wide", 20)] {
        let policies = [
            QuotaPolicy::per_second("second", 5),
            QuotaPolicy::per_minute("minute", 10),
            // A unit is restored only after more than half an hour, so no caller expires during the measurement.
            QuotaPolicy::per_day("day", a_day),
        ];
        bench.flush();
        let store = StoreAlone::new(&bench.server, policies);
        let before = used_memory(bench);
        bench.runtime.block_on(async {
            for first in (0..CALLERS).step_by(TASKS) {
                let callers = first..CALLERS.min(first + TASKS);
                join_all(callers.map(|caller| store.acquire(caller))).await;
            }
        });
        let key = bench.server.command(&["RANDOMKEY"]);
        let usage = bench.server.command(&["MEMORY", "USAGE", &key]);
        let each = (used_memory(bench) - before) as f64 / CALLERS as f64;
        println!("  {layout:6}  used_memory: {each:.0}, MEMORY USAGE: {usage}");
    }
    println!(
        "  by the classes of jemalloc, narrow: 64 for the value (44 bytes with its object), 32 for the key, 24 for its"
    );
    println!("  entry in each of two tables (all keys, expiries); what is left are the places of these tables");
}

fn used_memory(bench: &Bench) -> u64 {
    let info = bench.server.command(&["INFO", "memory"]);
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    used.expect("a number")
}

fn print_line(name: &str, bench: &Bench, policies: &[QuotaPolicy], requests: &[usize]) {
    let mut line = format!("  {name:28}");
    for count in requests {
        let _ = write!(line, "  {count}: {}", bytes(bench, policies, *count));
    }
    println!("{line}");
}

fn bytes(bench: &Bench, policies: &[QuotaPolicy], requests: usize) -> u64 {
    bench.flush();
    let store = StoreAlone::new(&bench.server, policies.to_vec());
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

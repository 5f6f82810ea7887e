//! What stores remember of a partition: what a charge, its settlement, a reset and a step of the clock make of it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use tower_quota::{
    Algorithm, CheckedPolicies, Decision, MemoryStore, Outcome, PartitionId, PartitionKey, Plan, QuotaPolicy,
    RedisStore, Scope, Settlement, Store,
    clock::{Clock, Timestamp},
};

const SECOND: u64 = 1_000_000;

/// The beginning of a minute, of an hour and of a day.
const START: u64 = 1_700_006_400 * SECOND;

const LARGEST: u64 = 999_999_999_999_999;

/// One caller of one store, on a clock that stands still until it is moved.
struct Caller {
    clock: Clock,
    store: Arc<dyn Store>,
    partition: PartitionId,
}

impl Caller {
    /// One of each store, unknown to it.
    fn of_each_store() -> [Self; 2] {
        [false, true].map(|is_in_redis| {
            let clock = Clock::manual(Timestamp::from_micros(START));
            let store: Arc<dyn Store> = if is_in_redis {
                let redis = RedisStore::builder(support::shared_server().url()).clock(clock.clone());
                Arc::new(redis.connections(1).build().unwrap())
            } else {
                Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap())
            };
            Self {
                clock,
                store,
                partition: somebody(),
            }
        })
    }

    fn plan(&self, policies: impl IntoIterator<Item = QuotaPolicy>, cost: u64) -> Plan {
        Plan::new(CheckedPolicies::new(policies).unwrap(), self.partition, cost)
    }

    async fn acquire(&self, policy: &QuotaPolicy, cost: u64) -> Decision {
        self.store.acquire(self.plan([policy.clone()], cost)).await.unwrap()
    }

    async fn allowed(&self, policy: &QuotaPolicy, cost: u64) -> Decision {
        let decision = self.acquire(policy, cost).await;
        assert_eq!(decision.outcome(), Outcome::Allowed, "{:?}", self.store);
        decision
    }

    async fn settle(&self, settlement: Settlement) {
        self.store.settle(settlement).await.unwrap();
    }

    async fn left(&self, policy: &QuotaPolicy) -> u64 {
        remaining(&self.acquire(policy, 0).await)[0]
    }

    /// Moves the clock by so many microseconds.
    fn step(&self, micros: i64) {
        let moved = self.clock.now().as_micros().saturating_add_signed(micros);
        self.clock.set(Timestamp::from_micros(moved));
    }
}

/// A partition that nobody else uses.
fn somebody() -> PartitionId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Scope::new("ledger").partition(&PartitionKey::new("number", number.to_be_bytes()))
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

fn per_minute(quota: u64, algorithm: Algorithm) -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", quota).with_algorithm(algorithm)
}

fn for_any<T: std::fmt::Debug>(cases: u32, strategy: impl Strategy<Value = T>, test: impl AsyncFn(T)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = TestRunner::new(config).run(&strategy, |value| {
        runtime.block_on(test(value));
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Ten of ten were charged and five used. Five come back by themselves, which are those that were used.
#[tokio::test]
async fn a_late_refund_is_lost_only_as_far_as_the_charge_has_come_back_by_itself() {
    for (seconds, left) in [(0, 5), (30, 10), (42, 10), (60, 10)] {
        for caller in Caller::of_each_store() {
            let policy = per_minute(10, Algorithm::TokenBucket);
            let decision = caller.allowed(&policy, 10).await;
            caller.step(seconds * 1_000_000);
            caller.settle(Settlement::new(&decision, 5)).await;
            assert_eq!(caller.left(&policy).await, left, "{:?} after {seconds} s", caller.store);
        }
    }
}

/// The units of those who came later are theirs, however much of a charge is given back.
#[test]
fn a_late_refund_never_gives_more_than_a_smaller_charge_would_have_left() {
    let charges = (0..=20_u64, 1..=20_u64, 0..90_u64, 0..=20_u64, 0..90_u64, 0..=20_u64);
    for_any(
        40,
        charges,
        async |(before, cost, pause, later, other_pause, actual)| {
            let policy = per_minute(20, Algorithm::TokenBucket);
            let actual = actual.min(cost);
            let (asked, spared) = (Caller::of_each_store(), Caller::of_each_store());
            for (asked, spared) in asked.iter().zip(&spared) {
                let mut decision = None;
                for (caller, cost) in [(asked, cost), (spared, actual)] {
                    caller.acquire(&policy, before).await;
                    decision = decision.or(Some(caller.acquire(&policy, cost).await));
                    caller.step((pause * SECOND) as i64);
                }
                let decision = decision.unwrap();
                // What is refused of the larger charge, or after it, is no case of a refund.
                if decision.outcome() != Outcome::Allowed
                    || asked.acquire(&policy, later).await.outcome() != Outcome::Allowed
                {
                    return;
                }
                spared.allowed(&policy, later).await;
                for caller in [asked, spared] {
                    caller.step((other_pause * SECOND) as i64);
                }
                asked.settle(Settlement::new(&decision, actual)).await;
                let (left, most) = (asked.left(&policy).await, spared.left(&policy).await);
                assert!(left <= most, "{:?}: {left} of {most}", asked.store);
                if before + later == 0 {
                    assert_eq!(left, most, "{:?}: nobody else has come", asked.store);
                }
            }
        },
    );
}

/// L22: a log that no policy of the plan names is a key of its own in Redis, which nobody can find without the policy.
#[tokio::test]
async fn a_reset_forgets_all_but_slots_and_logs_that_the_plan_does_not_name_in_both_stores() {
    let log = |name| QuotaPolicy::per_hour(name, 9).with_algorithm(Algorithm::SlidingWindowLog);
    let named = || {
        let window = QuotaPolicy::per_hour("window", 9).with_algorithm(Algorithm::FixedWindow);
        vec![QuotaPolicy::per_hour("bucket", 9), window, log("log")]
    };
    let other = || {
        let counter = QuotaPolicy::per_hour("counter", 9).with_algorithm(Algorithm::SlidingWindowCounter);
        vec![counter, log("other log"), QuotaPolicy::concurrent("slots", 9)]
    };
    for caller in Caller::of_each_store() {
        for policies in [named(), other(), named()] {
            caller.store.acquire(caller.plan(policies, 1)).await.unwrap();
        }
        caller.store.reset(caller.plan(named(), 1)).await.unwrap();
        let left = remaining(&caller.store.peek(caller.plan(other(), 1)).await.unwrap());
        assert_eq!(left, [9, 8, 8], "{:?}", caller.store);
        let left = remaining(&caller.store.peek(caller.plan(named(), 1)).await.unwrap());
        assert_eq!(left, [9, 9, 9], "{:?}", caller.store);
        caller.store.reset(caller.plan(other(), 1)).await.unwrap();
        let left = remaining(&caller.store.peek(caller.plan(other(), 1)).await.unwrap());
        assert_eq!(left, [9, 9, 8], "{:?}", caller.store);
    }
}

/// L18: quota × window has more digits than a double holds.
#[test]
fn a_sliding_window_counter_is_exact_to_the_unit_and_the_microsecond_however_large_it_is() {
    let quotas = prop_oneof![
        select(vec![LARGEST, LARGEST - 1, 1 << 49, 1_000_003, 104_729]),
        1..=LARGEST
    ];
    let windows = select(vec![1, 60, 86_400, 2_678_400, 999_999_937, 1_000_000_000_u64]);
    let cases = (quotas, windows, 0..=1_000_000_u64, 0..1_000_000_u64);
    for_any(300, cases, async |(quota, seconds, used, passed)| {
        let policy = QuotaPolicy::new("counter", quota, Duration::from_secs(seconds));
        let policy = policy.with_algorithm(Algorithm::SlidingWindowCounter);
        let (quota, window) = (u128::from(quota), u128::from(seconds * SECOND));
        let used = quota * u128::from(used) / 1_000_000;
        let passed = window * u128::from(passed) / 1_000_000;
        let start = (u128::from(START) / window + 1) * window + passed;
        for caller in Caller::of_each_store() {
            caller.clock.set(Timestamp::from_micros((start - passed - 1) as u64));
            caller.allowed(&policy, used as u64).await;
            caller.clock.set(Timestamp::from_micros(start as u64));
            let left = (quota * window - used * (window - passed)) / window;
            assert_eq!(u128::from(caller.left(&policy).await), left, "{:?}", caller.store);
            let rejected = caller.acquire(&policy, left as u64 + 1).await;
            assert_eq!(rejected.outcome(), Outcome::Refused, "{:?}", caller.store);
            let Some(wait) = rejected.retry_after() else {
                caller.allowed(&policy, left as u64).await;
                continue;
            };
            caller.step(wait.as_micros() as i64 - 1);
            let rejected = caller.acquire(&policy, left as u64 + 1).await;
            assert_eq!(rejected.outcome(), Outcome::Refused, "{:?}", caller.store);
            caller.step(1);
            caller.allowed(&policy, left as u64 + 1).await;
        }
    });
}

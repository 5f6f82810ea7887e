//! The state of a partition in each store, after charges, settlements, resets and steps of the clock.

use std::{sync::Arc, time::Duration};

use proptest::{prelude::*, sample::select};
use test_kit::memory;
use tower_quota::{
    Algorithm, ChargeTime, Decision, MemoryStore, Outcome, PartitionId, Plan, QuotaPolicy, RedisStore, Settlement,
    Store,
    clock::{Clock, Timestamp},
};

use super::support::{for_any, plan, redis, remaining, somebody};

pub(super) const SECOND: u64 = 1_000_000;

/// The beginning of a minute, of an hour and of a day.
const START: u64 = 1_700_006_400 * SECOND;

const LARGEST: u64 = 999_999_999_999_999;

/// One caller of one store, with a manual clock.
pub(super) struct Caller {
    pub(super) clock: Clock,
    pub(super) store: Arc<dyn Store>,
    pub(super) partition: PartitionId,
}

impl Caller {
    /// One of each store, unknown to it.
    pub(super) fn of_each_store() -> [Self; 2] {
        [false, true].map(|is_in_redis| {
            let clock = Clock::manual(Timestamp::from_micros(START));
            let store: Arc<dyn Store> = match is_in_redis {
                true => Arc::new(redis(&clock)),
                false => Arc::new(memory(&clock)),
            };
            Self {
                clock,
                store,
                partition: somebody(),
            }
        })
    }

    pub(super) fn plan(&self, policies: impl IntoIterator<Item = QuotaPolicy>, cost: u64) -> Plan {
        plan(policies, self.partition, cost)
    }

    pub(super) async fn decide(&self, policy: &QuotaPolicy, cost: u64) -> Decision {
        self.store.decide(self.plan([policy.clone()], cost)).await.unwrap()
    }

    pub(super) async fn allowed(&self, policy: &QuotaPolicy, cost: u64) -> Decision {
        let decision = self.decide(policy, cost).await;
        assert_eq!(decision.outcome(), Outcome::Allowed, "{:?}", self.store);
        decision
    }

    pub(super) async fn settle(&self, settlement: Settlement) {
        self.store.settle(settlement).await.unwrap();
    }

    pub(super) async fn left(&self, policy: &QuotaPolicy) -> u64 {
        remaining(&self.decide(policy, 0).await)[0]
    }

    pub(super) fn step(&self, micros: i64) {
        let moved = self.clock.now().as_micros().saturating_add_signed(micros);
        self.clock.set(Timestamp::from_micros(moved));
    }
}

fn per_minute(quota: u64, algorithm: Algorithm) -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", quota).with_algorithm(algorithm)
}

/// L22: a log that the plan does not name is a separate key in Redis, which cannot be found without its policy.
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
            caller.store.decide(caller.plan(policies, 1)).await.unwrap();
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
            let rejected = caller.decide(&policy, left as u64 + 1).await;
            assert_eq!(rejected.outcome(), Outcome::Rejected, "{:?}", caller.store);
            let Some(wait) = rejected.retry_after() else {
                caller.allowed(&policy, left as u64).await;
                continue;
            };
            caller.step(wait.as_micros() as i64 - 1);
            let rejected = caller.decide(&policy, left as u64 + 1).await;
            assert_eq!(rejected.outcome(), Outcome::Rejected, "{:?}", caller.store);
            caller.step(1);
            caller.allowed(&policy, left as u64 + 1).await;
        }
    });
}

/// All that count units over time, each with ten of them a minute.
pub(super) fn all_algorithms() -> [QuotaPolicy; 7] {
    [
        per_minute(10, Algorithm::TokenBucket),
        per_minute(10, Algorithm::StrictTokenBucket).with_burst_capacity(10),
        per_minute(10, Algorithm::LeakyBucketQueue { max_waiting: 9 }),
        per_minute(10, Algorithm::LeakyBucketMeter),
        per_minute(10, Algorithm::FixedWindow),
        per_minute(10, Algorithm::SlidingWindowCounter),
        per_minute(10, Algorithm::SlidingWindowLog),
    ]
}

/// A charge and another one after a reset, at the same microsecond, later, or by a clock that has stepped back between
/// them.
#[tokio::test]
async fn what_was_charged_before_a_reset_is_not_given_back_after_it() {
    for (policy, micros) in all_algorithms()
        .into_iter()
        .flat_map(|policy| [0, 1, -1, -1_000_000, 3_000_000, -60_000_000].map(|micros| (policy.clone(), micros)))
    {
        for caller in Caller::of_each_store() {
            let before = caller.allowed(&policy, 1).await;
            caller.store.reset(caller.plan([policy.clone()], 1)).await.unwrap();
            caller.step(micros);
            let after = caller.allowed(&policy, 1).await;
            let left = caller.left(&policy).await;
            caller.settle(Settlement::refund_all(&before)).await;
            let context = format!("{:?}, {:?} after {micros}", caller.store, policy.algorithm());
            assert_eq!(caller.left(&policy).await, left, "{context}");
            // The charge after the reset is refunded.
            caller.settle(Settlement::refund_all(&after)).await;
            assert_eq!(caller.left(&policy).await, left + 1, "{context}");
        }
    }
}

/// An administrator refunds the client's charge, and then the client does. Between the two, others charge the same log:
/// at the same microsecond, later, or by a clock that has stepped back.
#[tokio::test]
async fn a_charge_to_a_log_that_is_given_back_twice_takes_no_unit_from_others() {
    let log = per_minute(10, Algorithm::SlidingWindowLog);
    for (micros, others) in [0, 1, -1, 3_000_000, -60_000_000].into_iter().zip([1, 2, 3, 1, 2]) {
        for caller in Caller::of_each_store() {
            // A log with nothing else begins with another number anyway.
            let first = caller.allowed(&log, 1).await;
            let twice = caller.allowed(&log, 1).await;
            let plan = caller.plan([log.clone()], 1);
            caller.settle(Settlement::refund(plan, ChargeTime::Now)).await;
            assert_eq!(caller.left(&log).await, 9, "{:?}", caller.store);
            caller.step(micros);
            for _ in 0..others {
                caller.allowed(&log, 1).await;
            }
            caller.step(-micros);
            let left = caller.left(&log).await;
            caller.settle(Settlement::refund_all(&twice)).await;
            let context = format!("{:?}, {others} others after {micros}", caller.store);
            assert_eq!(caller.left(&log).await, left, "{context}");
            // Other requests can refund their own charges.
            if micros >= -5_000_000 {
                caller.settle(Settlement::refund_all(&first)).await;
                assert_eq!(caller.left(&log).await, left + 1, "{context}");
            }
        }
    }
}

/// A full memory has evicted it, or a server was emptied.
#[tokio::test]
async fn what_a_store_has_lost_is_not_given_back_later() {
    let server = test_kit::RedisServer::start();
    let clock = Clock::manual(Timestamp::from_micros(START));
    let memory = MemoryStore::builder().max_partitions(1).clock(clock.clone());
    let redis = RedisStore::builder(server.url()).clock(clock.clone());
    let stores: [Arc<dyn Store>; 2] = [Arc::new(memory.build().unwrap()), Arc::new(redis.build().unwrap())];
    let policy = QuotaPolicy::per_hour("hour", 10);
    for store in stores {
        let [alice, bob] = [somebody(), somebody()].map(|partition| Caller {
            clock: clock.clone(),
            store: Arc::clone(&store),
            partition,
        });
        let lost = alice.allowed(&policy, 5).await;
        server.command(&["FLUSHALL"]);
        bob.allowed(&policy, 5).await;
        alice.allowed(&policy, 3).await;
        alice.settle(Settlement::refund_all(&lost)).await;
        assert_eq!(alice.left(&policy).await, 7, "{store:?}");
    }
}

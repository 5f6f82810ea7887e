//! A flood of new keys against a full `MemoryStore`: which callers are evicted.
//!
//! In a debug build the store has a 256th of the default cap and the flood a 256th of its keys, so that a fourth of the
//! callers are 64 times as dense; `cargo test -p tower-quota-tests --release --all-features --test layer floods` has
//! the default cap, 600 000 keys and 200 callers.

use std::{ops::Range, slice, time::Duration};

use futures_util::FutureExt;
use tower_quota::{
    Algorithm, Decision, Direction, MemoryStore, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy,
    Scope, Store,
    clock::{Clock, Timestamp},
};

const SCALE: u32 = if cfg!(debug_assertions) { 256 } else { 1 };
const CAP: u32 = 262_144 / SCALE;
const FLOOD: u32 = 600_000 / SCALE;
const CALLERS: u32 = if cfg!(debug_assertions) { 50 } else { 200 };

/// When the callers have used up their quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    LongBefore,
    JustBefore,
    Amid,
}

/// Callers who use up a quota, and a flood of keys that do not.
struct Scene {
    clock: Clock,
    flooded: MemoryStore,
    /// Has seen the callers only.
    spared: MemoryStore,
    callers: PolicySet,
    caller_cost: u64,
    flood: PolicySet,
    flood_cost: u64,
    flood_bytes: u64,
    requests_per_key: u32,
}

impl Scene {
    fn new(callers: &[QuotaPolicy], flood: &[QuotaPolicy]) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let flooded = MemoryStore::builder().max_partitions(CAP as usize).clock(clock.clone());
        Self {
            flooded: flooded.build().unwrap(),
            spared: MemoryStore::builder().clock(clock.clone()).build().unwrap(),
            clock,
            callers: PolicySet::new(callers.iter().cloned()).unwrap(),
            caller_cost: 1,
            flood: PolicySet::new(flood.iter().cloned()).unwrap(),
            flood_cost: 1,
            flood_bytes: 0,
            requests_per_key: 1,
        }
    }

    /// The flood hits the very policies that the callers have.
    fn of(policies: &[QuotaPolicy]) -> Self {
        Self::new(policies, policies)
    }

    fn ask(&self, caller: u32) -> [Decision; 2] {
        let plan = Plan::new(self.callers.clone(), partition("caller", caller), self.caller_cost);
        [&self.flooded, &self.spared].map(|store| acquire(store, plan.clone()))
    }

    /// Until a request is rejected by the policy with the longest window.
    fn exhaust(&self, caller: u32) {
        for _ in 0..1_000 {
            let [decision, _] = self.ask(caller);
            if decision.outcome() == Outcome::Rejected {
                let longest = decision.allowances().max_by_key(|own| own.policy().window());
                if longest.unwrap().remaining() < self.caller_cost {
                    return;
                }
                self.clock.advance(Duration::from_secs(1));
            }
        }
        panic!("caller {caller} is never rejected");
    }

    fn flood(&self, keys: Range<u32>) {
        for key in keys {
            let plan = Plan::new(self.flood.clone(), partition("flood", key), self.flood_cost);
            let plan = plan.with_content_bytes(self.flood_bytes, 0);
            for _ in 0..self.requests_per_key {
                acquire(&self.flooded, plan.clone());
            }
        }
    }

    /// The number of callers that get another answer than they would without the flood.
    fn forgotten(self, when: When) -> u32 {
        let keys_per_caller = FLOOD / CALLERS;
        if when != When::Amid {
            (0..CALLERS).for_each(|caller| self.exhaust(caller));
        }
        if when == When::LongBefore {
            self.clock.advance(Duration::from_secs(600));
        }
        for caller in 0..CALLERS {
            self.flood(caller * keys_per_caller..(caller + 1) * keys_per_caller);
            if when == When::Amid {
                self.exhaust(caller);
            }
            // Ten seconds in all.
            self.clock.advance(Duration::from_millis(50));
        }
        assert!(self.flooded.partitions() > CAP as usize / 10 * 9);
        let told = |decision: &Decision| {
            let left: Vec<u64> = decision.allowances().map(|allowance| allowance.remaining()).collect();
            (decision.outcome(), left)
        };
        let is_forgotten = |caller: &u32| {
            let [flooded, spared] = self.ask(*caller);
            told(&flooded) != told(&spared)
        };
        (0..CALLERS).filter(is_forgotten).count() as u32
    }

    /// Asserts that no caller is evicted, whether the callers come before or during the flood.
    fn assert_that_nobody_is_forgotten(scene: impl Fn() -> Self) {
        let forgotten = [When::LongBefore, When::JustBefore, When::Amid].map(|when| scene().forgotten(when));
        assert_eq!(
            forgotten, [0; 3],
            "of {CALLERS} callers long before, just before and amid the flood"
        );
    }
}

fn partition(kind: &'static str, number: u32) -> PartitionId {
    Scope::new("flood").partition(&PartitionKey::new(kind, number.to_be_bytes()))
}

fn acquire(store: &MemoryStore, plan: Plan) -> Decision {
    store.decide(plan).now_or_never().unwrap().unwrap()
}

/// Ten units in a day of whichever algorithm.
fn ten_a_day(algorithm: Algorithm) -> QuotaPolicy {
    QuotaPolicy::per_day("day", 10).with_algorithm(algorithm)
}

/// Separate tests, so that they run in parallel.
macro_rules! no_exhausted_caller_is_forgotten {
    ($($name:ident: $policies:expr,)*) => {$(
        #[test]
        fn $name() {
            Scene::assert_that_nobody_is_forgotten(|| Scene::of(&$policies));
        }
    )*};
}

no_exhausted_caller_is_forgotten! {
    a_flood_of_one_request_keys_forgets_no_exhausted_token_bucket: [ten_a_day(Algorithm::TokenBucket)],
    a_flood_of_one_request_keys_forgets_no_exhausted_strict_token_bucket:
        [ten_a_day(Algorithm::StrictTokenBucket).with_burst_capacity(5)],
    a_flood_of_one_request_keys_forgets_no_exhausted_fixed_window: [ten_a_day(Algorithm::FixedWindow)],
    a_flood_of_one_request_keys_forgets_no_exhausted_sliding_window_counter:
        [ten_a_day(Algorithm::SlidingWindowCounter)],
    a_flood_of_one_request_keys_forgets_no_exhausted_sliding_window_log: [ten_a_day(Algorithm::SlidingWindowLog)],
    // The bucket holds only one request.
    a_flood_of_one_request_keys_forgets_no_exhausted_leaky_bucket_meter: [ten_a_day(Algorithm::LeakyBucketMeter)],
    a_flood_of_one_request_keys_forgets_no_exhausted_leaky_bucket_queue:
        [ten_a_day(Algorithm::LeakyBucketQueue { max_waiting: 9 })],
    a_flood_of_one_request_keys_forgets_no_caller_whose_quota_is_one:
        [QuotaPolicy::per_day("day", 1).with_algorithm(Algorithm::FixedWindow)],
    // One request exhausts the policy `second`, but only for a second.
    a_flood_of_one_request_keys_forgets_no_exhausted_caller_of_several_policies: [
        QuotaPolicy::per_second("second", 1),
        QuotaPolicy::per_minute("minute", 5).with_algorithm(Algorithm::SlidingWindowCounter),
        ten_a_day(Algorithm::SlidingWindowLog),
    ],
}

/// A caller of one policy counts for no less because another one has a longer window or a larger quota.
#[test]
fn a_flood_of_other_policies_forgets_no_exhausted_caller() {
    let minute = QuotaPolicy::per_minute("minute", 100).with_algorithm(Algorithm::FixedWindow);
    let day = QuotaPolicy::per_day("day", 2).with_algorithm(Algorithm::SlidingWindowLog);
    for (callers, flood) in [(&minute, &day), (&day, &minute)] {
        let scene = || Scene::new(slice::from_ref(callers), slice::from_ref(flood));
        let forgotten = [When::JustBefore, When::Amid].map(|when| scene().forgotten(when));
        assert_eq!(forgotten, [0; 2]);
    }
}

/// The client chooses the cost, and one request of a key of the flood takes all that there is.
#[test]
fn a_flood_of_requests_that_cost_a_whole_quota_forgets_no_caller_who_was_rejected() {
    Scene::assert_that_nobody_is_forgotten(|| Scene {
        caller_cost: 3,
        flood_cost: 10,
        ..Scene::of(&[ten_a_day(Algorithm::SlidingWindowLog)])
    });
    let bytes = QuotaPolicy::per_day("bytes", 1_000_000).with_content_bytes(Direction::Request);
    Scene::assert_that_nobody_is_forgotten(|| Scene {
        flood_bytes: 1_000_000,
        ..Scene::new(&[ten_a_day(Algorithm::TokenBucket)], slice::from_ref(&bytes))
    });
}

#[test]
fn a_flood_that_uses_half_of_each_keys_quota_forgets_no_exhausted_caller() {
    Scene::assert_that_nobody_is_forgotten(|| Scene {
        requests_per_key: 5,
        ..Scene::of(&[ten_a_day(Algorithm::FixedWindow)])
    });
}

/// A lease that is forgotten would let one request too many in.
#[test]
fn a_flood_forgets_no_slots_that_are_held() {
    let slots = [QuotaPolicy::concurrent("slots", 2)];
    Scene::assert_that_nobody_is_forgotten(|| Scene::new(&slots, &[ten_a_day(Algorithm::SlidingWindowLog)]));
    Scene::assert_that_nobody_is_forgotten(|| Scene {
        requests_per_key: 11,
        ..Scene::new(&slots, &[ten_a_day(Algorithm::FixedWindow)])
    });
}

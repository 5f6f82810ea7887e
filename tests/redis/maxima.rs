//! The most that passes in any stretch of time as long as the window, for each algorithm: never more, and as much where
//! a client tries.
//!
//! A stretch has its beginning and not its end: what passes exactly a window after something else is in another one.

use std::time::Duration;

use proptest::{prelude::*, sample::select};
use test_kit::memory;
use tower_quota::{
    Algorithm, MemoryStore, Outcome, QuotaPolicy, RedisStore, Store,
    clock::{Clock, Timestamp},
};

use super::support::{plan, redis, runtime, somebody, try_for_any};

const SECOND: u64 = 1_000_000;

/// The beginning of a minute, and of all shorter windows here.
const START: u64 = 1_700_000_040 * SECOND;

const RUNS_IN_MEMORY: u32 = 300;
const RUNS_IN_REDIS: u32 = 25;

/// The moment of a request, and its cost.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// This many millionths of a window after the previous arrival.
    After(u64, u64),
    /// As soon as it passes, which is the most that one can do.
    AsSoonAsItPasses(u64),
    /// In the last microsecond of a window that begins at a multiple of its length.
    BeforeTheBorder(u64),
}

/// Units that passed, and when.
type Passed = Vec<(u64, u64)>;

struct Bench {
    clock: Clock,
    memory: MemoryStore,
    redis: RedisStore,
}

impl Bench {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(START));
        Self {
            memory: memory(&clock),
            redis: redis(&clock),
            clock,
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// A caller comes at these moments. What passes passes when it leaves.
    async fn passed(&self, store: &dyn Store, policy: &QuotaPolicy, arrivals: &[Arrival]) -> Passed {
        let caller = somebody();
        let window = policy.window().unwrap().as_micros() as u64;
        self.clock.set(Timestamp::from_micros(START));
        let mut passed = vec![];
        for arrival in arrivals {
            let (cost, is_patient) = match *arrival {
                Arrival::After(millionths, cost) => {
                    self.advance(window * millionths / SECOND);
                    (cost, false)
                }
                Arrival::BeforeTheBorder(cost) => {
                    self.advance(window - 1 - self.now() % window);
                    (cost, false)
                }
                Arrival::AsSoonAsItPasses(cost) => (cost, true),
            };
            let plan = || plan([policy.clone()], caller, cost);
            let mut decision = store.decide(plan()).await.unwrap();
            if let Some(wait) = decision.retry_after().filter(|_| is_patient) {
                self.advance(wait.as_micros() as u64);
                decision = store.decide(plan()).await.unwrap();
            }
            if decision.outcome() == Outcome::Allowed {
                passed.push((self.now() + decision.delay().as_micros() as u64, cost));
            }
        }
        passed
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }
}

fn most_in_a_window(passed: &Passed, window: Duration) -> u64 {
    let window = window.as_micros() as u64;
    let from = |start: u64| {
        passed
            .iter()
            .filter(move |(at, _)| (start..start + window).contains(at))
    };
    let most = passed
        .iter()
        .map(|(start, _)| from(*start).map(|(_, units)| units).sum());
    most.max().unwrap_or(0)
}

fn arrivals(count: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let cost = || prop_oneof![4 => Just(1), 1 => 1..=12_u64];
    let arrival = prop_oneof![
        3 => cost().prop_map(|cost| Arrival::After(0, cost)),
        3 => (0..200_000_u64, cost()).prop_map(|(millionths, cost)| Arrival::After(millionths, cost)),
        1 => (0..2_000_000_u64, cost()).prop_map(|(millionths, cost)| Arrival::After(millionths, cost)),
        4 => cost().prop_map(Arrival::AsSoonAsItPasses),
        1 => cost().prop_map(Arrival::BeforeTheBorder),
    ];
    proptest::collection::vec(arrival, 1..count)
}

/// No run lets more pass than the number which belongs to its policy and to the dearest request.
fn prove(make: impl Fn(u64, Duration, u64) -> QuotaPolicy, most: impl Fn(&QuotaPolicy, u64) -> u64) {
    let bench = Bench::new();
    let stores: [(&dyn Store, u32); 2] = [(&bench.memory, RUNS_IN_MEMORY), (&bench.redis, RUNS_IN_REDIS)];
    for (store, cases) in stores {
        let policy = (1..=30_u64, select(vec![1, 7, 60]), 1..=40_u64);
        try_for_any(
            cases,
            (policy, arrivals(150)),
            async |((quota, seconds, other), arrivals)| {
                let policy = make(quota, Duration::from_secs(seconds), other);
                let passed = bench.passed(store, &policy, &arrivals).await;
                let dearest = passed.iter().map(|(_, units)| *units).max().unwrap_or(0);
                let (seen, most) = (
                    most_in_a_window(&passed, policy.window().unwrap()),
                    most(&policy, dearest),
                );
                prop_assert!(
                    seen <= most,
                    "{} of {} pass: {:?} {:?} {:?}",
                    seen,
                    most,
                    store,
                    policy,
                    passed
                );
                Ok(())
            },
        );
    }
}

/// The units that pass in the best window for a client that comes at these moments, in both stores.
fn reach(policy: QuotaPolicy, arrivals: &[Arrival], most: u64) {
    let (bench, runtime) = (Bench::new(), runtime());
    for store in [&bench.memory as &dyn Store, &bench.redis] {
        let passed = runtime.block_on(bench.passed(store, &policy, arrivals));
        let seen = most_in_a_window(&passed, policy.window().unwrap());
        assert_eq!(seen, most, "{store:?}: {passed:?}");
    }
}

/// L19: as documented for the default, at most `q` at once plus `q` per window in any interval.
#[test]
fn in_any_time_a_token_bucket_lets_no_more_pass_than_its_burst_and_what_its_rate_gives() {
    let bench = Bench::new();
    let policy = (1..=30_u64, select(vec![1, 7, 60]), proptest::option::of(1..=40_u64));
    try_for_any(
        RUNS_IN_MEMORY,
        (policy, arrivals(150)),
        async |((quota, seconds, capacity), arrivals)| {
            let policy = QuotaPolicy::new("policy", quota, Duration::from_secs(seconds));
            let policy = capacity.map_or(policy.clone(), |capacity| policy.with_burst_capacity(capacity));
            let passed = bench.passed(&bench.memory, &policy, &arrivals).await;
            for (first, (start, _)) in passed.iter().enumerate() {
                let mut units = 0;
                for (at, cost) in &passed[first..] {
                    units += cost;
                    let most = policy.burst_capacity() + (at - start) * quota / (seconds * SECOND);
                    prop_assert!(units <= most, "{} in {} µs: {:?}", units, at - start, policy);
                }
            }
            Ok(())
        },
    );
    // 7 per second: 7 at once, and 13 in the second that begins then.
    reach(QuotaPolicy::per_second("policy", 7), &[Arrival::After(0, 7)], 7);
    reach(QuotaPolicy::per_second("policy", 7), &greedy(40), 13);
}

fn of(algorithm: Algorithm) -> impl Fn(u64, Duration, u64) -> QuotaPolicy {
    move |quota, window, _| QuotaPolicy::new("policy", quota, window).with_algorithm(algorithm)
}

fn minute() -> QuotaPolicy {
    QuotaPolicy::per_minute("policy", 10)
}

fn greedy(times: usize) -> Vec<Arrival> {
    vec![Arrival::AsSoonAsItPasses(1); times]
}

/// L19
#[test]
fn a_token_bucket_lets_its_burst_and_its_quota_pass() {
    prove(
        |quota, window, capacity| QuotaPolicy::new("policy", quota, window).with_burst_capacity(capacity),
        |policy, _| policy.burst_capacity() + policy.quota() - 1,
    );
    // The last unit of the quota comes at the moment at which the next window begins.
    reach(minute().with_burst_capacity(5), &greedy(40), 14);
}

#[test]
fn a_strict_token_bucket_lets_its_quota_pass() {
    let strict = |quota: u64, window, capacity: u64| {
        let policy = QuotaPolicy::new("policy", quota, window).with_algorithm(Algorithm::StrictTokenBucket);
        if capacity > 30 {
            policy
        } else {
            policy.with_burst_capacity(capacity.min(quota))
        }
    };
    prove(strict, |policy, _| policy.quota());
    for capacity in [1, 3, 5, 10, 40] {
        reach(strict(10, Duration::from_secs(60), capacity), &greedy(40), 10);
    }
}

/// L16
#[test]
fn a_fixed_window_lets_its_quota_pass_twice_around_a_border() {
    prove(of(Algorithm::FixedWindow), |policy, _| 2 * policy.quota());
    let arrivals = [Arrival::BeforeTheBorder(10), Arrival::AsSoonAsItPasses(10)];
    reach(minute().with_algorithm(Algorithm::FixedWindow), &arrivals, 20);
}

/// L16: counted by the number of the minute, as the documentation has it.
#[test]
fn a_fixed_window_lets_its_quota_pass_between_two_borders() {
    let bench = Bench::new();
    let policy = minute().with_algorithm(Algorithm::FixedWindow);
    let passed = runtime().block_on(bench.passed(&bench.memory, &policy, &greedy(95)));
    let in_minute = |minute: u64| passed.iter().filter(|(at, _)| at / (60 * SECOND) == minute).count();
    let first = START / (60 * SECOND);
    let counts: Vec<_> = (first..first + 10).map(in_minute).collect();
    assert_eq!(counts, [10, 10, 10, 10, 10, 10, 10, 10, 10, 5]);
}

/// L18
#[test]
fn a_sliding_window_counter_lets_less_than_twice_its_quota_pass() {
    prove(of(Algorithm::SlidingWindowCounter), |policy, _| 2 * policy.quota() - 1);
    // A whole quota in the last microsecond of one window, and then everything that the next window admits over time.
    let mut arrivals = vec![Arrival::BeforeTheBorder(10)];
    arrivals.extend(greedy(12));
    reach(minute().with_algorithm(Algorithm::SlidingWindowCounter), &arrivals, 19);
}

/// L17
#[test]
fn a_sliding_window_log_lets_its_quota_pass() {
    prove(of(Algorithm::SlidingWindowLog), |policy, _| policy.quota());
    let arrivals = [Arrival::BeforeTheBorder(10), Arrival::AsSoonAsItPasses(10)];
    reach(minute().with_algorithm(Algorithm::SlidingWindowLog), &arrivals, 10);
}

#[test]
fn a_leaky_bucket_that_rejects_lets_its_quota_pass_one_by_one() {
    prove(of(Algorithm::LeakyBucketMeter), |policy, _| policy.quota());
    reach(minute().with_algorithm(Algorithm::LeakyBucketMeter), &greedy(40), 10);
}

/// L20: a request leaves as a whole, so that a dear one takes the places of those that would have come behind it.
#[test]
fn of_a_leaky_bucket_that_queues_its_quota_leaves_and_the_rest_of_the_dearest_request() {
    let queue = |quota, window, max_waiting| {
        QuotaPolicy::new("policy", quota, window).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting })
    };
    prove(queue, |policy, dearest| (policy.quota() + dearest).saturating_sub(1));
    let minute = Duration::from_secs(60);
    reach(queue(10, minute, 20), &greedy(60), 10);
    let mut arrivals = greedy(9);
    arrivals.push(Arrival::AsSoonAsItPasses(10));
    reach(queue(10, minute, 20), &arrivals, 19);
}

//! The script, the Rust step and an independent model give the same numbers, whatever is thrown at them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::{collections::HashMap, future::Future, time::Duration};

use futures_util::future::join_all;
use proptest::{prelude::*, sample::select, test_runner::FileFailurePersistence};
use tower_quota::{
    CheckedPolicies, Decision, MemoryStore, Outcome, PartitionId, PartitionKey, Plan, QuotaPolicy, RedisStore, Scope,
    Store,
    clock::{Clock, Timestamp},
};

/// 250 runs of 400 steps each.
const RUNS: u32 = 250;
const STEPS: usize = 400;

const START: u64 = 1_700_000_000_000_000;

/// A token bucket in plain fractions: what is *left*, in units times the window's microseconds, refilled before each
/// use. The crate counts what is *used*, in units divided by a common divisor.
struct Model {
    quota: i128,
    window: i128,
    capacity: i128,
    left: i128,
}

impl Model {
    fn new(policy: &QuotaPolicy) -> Self {
        let (window, capacity) = (
            policy.window().unwrap().as_micros() as i128,
            i128::from(policy.burst_capacity()),
        );
        Self {
            quota: policy.quota().into(),
            window,
            capacity,
            left: capacity * window,
        }
    }

    fn left_after(&self, elapsed: i128) -> i128 {
        (self.left + elapsed * self.quota).min(self.capacity * self.window)
    }

    /// Microseconds until `cost` units are there; `None` if they never are.
    fn wait(&self, left: i128, cost: i128) -> Option<i128> {
        let missing = (cost * self.window - left).max(0);
        (cost <= self.capacity).then_some((missing + self.quota - 1) / self.quota)
    }
}

/// All windows of one partition.
struct Partition {
    models: Vec<Model>,
    at: u64,
}

/// What a decision says, in numbers that can be compared.
#[derive(Debug, PartialEq)]
struct Verdict {
    is_allowed: bool,
    remaining: Vec<i128>,
    resets: Vec<i128>,
    waits: Vec<Option<i128>>,
    retry_after: Option<i128>,
}

impl Partition {
    fn new(policies: &[QuotaPolicy]) -> Self {
        Self {
            models: policies.iter().map(Model::new).collect(),
            at: 0,
        }
    }

    fn acquire(&mut self, now: u64, cost: u64) -> Verdict {
        // What a clock has written that stood later belongs to now.
        self.at = self.at.min(now);
        let elapsed = i128::from(now - self.at);
        let cost = i128::from(cost);
        let before: Vec<i128> = self.models.iter().map(|model| model.left_after(elapsed)).collect();
        let fits = |(model, left): (&Model, &i128)| cost * model.window <= *left;
        let is_allowed = self.models.iter().zip(&before).all(fits);
        if is_allowed && cost > 0 {
            for (model, left) in self.models.iter_mut().zip(&before) {
                model.left = left - cost * model.window;
            }
            self.at = now;
        }

        let mut verdict = Verdict {
            is_allowed,
            remaining: vec![],
            resets: vec![],
            waits: vec![],
            retry_after: None,
        };
        let mut is_never = false;
        for (model, left) in self.models.iter().zip(before) {
            let violated = !fits((model, &left));
            let left = if is_allowed { left - cost * model.window } else { left };
            let wait = if violated { model.wait(left, cost) } else { None };
            let reset = wait.unwrap_or_else(|| match left / model.window {
                0 => model.wait(left, 1).expect("every capacity is at least one"),
                units => (units * model.window + model.quota - 1) / model.quota,
            });
            is_never |= violated && wait.is_none();
            verdict.remaining.push(left / model.window);
            verdict.resets.push(reset);
            verdict.waits.push(wait);
            verdict.retry_after = verdict.retry_after.max(wait);
        }
        if is_never {
            verdict.retry_after = None;
        }
        verdict
    }
}

fn micros(duration: Duration) -> i128 {
    duration.as_micros() as i128
}

fn verdict(decision: &Decision) -> Verdict {
    Verdict {
        is_allowed: decision.outcome() == Outcome::Allowed,
        remaining: decision
            .allowances()
            .map(|allowance| allowance.remaining().into())
            .collect(),
        resets: decision
            .allowances()
            .map(|allowance| micros(allowance.reset().unwrap()))
            .collect(),
        waits: decision
            .allowances()
            .map(|allowance| allowance.retry_after().map(micros))
            .collect(),
        retry_after: decision.retry_after().map(micros),
    }
}

#[derive(Clone, Debug)]
enum Pass {
    Nothing,
    Micros(u64),
    /// The clock of a promoted primary may be behind.
    Back(u64),
    /// One microsecond less than the last refusal has asked to wait.
    AlmostTheWait,
    TheWait,
}

#[derive(Clone, Debug)]
struct Step {
    pass: Pass,
    partition: u64,
    cost: u64,
}

fn policies() -> impl Strategy<Value = Vec<QuotaPolicy>> {
    let quota = prop_oneof![
        1..=20_u64,
        1..=5_000_u64,
        select(vec![7, 997, 30_000, 104_729, 1_000_003])
    ];
    let window = select(vec![1, 2, 7, 60, 3_600, 86_400, 2_678_400_u64]);
    let burst_capacity = proptest::option::of(1..=50_u64);
    proptest::collection::vec((quota, window, burst_capacity), 1..=4).prop_map(|policies| {
        let policy = |(index, (quota, window, capacity)): (usize, (u64, u64, Option<u64>))| {
            // Odd quotas of long windows are slowed down a little, as a unit test of the crate shows.
            let window = if is_exact(quota, window, capacity.unwrap_or(quota)) {
                window
            } else {
                60
            };
            let policy = QuotaPolicy::new(format!("policy {index}"), quota, Duration::from_secs(window));
            capacity.map_or(policy.clone(), |capacity| policy.with_burst_capacity(capacity))
        };
        policies.into_iter().enumerate().map(policy).collect()
    })
}

/// Whether a full bucket, in units times a common divisor less than the window's microseconds, fits into a double.
fn is_exact(quota: u64, window: u64, capacity: u64) -> bool {
    let window = window * 1_000_000;
    let divisor = (1..=quota)
        .rev()
        .find(|divisor| quota.is_multiple_of(*divisor) && window.is_multiple_of(*divisor))
        .unwrap_or(1);
    u128::from(capacity) * u128::from(window / divisor) < 1 << 53
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pass = prop_oneof![
        4 => Just(Pass::Nothing),
        2 => (0..2_000_u64).prop_map(Pass::Micros),
        2 => (0..2_000_000_u64).prop_map(Pass::Micros),
        1 => (0..200_000_000_000_u64).prop_map(Pass::Micros),
        1 => (0..3_000_000_u64).prop_map(Pass::Back),
        2 => Just(Pass::AlmostTheWait),
        2 => Just(Pass::TheWait),
    ];
    let cost = prop_oneof![6 => Just(1), 1 => Just(0), 3 => 1..=12_u64, 1 => 1..=6_000_u64];
    let step = (pass, 0..3_u64, cost).prop_map(|(pass, partition, cost)| Step { pass, partition, cost });
    proptest::collection::vec(step, STEPS)
}

fn partition(scope: &str, number: u64) -> PartitionId {
    Scope::new(scope).partition(&PartitionKey::new("number", number.to_be_bytes()))
}

/// A scope that nobody else uses on the server that all tests of this program share.
fn fresh_scope() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("scope {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn memory(clock: &Clock) -> MemoryStore {
    MemoryStore::builder().clock(clock.clone()).build().unwrap()
}

fn stores() -> (Clock, MemoryStore, RedisStore) {
    let clock = Clock::manual(Timestamp::from_micros(START));
    let memory = memory(&clock);
    let redis = RedisStore::builder(support::shared_server().url())
        .connections(1)
        .clock(clock.clone())
        .build()
        .unwrap();
    (clock, memory, redis)
}

async fn run(policies: Vec<QuotaPolicy>, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (clock, _, redis) = stores();
    let scope = fresh_scope();
    let checked = CheckedPolicies::new(policies.clone()).unwrap();
    // A memory store for each partition: in one store, a new partition clears away another that is full again, and if the
    // clock then steps back to before it was full, only the model would still know.
    let mut memories = HashMap::new();
    let mut model = HashMap::new();
    let mut last_wait = 0;
    for step in steps {
        match step.pass {
            Pass::Nothing => {}
            Pass::Micros(micros) => clock.advance(Duration::from_micros(micros)),
            Pass::Back(micros) => clock.set(Timestamp::from_micros(clock.now().as_micros() - micros)),
            Pass::AlmostTheWait => clock.advance(Duration::from_micros(u64::saturating_sub(last_wait, 1))),
            Pass::TheWait => clock.advance(Duration::from_micros(last_wait)),
        }
        let plan = Plan::new(checked.clone(), partition(&scope, step.partition), step.cost);
        let memory = memories.entry(step.partition).or_insert_with(|| memory(&clock));
        let in_memory = verdict(&memory.acquire(plan.clone()).await.unwrap());
        let in_redis = verdict(&redis.acquire(plan).await.unwrap());
        let partition = model.entry(step.partition).or_insert_with(|| Partition::new(&policies));
        let expected = partition.acquire(clock.now().as_micros(), step.cost);
        prop_assert_eq!(&in_memory, &expected, "in memory, {:?}", step);
        prop_assert_eq!(&in_redis, &expected, "in Redis, {:?}", step);
        last_wait = expected.retry_after.map_or(0, |wait| wait as u64);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: RUNS,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// L2, L19, L22, L23, L26, L27, B4, X12, X14
    #[test]
    fn script_and_rust_step_and_model_agree_on_every_number(policies in policies(), steps in steps()) {
        block_on(run(policies, steps))?;
    }

    /// D18, L4: exact to the microsecond, for all windows together.
    #[test]
    fn waiting_for_retry_after_is_enough_and_one_microsecond_less_is_not(
        policies in policies(),
        before in proptest::collection::vec((0..5_000_000_u64, 1..=30_u64), 0..40),
        cost in 1..=30_u64,
    ) {
        block_on(async {
            let (clock, memory, redis) = stores();
            let scope = fresh_scope();
            let checked = CheckedPolicies::new(policies).unwrap();
            let stores: [&dyn Store; 2] = [&memory, &redis];
            for (pause, cost) in before {
                clock.advance(Duration::from_micros(pause));
                for store in stores {
                    store.acquire(Plan::new(checked.clone(), partition(&scope, 0), cost)).await.unwrap();
                }
            }
            let plan = Plan::new(checked, partition(&scope, 0), cost);
            let now = clock.now();
            for store in stores {
                clock.set(now);
                let mut decision = store.acquire(plan.clone()).await.unwrap();
                for _ in 0..200 {
                    if decision.outcome() == Outcome::Refused {
                        break;
                    }
                    decision = store.acquire(plan.clone()).await.unwrap();
                }
                // Nothing refuses so large a quota in 200 requests, or nothing ever passes.
                let Some(wait) = decision.retry_after() else { continue };
                let due = clock.now().saturating_add(wait);
                clock.set(Timestamp::from_micros(due.as_micros() - 1));
                prop_assert_eq!(store.acquire(plan.clone()).await.unwrap().outcome(), Outcome::Refused);
                clock.set(due);
                prop_assert_eq!(store.acquire(plan.clone()).await.unwrap().outcome(), Outcome::Allowed);
            }
            Ok(())
        })?;
    }
}

/// L25, L26
#[test]
fn every_quota_from_1_to_1000_per_second_admits_its_number_at_one_instant() {
    block_on(async {
        let (_, memory, redis) = stores();
        let scope = fresh_scope();
        for quota in 1..=1_000 {
            let policies = CheckedPolicies::new([QuotaPolicy::per_second("second", quota)]).unwrap();
            let plan = Plan::new(policies, partition(&scope, quota), 1);
            for store in [&memory as &dyn Store, &redis] {
                let decisions = join_all((0..quota + 2).map(|_| store.acquire(plan.clone()))).await;
                let admitted = decisions.iter().filter(|decision| {
                    decision
                        .as_ref()
                        .is_ok_and(|decision| decision.outcome() == Outcome::Allowed)
                });
                assert_eq!(admitted.count() as u64, quota, "{store:?}");
            }
        }
    });
}

//! The script, the Rust steps and an independent model return the same numbers for any sequence of steps.
//!
//! Each run draws two configurations of a service, individual quotas of its callers, and steps. The policies of a caller
//! with individual quotas are compared with those of a limiter. The runs are new each time, and `PROPTEST_CASES` is their
//! number: see `CONTRIBUTING.md`.

use std::{collections::HashMap, env, time::Duration};

use futures_util::future::join_all;
use proptest::{prelude::*, sample::select, test_runner::FileFailurePersistence};
use test_kit::memory;
use tower_quota::{
    Algorithm, ChargeTime, Decision, Direction, Limiter, LimiterBuilder, MemoryStore, Outcome, PartitionId, Plan,
    PolicySet, QuotaPolicy, QuotaUnit, RedisStore, Settlement, Store, StoreFuture,
    calendar::{CalendarPeriod, CalendarWindow, Weekday},
    clock::{Clock, Timestamp},
    redis::{AsyncConnectionConfig, Client},
};

use super::model::{
    Actual, BOUNDS, Contract, Kept, OVERAGES, Partition, Receipt, Request, Verdict, is_converted_exactly,
    is_counted_exactly, renumbered,
};
use super::support::{fresh_scope, plan, runtime, set, somebody, user};

/// 250 runs of up to 500 steps each.
const RUNS: u32 = 250;
const STEPS: usize = 500;

const START: u64 = 1_700_000_000_000_000;
/// Doubles count microseconds until the year 2255, and a few waits of thirty years would lead beyond it.
const LATEST: u64 = 1 << 52;

/// Longer than the test; the clock jumps further.
const LEASE_TIME: Duration = Duration::from_secs(86_400);

/// Names of policies, each with a set of policies to itself.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

const TIME_ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];

fn is_sound(policy: &QuotaPolicy) -> bool {
    is_counted_exactly(policy) && PolicySet::new([policy.clone()]).is_ok()
}

fn with_algorithm(policy: QuotaPolicy, capacity: Option<u64>, places: u64, algorithm: u8) -> QuotaPolicy {
    let with_capacity = |policy: QuotaPolicy, most: u64| match capacity {
        Some(capacity) => policy.with_burst_capacity(capacity.min(most)),
        None => policy,
    };
    match algorithm {
        0..3 => with_capacity(policy, u64::MAX),
        3 => {
            let quota = policy.quota();
            with_capacity(policy.with_algorithm(Algorithm::StrictTokenBucket), quota)
        }
        4 => policy.with_algorithm(Algorithm::LeakyBucketMeter),
        5..7 => policy.with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: places }),
        7 => policy.with_algorithm(Algorithm::FixedWindow),
        8..10 => policy.with_algorithm(Algorithm::SlidingWindowCounter),
        _ => policy.with_algorithm(Algorithm::SlidingWindowLog),
    }
}

/// Calendar windows. In Apia, a day is half over when the days of the other time zones begin.
fn dated(name: &'static str) -> impl Strategy<Value = QuotaPolicy> {
    let saturday = CalendarPeriod::Week {
        begins: Weekday::Saturday,
    };
    let others = select(vec![CalendarPeriod::Day, CalendarPeriod::WEEK, saturday]);
    let periods = prop_oneof![others, (1..=31_u8).prop_map(|begins| CalendarPeriod::Month { begins })];
    let time_zones = [&TIME_ZONES[..], &["Pacific/Apia"]].concat();
    let quota = prop_oneof![3 => 1..=20_u64, 1 => 1..=5_000_u64, 1 => Just(900_000_000_000)];
    let more = (periods, select(time_zones), 0..12_u8);
    (quota, more).prop_map(move |(quota, (period, time_zone, unit))| {
        let window = CalendarWindow::new(period, time_zone);
        with_unit(QuotaPolicy::per_calendar(name, quota, window), unit)
    })
}

fn with_unit(policy: QuotaPolicy, unit: u8) -> QuotaPolicy {
    match unit {
        0 => policy.with_content_bytes(Direction::Request),
        1 => policy.with_content_bytes(Direction::Response),
        2 => policy.with_content_bytes(Direction::Both),
        3 | 4 => policy.with_unit("tokens"),
        _ => policy,
    }
}

/// A policy over time, of any algorithm.
fn timed(name: &'static str) -> impl Strategy<Value = QuotaPolicy> {
    let quota = prop_oneof![
        3 => 1..=20_u64,
        2 => 1..=5_000_u64,
        1 => select(vec![7, 997, 30_000, 104_729, 1_000_003, 4_000_000_000, 900_000_000_000])
    ];
    let window = select(vec![1, 2, 7, 60, 60, 3_600, 86_400, 2_678_400_u64]);
    let more = (proptest::option::of(1..=50_u64), 1..=30_u64, 0..12_u8, 0..12_u8);
    (quota, window, more).prop_map(move |(quota, window, (capacity, places, algorithm, unit))| {
        let policy = |quota, window| {
            let policy = QuotaPolicy::new(name, quota, Duration::from_secs(window));
            with_unit(with_algorithm(policy, capacity, places, algorithm), unit)
        };
        // Odd quotas of long windows are slowed down a little, as a unit test of the crate shows.
        [policy(quota, window), policy(quota, 60), policy(quota % 5_000 + 1, 60)]
            .into_iter()
            .find(is_sound)
            .unwrap_or_else(|| QuotaPolicy::per_minute(name, quota % 5_000 + 1))
    })
}

fn policy(name: &'static str) -> impl Strategy<Value = QuotaPolicy> {
    let concurrent = (0..=12_u64).prop_map(move |slots| QuotaPolicy::concurrent(name, slots));
    let closed = (1..=30_u64, 0..12_u8)
        .prop_map(move |(places, algorithm)| with_algorithm(QuotaPolicy::per_minute(name, 0), None, places, algorithm));
    let policy = prop_oneof![32 => timed(name), 6 => dated(name), 4 => concurrent, 1 => closed];
    let policy = (policy, prop_oneof![5 => Just(false), 1 => Just(true)])
        .prop_map(|(policy, is_shadow)| if is_shadow { policy.shadow() } else { policy });
    let bounds = prop_oneof![1 => Just(None), 2 => select(BOUNDS.to_vec()).prop_map(Some)];
    (policy, extras(), bounds).prop_map(|(policy, extras, bounds)| {
        let policy = with_extras(policy, extras);
        let bounded = bounds.map(|(least, most)| policy.clone().with_caller_quotas(least..=most));
        bounded.filter(is_sound).unwrap_or(policy)
    })
}

/// The seconds of a lockout, the percentage of an overage, and initial units.
type Extras = (Option<u64>, Option<u32>, Option<u64>);

fn extras() -> impl Strategy<Value = Extras> {
    let lockout = prop_oneof![2 => Just(None), 1 => select(vec![1, 7, 60, 900, 86_400]).prop_map(Some)];
    let overage = proptest::option::of(select(OVERAGES.to_vec()));
    (lockout, overage, proptest::option::of(0..=20_u64))
}

/// Adds a lockout or an overage, and initial units, if the policy supports them.
fn with_extras(policy: QuotaPolicy, (seconds, percent, initial): Extras) -> QuotaPolicy {
    let blocking = seconds.map(|seconds| policy.clone().with_lockout(Duration::from_secs(seconds)));
    let exceeding = percent.map(|percent| policy.clone().with_overage(percent));
    let policy = exceeding.into_iter().chain(blocking).find(is_sound).unwrap_or(policy);
    let beginning = initial.map(|units| policy.clone().with_initial_units(units));
    beginning.filter(is_sound).unwrap_or(policy)
}

/// The change of a policy in a newer configuration.
#[derive(Clone, Debug)]
enum Change {
    Gone,
    Numbers {
        quota: u64,
        capacity: Option<u64>,
        month_begins: u8,
        extras: Extras,
    },
    Other(Box<QuotaPolicy>),
    Same,
}

impl Change {
    fn of(&self, old: &QuotaPolicy) -> Option<QuotaPolicy> {
        let new = match self {
            Self::Gone => return None,
            Self::Same => old.clone(),
            Self::Other(other) => QuotaPolicy::clone(other),
            Self::Numbers {
                quota,
                capacity,
                month_begins,
                extras,
            } => changed(old, *quota, *capacity, *month_begins, *extras),
        };
        // Doubles round where the weights of both are large; another test compares the stores with each other there.
        let is_usable = is_sound(&new) && is_converted_exactly(old, &new);
        Some(if is_usable { new } else { old.clone() })
    }
}

/// The same policy with another quota, burst capacity, number of places, first day of months, lockout and overage.
fn changed(old: &QuotaPolicy, quota: u64, capacity: Option<u64>, begins: u8, extras: Extras) -> QuotaPolicy {
    let is_slots = old.unit() == QuotaUnit::ConcurrentRequests;
    let new = match (old.algorithm(), capacity) {
        (Algorithm::LeakyBucketQueue { .. }, Some(max_waiting)) => {
            renumbered(old, quota, None, None).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting })
        }
        (Algorithm::TokenBucket | Algorithm::StrictTokenBucket, Some(_)) if !is_slots => {
            renumbered(old, quota, capacity, None)
        }
        _ => renumbered(old, if is_slots { quota.min(12) } else { quota }, None, Some(begins)),
    };
    with_extras(new, extras)
}

/// Individual quotas of callers.
fn contracts() -> impl Strategy<Value = Vec<Contract>> {
    let end =
        || prop_oneof![0..200_000_000_000_u64, 0..2_000_000_000_000_u64, Just(LATEST)].prop_map(|end| START + end);
    let number = || prop_oneof![3 => 0..=60_u64, 1 => 1..=6_000_u64];
    let numbers = NAMES.map(|name| {
        let capacity = proptest::option::of(1..=40_u64);
        (Just(name), proptest::option::of(number()), capacity)
    });
    let top_ups = proptest::collection::vec((select(NAMES.to_vec()), number(), end()), 0..3);
    let month_begins = prop_oneof![2 => Just(None), 1 => (1..=31_u8).prop_map(Some)];
    let contract = (numbers, month_begins, proptest::option::of(end()), top_ups);
    let contract = contract.prop_map(|(numbers, month_begins, until, top_ups)| Contract {
        numbers: numbers.to_vec(),
        month_begins,
        until,
        top_ups,
    });
    proptest::collection::vec(contract, 3)
}

/// An older and a newer configuration of the same service.
fn configurations() -> impl Strategy<Value = [Vec<QuotaPolicy>; 2]> {
    let named = |position: usize| {
        let name = NAMES[position];
        let numbers = prop_oneof![3 => 0..=60_u64, 1 => 1..=6_000_u64];
        let numbers = (numbers, proptest::option::of(1..=40_u64), 1..=31_u8, extras());
        let change = prop_oneof![
            2 => Just(Change::Same),
            1 => Just(Change::Gone),
            4 => numbers.prop_map(|(quota, capacity, month_begins, extras)| Change::Numbers {
                quota,
                capacity,
                month_begins,
                extras,
            }),
            2 => policy(name).prop_map(|policy| Change::Other(Box::new(policy))),
        ];
        (policy(name), change)
    };
    let policies = (1..=5_usize).prop_flat_map(move |count| (0..count).map(named).collect::<Vec<_>>());
    (policies, proptest::option::of(policy(NAMES[6])), any::<bool>()).prop_map(|(policies, new, is_reversed)| {
        let newer = policies.iter().filter_map(|(policy, change)| change.of(policy));
        let mut newer: Vec<QuotaPolicy> = newer.chain(new).collect();
        if is_reversed {
            newer.reverse();
        }
        let older: Vec<QuotaPolicy> = policies.into_iter().map(|(policy, _)| policy).collect();
        if newer.is_empty() {
            newer.clone_from(&older);
        }
        [older, newer]
    })
}

/// Months that begin on another day in the newer configuration, next to a policy that both have or that one has.
fn months() -> impl Strategy<Value = [Vec<QuotaPolicy>; 2]> {
    let quota = || prop_oneof![1..=20_u64, 1..=5_000_u64];
    let time_zone = select(TIME_ZONES.to_vec());
    let month = (quota(), 1..=31_u8);
    let configurations = (time_zone, 0..12_u8, [month.clone(), month], any::<[bool; 2]>());
    (configurations, policy(NAMES[1])).prop_map(|((time_zone, unit, months, others), other)| {
        let [older, newer] = months.map(|(quota, begins)| {
            let window = CalendarWindow::new(CalendarPeriod::Month { begins }, time_zone);
            let month = with_unit(QuotaPolicy::per_calendar(NAMES[0], quota, window), unit);
            month.with_caller_quotas(0..=6_000)
        });
        let with_other = |month, has_other: bool| {
            let other = has_other.then(|| other.clone());
            std::iter::once(month).chain(other).collect()
        };
        [with_other(older, others[0]), with_other(newer, others[1])]
    })
}

/// Buckets whose rates or whose changes doubles cannot count exactly: an older and a newer configuration.
fn odd_configurations() -> impl Strategy<Value = [Vec<QuotaPolicy>; 2]> {
    let odd = |name: &'static str| {
        let quota = prop_oneof![
            1..=5_000_u64,
            select(vec![104_729, 1_000_003, 999_999_937, 999_999_999_999_989])
        ];
        let window = select(vec![60, 3_599, 86_399, 86_400, 2_678_400, 999_999_937_u64]);
        let more = (proptest::option::of(1..=50_u64), 1..=30_u64, 0..7_u8);
        (quota, window, more).prop_map(move |(quota, window, (capacity, places, algorithm))| {
            let policy = |window| {
                let policy = QuotaPolicy::new(name, quota, Duration::from_secs(window));
                with_algorithm(policy, capacity, places, algorithm)
            };
            let is_sound = |policy: &QuotaPolicy| PolicySet::new([policy.clone()]).is_ok();
            let policies = [policy(window), policy(60), policy(1)];
            policies
                .into_iter()
                .find(is_sound)
                .unwrap_or_else(|| QuotaPolicy::per_day(name, quota % 5_000 + 1))
        })
    };
    let configuration = move || (odd("a"), odd("b")).prop_map(|(a, b)| vec![a, b]);
    [configuration(), configuration()]
}

/// The movement of the clock before a step.
#[derive(Clone, Debug)]
enum Pass {
    Nothing,
    Micros(u64),
    /// The clock of a promoted primary may be behind.
    Back(u64),
    /// One microsecond less than the wait of the last rejection.
    AlmostTheWait,
    TheWait,
}

impl Pass {
    fn after(&self, now: u64, last_wait: u64) -> u64 {
        match self {
            Self::Nothing => now,
            Self::Micros(micros) => now + micros,
            Self::Back(micros) => now - micros,
            Self::AlmostTheWait => now + last_wait.saturating_sub(1),
            Self::TheWait => now + last_wait,
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Acquire(Request),
    /// Charges as many units as are available, up to the cost of the request.
    AcquirePartially(Request),
    Forecast(Request),
    /// Refunds, without the decision, a charge that is `ago` microseconds old or of unknown age.
    GiveBack {
        request: Request,
        ago: Option<u64>,
    },
    Peek,
    Reset,
    /// The caller has the contract with this number from now on, or no individual quotas if there is none.
    Agree(usize),
    /// Settles the decision that is `which` places before the newest, among those that can still be settled.
    Settle {
        which: usize,
        actual: Actual,
        is_last: bool,
    },
}

#[derive(Clone, Debug)]
struct Step {
    pass: Pass,
    partition: u64,
    /// The configuration of the instance that is called.
    set: usize,
    action: Action,
}

fn passes() -> impl Strategy<Value = Pass> {
    prop_oneof![
        8 => Just(Pass::Nothing),
        3 => (0..2_000_u64).prop_map(Pass::Micros),
        3 => (0..2_000_000_u64).prop_map(Pass::Micros),
        1 => (0..100_000_000_u64).prop_map(Pass::Micros),
        1 => (0..200_000_000_000_u64).prop_map(Pass::Micros),
        1 => (0..3_000_000_u64).prop_map(Pass::Back),
        1 => prop_oneof![3 => 0..100_000_000_u64, 1 => 0..200_000_000_000_u64].prop_map(Pass::Back),
        2 => Just(Pass::AlmostTheWait),
        2 => Just(Pass::TheWait),
    ]
}

fn requests() -> impl Strategy<Value = Request> {
    let huge = || select(vec![1 << 53, 999_999_999_999_999, u64::MAX / 2, u64::MAX - 1, u64::MAX]);
    let cost = prop_oneof![12 => Just(1), 1 => Just(0), 6 => 1..=12_u64, 2 => 1..=6_000_u64, 1 => huge()];
    let bytes = || prop_oneof![4 => Just(0), 12 => 0..=12_u64, 2 => 1..=6_000_u64, 1 => huge()];
    (cost, bytes(), bytes(), bytes()).prop_map(|(cost, request_bytes, response_bytes, tokens)| Request {
        cost,
        request_bytes,
        response_bytes,
        tokens,
        slots: true,
    })
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let huge = select(vec![1 << 53, 999_999_999_999_999, u64::MAX - 1, u64::MAX]);
    let amount = prop_oneof![8 => 0..=15_u64, 4 => 0..=200_u64, 3 => 0..=6_000_u64, 2 => huge];
    let actual = prop_oneof![
        3 => amount.clone().prop_map(Actual::Cost),
        2 => amount.prop_map(Actual::Tokens),
        1 => Just(Actual::Unused),
    ];
    let which = prop_oneof![3 => Just(0), 2 => 0..5_usize, 1 => 0..30_usize];
    let action = prop_oneof![
        30 => requests().prop_map(Action::Acquire),
        20 => (which, actual, prop_oneof![3 => Just(true), 1 => Just(false)])
            .prop_map(|(which, actual, is_last)| Action::Settle { which, actual, is_last }),
        5 => requests().prop_map(Action::AcquirePartially),
        5 => requests().prop_map(Action::Forecast),
        5 => (requests(), agos()).prop_map(|(request, ago)| Action::GiveBack { request, ago }),
        3 => Just(Action::Peek),
        1 => Just(Action::Reset),
        3 => (0..4_usize).prop_map(Action::Agree),
    ];
    let set = prop_oneof![6 => Just(0), 3 => Just(1), 1 => Just(2)];
    let step = (passes(), prop_oneof![3 => Just(0), 1 => Just(1_u64)], set, action);
    let step = step.prop_map(|(pass, partition, set, action)| Step {
        pass,
        partition,
        set,
        action,
    });
    proptest::collection::vec(step, 1..=count)
}

/// The age of a refunded charge, or `None` if it is unknown.
fn agos() -> impl Strategy<Value = Option<u64>> {
    let agos = prop_oneof![
        Just(0),
        0..3_000_u64,
        0..3_000_000_u64,
        0..100_000_000_u64,
        0..200_000_000_000_u64
    ];
    prop_oneof![1 => Just(None), 3 => agos.prop_map(Some)]
}

/// Every other store uses connections that it does not open itself, like those of a pool.
fn stores() -> (Clock, MemoryStore, RedisStore) {
    use std::sync::atomic::{AtomicBool, Ordering};
    static IS_GIVEN: AtomicBool = AtomicBool::new(false);

    let clock = Clock::manual(Timestamp::from_micros(START));
    let mut builder = crate::shared_store();
    if IS_GIVEN.fetch_not(Ordering::Relaxed) {
        // On a busy machine, a reply may take longer than the default timeout.
        builder = builder.connect_with(async |to| {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let client = Client::open(to)?;
            client.get_multiplexed_async_connection_with_config(&config).await
        });
    }
    let builder = builder.connections(1).lease_time(LEASE_TIME).clock(clock.clone());
    (clock.clone(), memory(&clock), builder.build().unwrap())
}

/// One store next to its model, and the decisions of both that may still be settled.
struct Pair {
    store: Box<dyn Store>,
    model: Option<Partition>,
    open: Vec<(Decision, Option<Receipt>)>,
}

impl Pair {
    fn new(store: impl Store, kept: Kept, is_modelled: bool) -> Self {
        Self {
            store: Box::new(store),
            model: is_modelled.then(|| Partition::new(kept)),
            open: vec![],
        }
    }

    /// Runs a step and compares the result with the model. Returns the store's result, if the step calls it.
    async fn take(
        &mut self,
        set: (usize, &[QuotaPolicy]),
        step: &Step,
        plan: Plan,
        now: i128,
    ) -> Result<Option<Verdict>, TestCaseError> {
        let (told, expected) = match step.action {
            Action::Acquire(request) => self.decide(set, request, self.store.decide(plan), now).await,
            Action::AcquirePartially(request) => match plan.allow_partial() {
                Ok(plan) => {
                    let cost = self.granted(set, request, now);
                    let decision = self.store.decide(plan);
                    self.decide(set, Request { cost, ..request }, decision, now).await
                }
                // There is nothing of which it could get a part.
                Err(_) => return Ok(None),
            },
            Action::Peek => self.decide(set, Request::NOTHING, self.store.decide(plan), now).await,
            Action::Forecast(request) => {
                let told = Verdict::peeked(&self.store.peek(plan).await.unwrap());
                let model = self.model.as_mut();
                (told, model.map(|model| model.forecast(now, set, request)))
            }
            Action::GiveBack { request, ago } => {
                self.give_back(set, plan, request, ago, now).await;
                return Ok(None);
            }
            Action::Reset => {
                self.store.reset(plan).await.unwrap();
                if let Some(model) = &mut self.model {
                    model.reset(set.1);
                }
                return Ok(None);
            }
            Action::Settle { which, actual, is_last } => {
                self.settle(which, actual, is_last, now).await;
                return Ok(None);
            }
            Action::Agree(_) => return Ok(None),
        };
        if let Some(expected) = expected {
            let is_charged = told.is_allowed && !matches!(step.action, Action::Forecast(_));
            let expected = if is_charged {
                expected
            } else {
                expected.with_room(&told, set.1)
            };
            prop_assert_eq!(&told, &expected, "{:?}, {:?}, {:?}", self.store, step, set.1);
        }
        Ok(Some(told))
    }

    /// The verdict of the store, and the one that the model expects.
    async fn decide(
        &mut self,
        set: (usize, &[QuotaPolicy]),
        request: Request,
        decision: StoreFuture<Decision>,
        now: i128,
    ) -> (Verdict, Option<Verdict>) {
        let decision = decision.await.unwrap();
        let told = Verdict::of(&decision);
        let expected = self.model.as_mut().map(|model| model.acquire(now, set, request));
        let (expected, receipt) = expected.unzip();
        if told.is_allowed {
            self.open.push((decision, receipt.flatten()));
        }
        (told, expected)
    }

    async fn give_back(
        &mut self,
        set: (usize, &[QuotaPolicy]),
        plan: Plan,
        request: Request,
        ago: Option<u64>,
        now: i128,
    ) {
        let charged_at = ago.map(|ago| now - i128::from(ago));
        let charged = charged_at.map_or(ChargeTime::Now, |at| ChargeTime::At(Timestamp::from_micros(at as u64)));
        self.store.settle(Settlement::refund(plan, charged)).await.unwrap();
        if let Some(model) = &mut self.model {
            model.give_back(now, set, request, charged_at);
        }
    }

    /// Returns the cost of a full request with the same result as the partial one: the granted units, or 1 if nothing
    /// is granted. Without a model, the two stores are compared with each other.
    fn granted(&mut self, set: (usize, &[QuotaPolicy]), request: Request, now: i128) -> u64 {
        let most = self.model.as_mut().map(|model| model.most(now, set, request));
        most.map_or(request.cost, |most| most.max(request.cost.min(1)))
    }

    async fn settle(&mut self, which: usize, actual: Actual, is_last: bool, now: i128) {
        let Some(position) = self.open.len().checked_sub(which + 1) else {
            return;
        };
        let (decision, receipt) = &mut self.open[position];
        let settlement = match actual {
            Actual::Cost(cost) => Settlement::new(decision, cost),
            Actual::Tokens(tokens) => Settlement::with_units(decision, 1, [("tokens", tokens)]),
            Actual::Unused => Settlement::refund_all(decision),
        };
        // Should it be settled once more, nothing more comes of it.
        let receipt = receipt.take();
        if is_last {
            self.open.remove(position);
        }
        self.store.settle(settlement).await.unwrap();
        if let (Some(model), Some(receipt)) = (&mut self.model, receipt) {
            model.settle(now, &receipt, actual);
        }
    }
}

/// A configuration as the tests and as the stores know it.
struct Set {
    /// The number of the configuration.
    number: usize,
    policies: Vec<QuotaPolicy>,
    checked: PolicySet,
}

impl Set {
    fn new(number: usize, policies: Vec<QuotaPolicy>) -> Self {
        Self {
            number,
            checked: set(policies.clone()),
            policies,
        }
    }

    fn plan(&self, partition: PartitionId, action: &Action) -> Plan {
        let request = match action {
            Action::Acquire(request) | Action::AcquirePartially(request) | Action::Forecast(request) => request,
            Action::GiveBack { request, .. } => request,
            Action::Peek => return Plan::new(self.checked.clone(), partition, 0),
            Action::Reset | Action::Settle { .. } | Action::Agree(_) => {
                return Plan::new(self.checked.clone(), partition, 1);
            }
        };
        Plan::new(self.checked.clone(), partition, request.cost)
            .with_content_bytes(request.request_bytes, request.response_bytes)
            .with_units("tokens", request.tokens)
    }
}

/// The older policies, the newer ones, and the older ones again as in a program that was restarted, followed by those of
/// callers with individual quotas.
struct Sets {
    all: Vec<Set>,
    limiters: [Limiter; 3],
}

impl Sets {
    fn new(clock: &Clock, [older, newer]: [Vec<QuotaPolicy>; 2]) -> Self {
        let numbered = [older.clone(), newer, older];
        let limiters = numbered.clone().map(|policies| {
            let limiter = Limiter::builder(memory(clock)).scope("individual").clock(clock.clone());
            let limiter = policies.into_iter().fold(limiter, LimiterBuilder::policy);
            limiter.build().unwrap()
        });
        let all = numbered.into_iter().enumerate();
        Self {
            all: all.map(|(number, policies)| Set::new(number, policies)).collect(),
            limiters,
        }
    }

    /// The set of a caller with a contract, if doubles count it.
    async fn of(&mut self, number: usize, contract: &Contract, now: u64) -> Result<usize, TestCaseError> {
        let policies = self.all[number].policies.iter();
        let expected: Vec<QuotaPolicy> = policies.map(|policy| contract.policy(policy, now)).collect();
        let is_usable = |policy: &QuotaPolicy| {
            let others = self.all.iter().flat_map(|set| &set.policies);
            let mut same = others.filter(|other| other.name() == policy.name());
            is_sound(policy) && same.all(|other| is_converted_exactly(other, policy))
        };
        if !expected.iter().all(is_usable) {
            return Ok(number);
        }
        let caller = self.limiters[number].caller("anybody").quotas(contract.quotas());
        let peeked = caller.peek().await.unwrap().unwrap();
        let policies: Vec<QuotaPolicy> = peeked.allowances().map(|each| each.policy().clone()).collect();
        let unbounded = policies.iter().map(|policy| policy.clone().with_caller_quotas(0..=0));
        let expected = expected.into_iter().map(|policy| policy.with_caller_quotas(0..=0));
        prop_assert!(unbounded.eq(expected), "{:?} of {:?} at {}", policies, contract, now);
        let known = |set: &Set| set.number == number && set.policies == policies;
        Ok(self.all.iter().position(known).unwrap_or_else(|| {
            self.all.push(Set::new(number, policies));
            self.all.len() - 1
        }))
    }
}

/// Both stores take all steps. Where they keep different things, as leases that end, they are not compared with each
/// other but each with a model that keeps the same.
async fn run(
    sets: [Vec<QuotaPolicy>; 2],
    contracts: &[Contract],
    steps: Vec<Step>,
    is_modelled: bool,
) -> Result<(), TestCaseError> {
    let (clock, _, redis) = stores();
    let scope = fresh_scope();
    let mut sets = Sets::new(&clock, sets);
    let lease_time = LEASE_TIME.as_micros() as i128;
    // A memory store for each partition: in one store, a new partition clears away another that is full again, and if the
    // clock then steps back to before it was full, only the model would still know.
    let mut pairs: HashMap<u64, [Pair; 2]> = HashMap::new();
    let mut agreed: HashMap<u64, &Contract> = HashMap::new();
    let mut last_wait = 0;
    for step in steps {
        let now = step.pass.after(clock.now().as_micros(), last_wait).min(LATEST);
        clock.set(Timestamp::from_micros(now));
        if let Action::Agree(number) = step.action {
            agreed.remove(&step.partition);
            agreed.extend(contracts.get(number).map(|contract| (step.partition, contract)));
        }
        let number = match agreed.get(&step.partition) {
            Some(contract) => sets.of(step.set, contract, now).await?,
            None => step.set,
        };
        let set = &sets.all[number];
        let plan = set.plan(user(&scope, step.partition.to_be_bytes()), &step.action);
        let (set, now) = ((number, set.policies.as_slice()), i128::from(now));
        let pair = pairs.entry(step.partition).or_insert_with(|| {
            let in_memory = Pair::new(memory(&clock), Kept::Together, is_modelled);
            let in_redis = Pair::new(redis.clone(), Kept::Apart { lease_time }, is_modelled);
            [in_memory, in_redis]
        });
        let [in_memory, in_redis] = pair;
        let told = in_memory.take(set, &step, plan.clone(), now).await?;
        let also_told = in_redis.take(set, &step, plan, now).await?;
        if !is_modelled {
            prop_assert_eq!(&told, &also_told, "{:?}", step);
        }
        if let Some(told) = told {
            last_wait = told.retry_after.map_or(0, |wait| wait as u64);
        }
    }
    Ok(())
}

/// `PROPTEST_CASES` replaces the number of runs.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: env::var_os("PROPTEST_CASES").map_or(RUNS, |_| config.cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..config
    }
}

proptest! {
    #![proptest_config(config())]

    /// L2, L16, L17, L18, L19, L20, L22, L23, L26, L27, B4, X12, X14
    #[test]
    fn script_and_rust_steps_and_model_agree_on_every_number(
        sets in configurations(),
        contracts in contracts(),
        steps in steps(STEPS),
    ) {
        runtime().block_on(run(sets, &contracts, steps, true))?;
    }

    #[test]
    fn script_and_rust_steps_and_model_agree_while_the_day_changes_on_which_months_begin(
        sets in months(),
        contracts in contracts(),
        mut steps in steps(STEPS / 4),
    ) {
        for step in &mut steps {
            if let Pass::Micros(micros) = &mut step.pass {
                *micros *= 9;
            }
        }
        runtime().block_on(run(sets, &contracts, steps, true))?;
    }

    /// The model cannot follow where doubles have to round, and both stores round in the same way.
    #[test]
    fn script_and_rust_steps_agree_on_rates_and_changes_that_are_rounded(
        sets in odd_configurations(),
        steps in steps(STEPS / 4),
    ) {
        runtime().block_on(run(sets, &[], steps, false))?;
    }

    /// D18, L4: exact to the microsecond, for all policies together, however they count.
    #[test]
    fn waiting_for_retry_after_is_enough_and_one_microsecond_less_is_not(
        policies in (1..=4_usize).prop_flat_map(|count| (0..count).map(|name| timed(NAMES[name])).collect::<Vec<_>>()),
        extras in proptest::collection::vec(extras(), 4),
        before in proptest::collection::vec((0..5_000_000_u64, requests(), proptest::option::of(0..60_u64)), 0..40),
        request in (1..=30_u64, 0..=30_u64, 0..=30_u64, 0..=30_u64),
    ) {
        let (cost, request_bytes, response_bytes, tokens) = request;
        let request = Request { cost, request_bytes, response_bytes, tokens, slots: true };
        let policies: Vec<_> = policies.into_iter().zip(extras).map(|(policy, extras)| with_extras(policy, extras)).collect();
        runtime().block_on(async {
            let (clock, memory, redis) = stores();
            let scope = fresh_scope();
            let set = Set::new(0, policies);
            let plan = |request| set.plan(user(&scope, [0]), &Action::Acquire(request));
            let stores: [&dyn Store; 2] = [&memory, &redis];
            for (pause, request, actual) in before {
                clock.advance(Duration::from_micros(pause));
                for store in stores {
                    let decision = store.decide(plan(request)).await.unwrap();
                    if let Some(actual) = actual {
                        store.settle(Settlement::new(&decision, actual)).await.unwrap();
                    }
                }
            }
            let now = clock.now();
            for store in stores {
                clock.set(now);
                assert_the_wait_is_exact(store, &clock, &plan(request)).await?;
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}

async fn assert_the_wait_is_exact(store: &dyn Store, clock: &Clock, plan: &Plan) -> Result<(), TestCaseError> {
    let outcome = async || store.decide(plan.clone()).await.unwrap().outcome();
    let mut decision = store.decide(plan.clone()).await.unwrap();
    for _ in 0..200 {
        if decision.outcome() == Outcome::Rejected {
            break;
        }
        decision = store.decide(plan.clone()).await.unwrap();
    }
    // Nothing rejects so large a quota in 200 requests, or nothing ever passes.
    let Some(wait) = decision.retry_after() else {
        return Ok(());
    };
    let due = clock.now().saturating_add(wait);
    clock.set(Timestamp::from_micros(due.as_micros() - 1));
    prop_assert_eq!(outcome().await, Outcome::Rejected, "{:?} before {:?}", store, due);
    clock.set(due);
    prop_assert_eq!(outcome().await, Outcome::Allowed, "{:?} at {:?}", store, due);
    Ok(())
}

/// L25, L26
#[test]
fn every_quota_from_1_to_1000_per_second_admits_its_number_at_one_instant() {
    runtime().block_on(async {
        let (_, memory, redis) = stores();
        for quota in 1..=1_000 {
            let plan = plan([QuotaPolicy::per_second("second", quota)], somebody(), 1);
            for store in [&memory as &dyn Store, &redis] {
                let decisions = join_all((0..quota + 2).map(|_| store.decide(plan.clone()))).await;
                let admitted = decisions
                    .iter()
                    .flatten()
                    .filter(|decision| decision.outcome() == Outcome::Allowed);
                assert_eq!(admitted.count() as u64, quota, "{store:?}");
            }
        }
    });
}

use std::{sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    decision::{ChargeTime, Decision, Measurement, Outcome, Plan, Settlement},
    partition::{PartitionId, PartitionKey, Scope},
    policy::{Algorithm, Direction, PolicySet, QuotaPolicy},
    store::{Store, memory::MemoryStore},
    sync::random::Sequence,
};

/// Tests a custom [`Store`] against the [`MemoryStore`].
///
/// `make` creates an empty store that uses the given clock, which the suite advances. Several thousand random calls,
/// with one and two partitions and with all algorithms, assert that
///
/// - each measurement equals that of a `MemoryStore` after the same steps,
/// - a charge is admitted if and only if it fits according to the reading,
/// - a plan is charged completely or not at all,
/// - a settlement whose future is dropped takes effect before the next call,
/// - concurrent requests do not exceed the quota.
///
/// Each slot is held for about 10 s at most. Storage failures, lease times and late settlements are not tested.
///
/// ```
/// use tower_quota::{MemoryStore, test_util::check_store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// check_store(|clock| MemoryStore::builder().clock(clock).build().unwrap()).await;
/// # });
/// ```
///
/// [`ledger`](crate::ledger) contains a store that passes the suite.
///
/// # Panics
///
/// Panics if the store behaves differently or returns an error. The message contains the policies and the number of the
/// step.
pub async fn check_store<S: Store>(make: impl Fn(Clock) -> S) {
    for policies in sets() {
        let clock = Clock::manual(START);
        let mut check = Check {
            store: Arc::new(make(clock.clone())),
            memory: MemoryStore::on(clock.clone()),
            clock,
            policies,
            open: Vec::new(),
            random: Sequence::new(),
            steps: Vec::new(),
        };
        for _ in 0..STEPS {
            check.step().await;
        }
    }
    check_many_at_once(&Arc::new(make(Clock::manual(START)))).await;
}

const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

const STEPS: usize = 400;

const LONGEST_HOLD: Duration = Duration::from_secs(10);

const AT_ONCE: usize = 64;

/// Each algorithm alone, and combinations that test how several policies interact.
fn sets() -> Vec<PolicySet> {
    let of = |algorithm| QuotaPolicy::new("policy", 5, Duration::from_secs(10)).with_algorithm(algorithm);
    let second = QuotaPolicy::per_second("second", 3);
    let sets = [
        vec![QuotaPolicy::concurrent("slots", 3)],
        vec![second.clone(), of(Algorithm::SlidingWindowLog).shadow()],
        vec![second.clone(), QuotaPolicy::concurrent("slots", 3).shadow()],
        vec![
            second.clone().with_content_bytes(Direction::Both),
            of(Algorithm::FixedWindow),
            QuotaPolicy::concurrent("slots", 4),
        ],
        vec![
            of(Algorithm::TokenBucket).with_unit("tokens"),
            of(Algorithm::SlidingWindowLog).with_name("log"),
        ],
        vec![
            of(Algorithm::SlidingWindowLog).with_unit("tokens"),
            second.clone().with_unit("images"),
        ],
        vec![
            second,
            of(Algorithm::SlidingWindowCounter),
            QuotaPolicy::per_day("day", 90),
        ],
    ];
    let alone = Algorithm::EACH.into_iter().map(|algorithm| vec![of(algorithm)]);
    let checked = alone
        .chain(sets)
        .chain(dated())
        .chain(closed_or_locking())
        .map(PolicySet::new);
    checked.collect::<Result<_, _>>().expect("the policies are valid")
}

fn dated() -> impl Iterator<Item = Vec<QuotaPolicy>> {
    let fixed = QuotaPolicy::new("policy", 5, Duration::from_secs(10)).with_algorithm(Algorithm::FixedWindow);
    let day = || QuotaPolicy::per_calendar_day("day", 5, "Asia/Kathmandu");
    let dated = [
        vec![day()],
        vec![
            fixed,
            day().with_content_bytes(Direction::Both),
            day().with_name("shadow").shadow(),
        ],
    ];
    dated.into_iter().filter(|_| cfg!(feature = "calendar"))
}

fn closed_or_locking() -> [Vec<QuotaPolicy>; 7] {
    let of = |name, algorithm| QuotaPolicy::new(name, 5, Duration::from_secs(10)).with_algorithm(algorithm);
    let blocking = |name, algorithm| of(name, algorithm).with_lockout(Duration::from_secs(20));
    let second = QuotaPolicy::per_second("second", 3);
    [
        vec![second.clone(), QuotaPolicy::per_day("closed", 0)],
        vec![second.clone(), QuotaPolicy::concurrent("closed", 0).shadow()],
        vec![blocking("bucket", Algorithm::TokenBucket)],
        vec![second, blocking("window", Algorithm::FixedWindow)],
        vec![
            blocking("counter", Algorithm::SlidingWindowCounter),
            blocking("log", Algorithm::SlidingWindowLog),
        ],
        vec![of("first", Algorithm::TokenBucket).with_initial_units(2)],
        vec![
            of("window", Algorithm::FixedWindow),
            blocking("first", Algorithm::StrictTokenBucket).with_initial_units(0),
        ],
    ]
}

fn partition(name: &str) -> PartitionId {
    Scope::new("conformance").partition(&PartitionKey::new("user", name))
}

struct Check<S> {
    store: Arc<S>,
    memory: MemoryStore,
    clock: Clock,
    policies: PolicySet,
    /// Decisions of both stores.
    open: Vec<[Decision; 2]>,
    random: Sequence,
    steps: Vec<String>,
}

impl<S: Store> Check<S> {
    async fn step(&mut self) {
        let advances = [0, 0, 1, 100_000, 999_999, 2_000_000, 30_000_000, 40_000_000_000];
        let advances = match self.policies.traits().has_slots {
            true => &advances[..6],
            false if self.has_calendar() => &advances[..],
            false => &advances[..7],
        };
        self.clock
            .advance(Duration::from_micros(advances[self.random.below(advances.len())]));
        // Slots must be released before their lease can expire.
        while self.policies.traits().has_slots && self.open.first().is_some_and(|open| self.is_old(open)) {
            self.settle(0).await;
        }
        let plan = self.plan();
        match self.random.below(23) {
            0 => self.reset(plan).await,
            1 | 2 | 20 => self.peek(plan).await,
            21 => self.acquire_partially(plan).await,
            22 => self.give_back(plan).await,
            3..9 if !self.open.is_empty() => {
                let open = self.random.below(self.open.len());
                self.settle(open).await;
            }
            _ => self.acquire(plan).await,
        }
    }

    fn has_calendar(&self) -> bool {
        let mut policies = self.policies.policies();
        policies.any(|policy| policy.calendar_window().is_some())
    }

    fn plan(&mut self) -> Plan {
        let cost = [0, 1, 1, 1, 2, 3, 6][self.random.below(7)];
        let plan = match self.random.below(5) {
            0 => Plan::new(self.policies.clone(), partition("bob"), cost),
            1 => {
                Plan::new(self.policies.clone(), partition("alice"), cost).and(self.policies.clone(), partition("bob"))
            }
            2 => {
                let other = [0, 1, 4][self.random.below(3)];
                let other = Plan::new(self.policies.clone(), partition("bob"), other).with_units("tokens", other);
                Plan::new(self.policies.clone(), partition("alice"), cost).join(other)
            }
            _ => Plan::new(self.policies.clone(), partition("alice"), cost),
        };
        let images = [0, 0, 1, 2][self.random.below(4)];
        plan.with_content_bytes(cost, 0)
            .with_units("tokens", cost / 2)
            .with_units("images", images)
    }

    async fn acquire(&mut self, plan: Plan) {
        self.did(format!("acquire {plan:?}"));
        let own = self.store.acquire(plan.clone()).await.expect("the store decides");
        let expected = self.memory.acquire(plan).await.expect("the memory store never fails");
        self.assert_consistent(&own);
        self.decided([own.decide(), expected.decide()]);
    }

    async fn acquire_partially(&mut self, plan: Plan) {
        self.did(format!("acquire allow_partial {plan:?}"));
        // Skips plans with several partitions, and plans without policies that count requests.
        let Ok(plan) = plan.allow_partial() else { return };
        let own = self.store.decide(plan.clone()).await;
        let expected = self.memory.decide(plan).await;
        let own = own.expect("the store decides");
        self.decided([own, expected.expect("the memory store never fails")]);
    }

    fn decided(&mut self, decisions: [Decision; 2]) {
        self.assert_same(&decisions);
        if decisions[0].outcome() == Outcome::Allowed {
            self.open.push(decisions);
        }
    }

    async fn peek(&mut self, plan: Plan) {
        self.did(format!("peek {plan:?}"));
        let own = self.store.peek(plan.clone()).await.expect("the store looks");
        let expected = self.memory.peek(plan).await.expect("the memory store never fails");
        self.assert_same(&[own, expected]);
    }

    async fn give_back(&mut self, plan: Plan) {
        let ago = [0, 100_000, 12_000_000][self.random.below(3)];
        let charged_at = Timestamp::from_micros(self.clock.now().as_micros() - ago);
        let charged = [ChargeTime::Now, ChargeTime::At(charged_at)][self.random.below(2)];
        self.did(format!("give back {plan:?} of {charged:?}"));
        let own = self.store.settle(Settlement::refund(plan.clone(), charged));
        own.await.expect("the store settles");
        let settled = self.memory.settle(Settlement::refund(plan, charged)).await;
        settled.expect("the memory store never fails");
    }

    fn is_old(&self, [own, _]: &[Decision; 2]) -> bool {
        own.now()
            .is_none_or(|decided_at| decided_at.saturating_add(LONGEST_HOLD) < self.clock.now())
    }

    async fn settle(&mut self, open: usize) {
        let decisions = self.open.remove(open);
        let cost = [None, Some(0), Some(1), Some(4)][self.random.below(4)];
        let tokens = [0, 1, 5][self.random.below(3)];
        self.did(format!("settle {:?}: {cost:?}, {tokens} tokens", decisions[0]));
        let [own, expected] = decisions.each_ref().map(|decision| match cost {
            None => Settlement::refund_all(decision),
            Some(cost) => Settlement::with_units(decision, cost, [("tokens", tokens)]),
        });
        let settling = self.store.settle(own);
        match self.random.below(2) {
            0 => settling.await.expect("the store settles"),
            _ => drop(settling),
        }
        let settled = self.memory.settle(expected).await;
        settled.expect("the memory store never fails");
    }

    async fn reset(&mut self, plan: Plan) {
        self.did(format!("reset {plan:?}"));
        self.store.reset(plan.clone()).await.expect("the store resets");
        let reset = self.memory.reset(plan).await;
        reset.expect("the memory store never fails");
    }

    fn did(&mut self, step: String) {
        let now = self.clock.now().as_micros() - START.as_micros();
        self.steps.push(format!("{now} µs: {step}"));
    }

    fn assert_consistent(&self, measurement: &Measurement) {
        let mut is_allowed = true;
        for measured in measurement.measured_charges() {
            let charge = measured.charge();
            let fits = charge.is_admitted(*measured.reading, measured.moment);
            assert_eq!(measured.is_within_limit(), fits, "{charge:?} of {}", self.report());
            is_allowed &= fits || charge.is_shadow();
        }
        assert_eq!(measurement.is_allowed(), is_allowed, "{}", self.report());
    }

    fn assert_same(&self, [own, expected]: &[Decision; 2]) {
        assert_eq!(format!("{own:?}"), format!("{expected:?}"), "{}", self.report());
        assert_eq!(own.delay(), expected.delay(), "{}", self.report());
    }

    fn report(&self) -> String {
        let last = self.steps.len().saturating_sub(10);
        format!(
            "step {} with {:?}: {:#?}",
            self.steps.len(),
            self.policies,
            &self.steps[last..]
        )
    }
}

/// Concurrent tasks are admitted exactly as often as the quota allows.
async fn check_many_at_once<S: Store>(store: &Arc<S>) {
    let policies = [
        QuotaPolicy::per_hour("hour", 20),
        QuotaPolicy::per_hour("log", 30).with_algorithm(Algorithm::SlidingWindowLog),
    ];
    let policies = PolicySet::new(policies).expect("the policies are valid");
    let tasks = (0..AT_ONCE).map(|_| {
        let (store, plan) = (Arc::clone(store), Plan::new(policies.clone(), partition("carol"), 1));
        tokio::spawn(async move { store.acquire(plan).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut allowed = 0;
    for task in tasks {
        let measurement = task.await.expect("no task is cancelled").expect("the store decides");
        allowed += u32::from(measurement.is_allowed());
    }
    assert_eq!(allowed, 20, "of {AT_ONCE} requests at once with a quota of 20");
}

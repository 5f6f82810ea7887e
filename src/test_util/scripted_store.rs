//! A store that does what a test tells it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    algorithm::{Limit, Moment, PolicyReading, Times},
    clock::{Clock, Timestamp},
    decision::{Measurement, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
    lease::LeaseId,
    store::{Store, StoreFuture, StoreTraits, memory::MemoryStore},
};

/// The answer of a [`ScriptedStore`] to a question for a decision.
///
/// ```
/// use tower_quota::{
///     PolicySet, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store, StoreErrorKind,
///     test_util::{Answer, ScriptedStore},
/// };
///
/// # tokio_test::block_on(async {
/// let store = ScriptedStore::new();
/// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 1)])?;
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// # let send = async || store.decide(Plan::new(policies.clone(), alice, 1)).await;
/// // For a caller who has one unit:
/// store.answer(Answer::Counted);
/// assert_eq!(send().await?.outcome(), Outcome::Allowed);
/// assert_eq!(send().await?.outcome(), Outcome::Rejected);
///
/// store.answer(Answer::Allowed);
/// assert_eq!(send().await?.outcome(), Outcome::Allowed);
///
/// store.answer(Answer::Failed(StoreErrorKind::Unavailable));
/// assert_eq!(send().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
///
/// store.answer(Answer::Hanging);
/// # tokio::time::pause();
/// let day = std::time::Duration::from_secs(86_400);
/// assert!(tokio::time::timeout(day, send()).await.is_err());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// Allowed, as if the caller was never seen before; nothing is charged, and no slot is taken. A request that costs
    /// more than a policy ever lets pass is rejected all the same.
    Allowed,
    /// The store counts like a [`MemoryStore`]. The default.
    #[default]
    Counted,
    /// An error of this kind.
    Failed(StoreErrorKind),
    /// Never.
    Hanging,
    /// Rejected, as if the last units of all policies were used at this moment. A request that costs nothing is allowed
    /// all the same.
    Rejected,
}

/// A store for tests: a [`MemoryStore`] on a manual clock, until it is told to fail, to hang, or what to answer.
///
/// It is given to the layer in place of the store of production; the test keeps a clone, which shares everything. See
/// the [guide](crate::test_util#a-guide).
///
/// Its script is about decisions, also those that [`peek`](Store::peek) asks for. While the answer to all of them is
/// [`Failed`](Answer::Failed) or [`Hanging`](Answer::Hanging), changes of charges and resets fail or hang, too, and are
/// not made. Settlements of charges that it was told to allow are ignored.
///
/// ```
/// use tower_quota::{
///     PolicySet, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store, StoreErrorKind,
///     test_util::{Answer, ScriptedStore},
/// };
///
/// # tokio_test::block_on(async {
/// let store = ScriptedStore::new();
/// store.answer_next(2, Answer::Rejected);
/// store.answer_next(1, Answer::Failed(StoreErrorKind::TimedOut));
///
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let send = async || store.decide(Plan::new(policies.clone(), alice, 1)).await;
///
/// assert_eq!(send().await?.outcome(), Outcome::Rejected);
/// assert_eq!(send().await?.outcome(), Outcome::Rejected);
/// assert_eq!(send().await.unwrap_err().kind(), StoreErrorKind::TimedOut);
/// assert_eq!(send().await?.outcome(), Outcome::Allowed);
/// assert_eq!(store.calls(), 4);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    counting: MemoryStore,
    clock: Clock,
    script: Mutex<Script>,
    /// Stands in every decision that was told, so that its settlement is known as one.
    told: LeaseId,
}

#[derive(Debug, Default)]
struct Script {
    /// The first answers, and how often each of them comes.
    next: VecDeque<(usize, Answer)>,
    /// All later answers.
    always: Answer,
    calls: usize,
    settlements: usize,
}

impl Script {
    fn next(&mut self) -> Answer {
        self.calls += 1;
        let Some((count, answer)) = self.next.front_mut() else {
            return self.always;
        };
        let answer = *answer;
        *count -= 1;
        if *count == 0 {
            self.next.pop_front();
        }
        answer
    }
}

impl ScriptedStore {
    /// The first moment of 2026, where every window up to a day begins.
    const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

    /// A store that counts, on a manual clock of its own that shows the first moment of 2026.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::manual(Self::START))
    }

    /// A store that counts, on this clock.
    ///
    /// You want it where limits of several stores, or other parts of the service, go by one time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::test_util::{Clock, ScriptedStore, Timestamp};
    ///
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let store = ScriptedStore::with_clock(clock.clone());
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(store.clock().now(), Timestamp::from_micros(1_000_000));
    ///
    /// let store = ScriptedStore::new();
    /// assert_eq!(store.clock().now(), Timestamp::from_micros(1_767_225_600_000_000));
    /// ```
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            counting: MemoryStore::on(clock.clone()),
            clock,
            script: Mutex::default(),
            told: LeaseId::unique(),
        }))
    }

    /// The store's clock, to move it: [`Clock::advance`].
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Sets the answer to all questions from now on. Answers of [`answer_next`](Self::answer_next) that were not used are
    /// dropped. See [`Answer`] for an example.
    pub fn answer(&self, answer: Answer) {
        let mut script = self.script();
        script.next.clear();
        script.always = answer;
    }

    /// Sets the answer to the next `count` questions, after those for which an answer was set before.
    pub fn answer_next(&self, count: usize, answer: Answer) {
        if count > 0 {
            self.script().next.push_back((count, answer));
        }
    }

    /// For how many decisions the store was asked, whatever it answered.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.script().calls
    }

    /// The number of times that it was told to change a charge or to free slots, also if it failed. A
    /// [`Settlement`] that changes nothing does not count.
    ///
    /// ```
    /// # use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    /// use tower_quota::{Settlement, test_util::ScriptedStore};
    ///
    /// # tokio_test::block_on(async {
    /// let store = ScriptedStore::new();
    /// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// # let plan = || Plan::new(policies.clone(), alice, 2);
    /// let (first, second) = (store.decide(plan()).await?, store.decide(plan()).await?);
    /// store.settle(Settlement::new(&first, 2)).await?;
    /// assert_eq!(store.settlements(), 0);
    /// store.settle(Settlement::new(&second, 1)).await?;
    /// assert_eq!(store.settlements(), 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn settlements(&self) -> usize {
        self.script().settlements
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decided(&self, plan: Plan, reading: impl Fn(&Limit, u64) -> PolicyReading) -> StoreFuture<Measurement> {
        let moment = Moment {
            now: self.0.clock.now(),
            ..Moment::default()
        };
        let moments = plan.parts().map(|_| moment).collect();
        let charges = plan.charges();
        let readings: Vec<PolicyReading> = charges
            .map(|charge| reading(charge.policy().limit(), charge.weight()))
            .collect();
        let told = Some(self.0.told);
        StoreFuture::ready(Ok(Measurement::of_readings(plan, moments, readings, told)))
    }

    /// Does something unless all that the store does is to fail or to hang.
    fn unless_failing(&self, action: impl FnOnce(&MemoryStore) -> StoreFuture<()>) -> StoreFuture<()> {
        let always = self.script().always;
        match always {
            Answer::Failed(kind) => failed(kind),
            Answer::Hanging => hanging(),
            Answer::Allowed | Answer::Counted | Answer::Rejected => action(&self.0.counting),
        }
    }
}

impl Default for ScriptedStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for ScriptedStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let answer = self.script().next();
        match answer {
            Answer::Allowed => self.decided(plan, unused),
            Answer::Counted => self.0.counting.acquire(plan),
            Answer::Failed(kind) => failed(kind),
            Answer::Hanging => hanging(),
            Answer::Rejected => self.decided(plan, used_up),
        }
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        if settlement.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        self.script().settlements += 1;
        let told = Some(self.0.told);
        let is_told = settlement.parts().any(|part| part.lease == told);
        self.unless_failing(|counting| {
            if is_told {
                return StoreFuture::ready(Ok(()));
            }
            counting.settle(settlement)
        })
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.unless_failing(|counting| counting.reset(plan))
    }

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().for_tests()
    }
}

fn failed<T>(kind: StoreErrorKind) -> StoreFuture<T> {
    StoreFuture::ready(Err(StoreError::new(kind, "the test has said so")))
}

fn hanging<T: 'static>() -> StoreFuture<T> {
    StoreFuture::boxed(std::future::pending())
}

/// The reading of a policy that was never charged.
fn unused(limit: &Limit, charge: u64) -> PolicyReading {
    let counter = &limit.counter;
    counter.read(&counter.unused(), Times::default(), charge, 0).into()
}

/// The reading of a policy whose last units were used just now.
fn used_up(limit: &Limit, charge: u64) -> PolicyReading {
    let counter = &limit.counter;
    let (mut state, now) = (counter.unused(), Times::default());
    let unused = counter.read(&state, now, 0, 0);
    counter.charge(&mut state, now.now, &unused, counter.units(), None);
    let reading = counter.read(&state, now, charge, 0);
    PolicyReading {
        // Slots are taken by those who hold them.
        counted: counter.charged(reading, counter.remaining(reading, now.now)),
        locked: limit.lockout.map_or(0, |lockout| lockout.micros),
    }
}

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

/// The scripted result of a decision of a [`ScriptedStore`], whose example shows each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// Admits the request as if the caller were new. Nothing is charged, and no slot is acquired. Requests whose cost
    /// exceeds the capacity of a policy are still rejected.
    Allowed,
    /// Counts like a [`MemoryStore`]. This is the default.
    #[default]
    Counted,
    /// Fails with an error of this kind.
    Failed(StoreErrorKind),
    /// Never completes.
    Hanging,
    /// Rejects the request as if all policies had just been exhausted. Requests of cost 0 are still admitted.
    Rejected,
}

/// A store for tests: a [`MemoryStore`] with a manual clock and scripted decisions.
///
/// Pass the store to the layer, as in the [example of the module](crate::test_util), and keep a clone to control it:
/// clones share all state.
///
/// Scripted answers apply to decisions, including [`peek`](Store::peek). While the answer to all decisions is
/// [`Failed`](Answer::Failed) or [`Hanging`](Answer::Hanging), settlements and resets also fail or hang, without any
/// effect. Settlements of decisions that were scripted as [`Allowed`](Answer::Allowed) are ignored.
///
/// ```
/// use tower_quota::test_util::{Answer, ScriptedStore};
/// use tower_quota::{Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store, StoreErrorKind};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let store = ScriptedStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 1)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let decide = async || store.decide(Plan::new(policies.clone(), alice, 1)).await;
///
/// store.answer_next(1, Answer::Rejected);
/// store.answer_next(1, Answer::Failed(StoreErrorKind::TimedOut));
/// assert_eq!(decide().await?.outcome(), Outcome::Rejected);
/// assert_eq!(decide().await.unwrap_err().kind(), StoreErrorKind::TimedOut);
///
/// // After the script, the store counts: one mail per hour.
/// assert_eq!(decide().await?.outcome(), Outcome::Allowed);
/// assert_eq!(decide().await?.outcome(), Outcome::Rejected);
/// assert_eq!(store.calls(), 4);
///
/// // `answer` applies to all further decisions.
/// store.answer(Answer::Allowed);
/// assert_eq!(decide().await?.outcome(), Outcome::Allowed);
/// store.answer(Answer::Hanging);
/// # tokio::time::pause();
/// # let day = std::time::Duration::from_secs(86_400);
/// # assert!(tokio::time::timeout(day, decide()).await.is_err());
/// # assert_eq!(store.clock().now(), tower_quota::test_util::Timestamp::from_micros(1_767_225_600_000_000));
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
    /// Identifies the settlements of scripted decisions.
    told: LeaseId,
}

#[derive(Debug, Default)]
struct Script {
    /// Each with a repeat count.
    next: VecDeque<(usize, Answer)>,
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
    /// The start of 2026, when every window of up to a day begins.
    const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

    /// Creates a store that counts, with a manual clock that starts at the beginning of 2026.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::manual(Self::START))
    }

    /// Creates a store that counts, with the given clock.
    ///
    /// Use this to share a clock with other stores or parts of the service.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            counting: MemoryStore::on(clock.clone()),
            clock,
            script: Mutex::default(),
            told: LeaseId::unique(),
        }))
    }

    /// Returns the clock of the store, for [`Clock::advance`].
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Sets the answer to all decisions from now on, and discards unused answers of [`answer_next`](Self::answer_next).
    pub fn answer(&self, answer: Answer) {
        let mut script = self.script();
        script.next.clear();
        script.always = answer;
    }

    /// Sets the answer to `count` decisions, after all previously scripted answers.
    pub fn answer_next(&self, count: usize, answer: Answer) {
        if count > 0 {
            self.script().next.push_back((count, answer));
        }
    }

    /// Returns the number of decisions that were requested, regardless of the answers.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.script().calls
    }

    /// Returns the number of settlements, including failed but not [empty](Settlement::is_empty) ones.
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
            .map(|charge| reading(charge.checked().limit(), charge.weight()))
            .collect();
        let told = Some(self.0.told);
        StoreFuture::ready(Ok(Measurement::of_readings(plan, moments, readings, told)))
    }

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
    StoreFuture::ready(Err(StoreError::new(kind, "scripted by the test")))
}

fn hanging<T: 'static>() -> StoreFuture<T> {
    StoreFuture::boxed(std::future::pending())
}

fn unused(limit: &Limit, charge: u64) -> PolicyReading {
    let counter = &limit.counter;
    counter.read(&counter.unused(), Times::default(), charge, 0).into()
}

fn used_up(limit: &Limit, charge: u64) -> PolicyReading {
    let counter = &limit.counter;
    let (mut state, now) = (counter.unused(), Times::default());
    let unused = counter.read(&state, now, 0, 0);
    counter.charge(&mut state, now.now, &unused, counter.units(), None);
    let reading = counter.read(&state, now, charge, 0);
    PolicyReading {
        // Unlike `charge`, this also exhausts concurrency limits, without a lease.
        counted: counter.charged(reading, counter.remaining(reading, now.now)),
        locked: limit.lockout.map_or(0, |lockout| lockout.micros),
    }
}

//! The record of all instances, request by request and in sums.

use std::{
    collections::{HashMap, HashSet},
    mem,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tower_quota::StoreErrorKind;

use super::{
    callers::Caller,
    history::{self, Answer, Call, Event, Fate, History, Loss, Lost, Settlement},
};

/// The fates of the requests of one caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub rejected: u64,
    /// The store was called and made no decision.
    pub undecided: u64,
    /// Of these, the requests that waited for the whole deadline.
    pub missed: u64,
    /// The store was not called, because the circuit was open.
    pub unasked: u64,
}

impl Counts {
    /// Of one request.
    pub fn fate(self) -> Fate {
        match self {
            Self { allowed: 1, .. } => Fate::Allowed,
            Self { rejected: 1, .. } => Fate::Rejected,
            Self { undecided: 1, .. } => Fate::Undecided,
            _ => Fate::Unasked,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.rejected += other.rejected;
        self.undecided += other.undecided;
        self.missed += other.missed;
        self.unasked += other.unasked;
    }
}

/// The counts of all instances since the last call of `take_totals`.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub counts: Counts,
    /// Errors of the store; deadlines that were missed are none.
    pub errors: HashMap<StoreErrorKind, u64>,
    pub longest_wait: Duration,
    /// The most requests of one caller with a slot that were inside of the service together.
    pub most_inside: u64,
}

#[derive(Debug)]
struct Seen {
    by_caller: HashMap<Caller, Counts>,
    /// The requests of each caller with a slot that are inside of the service.
    inside: HashMap<Caller, u64>,
    totals: Totals,
    /// Of this chapter.
    history: History,
    /// The beginning of a fault that is not over.
    fault: Option<Duration>,
    chapter: u64,
    began: Instant,
    uncounted: Vec<Instant>,
    unanswered: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            by_caller: HashMap::new(),
            inside: HashMap::new(),
            totals: Totals::default(),
            history: History::default(),
            fault: None,
            chapter: 0,
            began: Instant::now(),
            uncounted: Vec::new(),
            unanswered: 0,
        }
    }
}

/// A request that has begun. If its outcome is never recorded, the request was cancelled.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    chapter: u64,
    index: usize,
    pub caller: Caller,
}

impl Entry {
    /// Counts the requests of a chapter.
    pub fn number(self) -> usize {
        self.index
    }
}

/// All that was seen, by all instances.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Seen>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of(&self, caller: Caller) -> Counts {
        self.lock().by_caller.get(&caller).copied().unwrap_or_default()
    }

    /// Begins new totals and returns those up to now.
    pub fn take_totals(&self) -> Totals {
        let mut seen = self.lock();
        let most_inside = seen.inside.values().copied().max().unwrap_or(0);
        let next = Totals {
            most_inside,
            ..Totals::default()
        };
        mem::replace(&mut seen.totals, next)
    }

    pub fn begin(&self, instance: usize, caller: Caller) -> Entry {
        let mut seen = self.lock();
        let asked = seen.began.elapsed();
        let event = Event {
            instance,
            caller,
            asked,
            answered: asked,
            fate: Fate::Cancelled,
            remaining: Vec::new(),
            violated: Vec::new(),
            call: None,
            settlement: None,
        };
        seen.history.events.push(event);
        Entry {
            chapter: seen.chapter,
            index: seen.history.events.len() - 1,
            caller,
        }
    }

    /// Changes what is known of a request, unless the history of its chapter has been checked.
    fn learn(&self, entry: Entry, learn: impl FnOnce(&mut Event, Duration)) {
        let mut seen = self.lock();
        let now = seen.began.elapsed();
        if entry.chapter == seen.chapter {
            learn(&mut seen.history.events[entry.index], now);
        }
    }

    /// The store is called about a request.
    pub fn called(&self, entry: Entry) {
        let call = |asked| Call { asked, ended: None };
        self.learn(entry, |event, now| event.call = Some(call(now)));
    }

    /// The call has ended, maybe after its request.
    pub fn call_ended(&self, entry: Entry, answer: Answer) {
        self.learn(entry, |event, now| {
            event.call.iter_mut().for_each(|call| call.ended = Some((now, answer)));
        });
    }

    pub fn settles(&self, entry: Entry, actual: u64) {
        self.learn(entry, |event, asked| {
            event.settlement = Some(Settlement {
                asked,
                ended: None,
                actual,
            });
        });
    }

    pub fn settled(&self, entry: Entry, is_acknowledged: bool) {
        self.learn(entry, |event, now| {
            let settlement = event.settlement.iter_mut();
            settlement.for_each(|settlement| settlement.ended = Some((now, is_acknowledged)));
        });
    }

    /// The request was decided, with these remaining units, and these limits against it.
    pub fn end(&self, entry: Entry, fate: Fate, remaining: Vec<u64>, violated: Vec<usize>) {
        self.learn(entry, |event, now| {
            event.answered = now;
            event.fate = fate;
            event.remaining = remaining;
            event.violated = violated;
        });
    }

    /// The time that this record measures.
    pub fn now(&self) -> Duration {
        self.lock().began.elapsed()
    }

    /// From now on a fault may keep calls from the server.
    pub fn fault_begins(&self) {
        let mut seen = self.lock();
        seen.fault = Some(seen.began.elapsed());
    }

    pub fn fault_ends(&self) {
        let mut seen = self.lock();
        let now = seen.began.elapsed();
        let fault = seen.fault.take().map(|start| start..now);
        seen.history.faults.extend(fault);
    }

    /// The server has lost something since `start`: of these callers, or of all.
    pub fn has_lost(&self, lost: Lost, start: Duration, callers: Option<HashSet<Caller>>) {
        let mut seen = self.lock();
        let between = start..seen.began.elapsed();
        seen.history.losses.push(Loss { lost, between, callers });
    }

    /// Asserts that the limits explain all answers since the last call.
    pub fn check_history(&self) {
        let (history, chapter) = {
            let mut seen = self.lock();
            seen.chapter += 1;
            // The moments that no scenario has read.
            seen.uncounted = Vec::new();
            (mem::take(&mut seen.history), seen.chapter - 1)
        };
        if let Some(mistake) = history::mistake(&history, |caller| caller.account(chapter)) {
            panic!("{mistake}");
        }
    }

    pub fn unanswered(&self) {
        self.lock().unanswered += 1;
    }

    /// The number of questions that the store has not answered with a decision: these may have been charged, or not.
    pub fn all_unanswered(&self) -> u64 {
        self.lock().unanswered
    }

    /// Returns the moments at which requests passed uncounted since the last call.
    pub fn take_uncounted(&self) -> Vec<Instant> {
        mem::take(&mut self.lock().uncounted)
    }

    pub fn chapter(&self) -> u64 {
        self.lock().chapter
    }

    pub fn failed(&self, kind: StoreErrorKind) {
        *self.lock().totals.errors.entry(kind).or_default() += 1;
    }

    pub fn count(&self, caller: Caller, counts: Counts, waited: Duration) {
        let mut seen = self.lock();
        *seen.by_caller.entry(caller).or_default() += counts;
        seen.totals.counts += counts;
        if counts.undecided + counts.unasked > 0 {
            seen.uncounted.push(Instant::now());
        }
        seen.totals.longest_wait = seen.totals.longest_wait.max(waited);
    }

    pub fn enter(&self, caller: Caller) -> Inside {
        let mut seen = self.lock();
        let inside = seen.inside.entry(caller).or_default();
        *inside += 1;
        let inside = *inside;
        seen.totals.most_inside = seen.totals.most_inside.max(inside);
        drop(seen);
        Inside(self.clone(), caller)
    }
}

/// Inside of the service until it is dropped, which happens to cancelled requests, too.
pub struct Inside(Record, Caller);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut seen = self.0.lock();
        if let Some(inside) = seen.inside.get_mut(&self.1) {
            *inside -= 1;
            if *inside == 0 {
                seen.inside.remove(&self.1);
            }
        }
    }
}

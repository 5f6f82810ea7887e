//! The record of all instances, request by request and in sums.

use std::{
    collections::HashMap,
    mem,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tower_quota::StoreErrorKind;

use super::{
    callers::{Caller, SLOT_USERS},
    history::{self, Event, Fate},
};

/// The fates of the requests of one caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub rejected: u64,
    /// The store was asked and gave no decision.
    pub undecided: u64,
    /// Of these, those that waited for the whole deadline.
    pub missed: u64,
    /// The store was not asked: the circuit was open.
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

/// The counts of all instances since they were asked last.
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
    inside: [u64; SLOT_USERS as usize],
    totals: Totals,
    /// Of this chapter.
    history: Vec<Event>,
    chapter: u64,
    began: Instant,
    uncounted: Vec<Instant>,
    unanswered: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            by_caller: HashMap::new(),
            inside: [0; SLOT_USERS as usize],
            totals: Totals::default(),
            history: Vec::new(),
            chapter: 0,
            began: Instant::now(),
            uncounted: Vec::new(),
            unanswered: 0,
        }
    }
}

/// A request that has begun. Unless it is told what became of it, its caller was gone before.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    chapter: u64,
    index: usize,
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
        let most_inside = seen.inside.into_iter().max().unwrap_or(0);
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
        };
        seen.history.push(event);
        Entry {
            chapter: seen.chapter,
            index: seen.history.len() - 1,
        }
    }

    pub fn end(&self, entry: Entry, fate: Fate, remaining: Vec<u64>) {
        let mut seen = self.lock();
        let answered = seen.began.elapsed();
        // The history of an earlier chapter has been looked at.
        if entry.chapter == seen.chapter {
            let event = &mut seen.history[entry.index];
            (event.answered, event.fate, event.remaining) = (answered, fate, remaining);
        }
    }

    /// Asserts that limits explain whatever callers were told since this was asked last, with so many losses.
    pub fn check_history(&self, losses: u64) {
        let (events, chapter) = {
            let mut seen = self.lock();
            seen.chapter += 1;
            (mem::take(&mut seen.history), seen.chapter - 1)
        };
        if let Some(mistake) = history::mistake(&events, losses, |caller| caller.account(chapter)) {
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

    /// Returns the moments at which requests passed that were not counted, since this was asked last.
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

    pub fn enter(&self, user: u64) -> Inside {
        let mut seen = self.lock();
        let inside = &mut seen.inside[user as usize];
        *inside += 1;
        let inside = *inside;
        seen.totals.most_inside = seen.totals.most_inside.max(inside);
        drop(seen);
        Inside(self.clone(), user)
    }
}

/// Inside of the service until it is dropped, which happens to cancelled requests, too.
pub struct Inside(Record, u64);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.lock().inside[self.1 as usize] -= 1;
    }
}

//! The pace at which a caller uses units, and the time that a call takes: how many units to fetch, and when.

use crate::{clock::Timestamp, policy::BatchTerms};

/// Units and time between the charges of one caller. A period ends with each charge, and counts twice as much as the one
/// before it.
pub(super) struct Pace {
    /// The time of the last charge, and so the beginning of the current period.
    since: Timestamp,
    /// Units that were used in the current period.
    used: u64,
    /// Units and microseconds of the periods before.
    before: (f64, f64),
    /// The size that the last charge would have had if enough had been left.
    demand: u64,
    /// The time of a call, in microseconds: at once as long as the longest, and slowly as short as those after it.
    call: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            since: Timestamp::default(),
            used: 0,
            before: (0.0, 0.0),
            demand: 0,
            call: 0,
        }
    }

    /// The time of the last charge.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns `true` if it says no more than a new one.
    pub(super) fn is_expired(&self, now: Timestamp, terms: BatchTerms) -> bool {
        now.micros_since(self.since) >= 2 * terms.micros()
    }

    pub(super) fn used(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }

    /// A call that has fetched a batch was answered after so many microseconds.
    pub(super) fn answered(&mut self, micros: u64) {
        self.call = micros.max(self.call - self.call / 8);
    }

    /// The size of the batch that is to be charged now, of which a request takes `cost` at once: what is used in the time of
    /// a batch, and at most twice as much as last time.
    pub(super) fn charge(&mut self, cost: u64, terms: BatchTerms, now: Timestamp) -> u64 {
        if self.is_expired(now, terms) {
            (self.before, self.demand) = ((0.0, 0.0), 0);
        } else {
            // A batch is begun one `ahead` after it was charged, and is to be used up before it expires.
            let lasting = (terms.micros() * 7 / 8).saturating_sub(self.ahead(terms));
            let used = self.used_in(lasting.max(terms.micros() / 4), now);
            let doubled = self.demand.saturating_mul(2);
            self.demand = used.map_or(doubled, |used| doubled.min(used as u64));
            self.before = self.until(now);
        }
        self.demand = self.demand.min(terms.units).max(cost);
        (self.since, self.used) = (now, cost);
        self.demand
    }

    /// Returns `true` if a call that begins later would be answered too late: `rest` units are left, to be spent within
    /// `lasting` microseconds.
    pub(super) fn is_due(&self, rest: u64, lasting: u64, terms: BatchTerms, now: Timestamp) -> bool {
        let ahead = self.ahead(terms);
        let used = || self.used_in(ahead, now).unwrap_or(0.0);
        ahead > 0 && (lasting <= ahead || (rest as f64) < used())
    }

    /// The time before a batch is needed at which it is asked for: that of two calls, because neither calls nor requests are
    /// even.
    fn ahead(&self, terms: BatchTerms) -> u64 {
        self.call.saturating_mul(2).min(terms.micros() / 2)
    }

    /// The units that are used in a time at this pace; `None` if no time has passed yet.
    fn used_in(&self, micros: u64, now: Timestamp) -> Option<f64> {
        let (units, time) = self.until(now);
        (time > 0.0).then(|| units * micros as f64 / time)
    }

    /// Units and microseconds with the current period.
    fn until(&self, now: Timestamp) -> (f64, f64) {
        let (units, micros) = self.before;
        let time = now.micros_since(self.since) as f64;
        (units / 2.0 + self.used as f64, micros / 2.0 + time)
    }
}

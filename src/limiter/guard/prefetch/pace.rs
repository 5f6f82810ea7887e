use crate::{clock::Timestamp, policy::BatchTerms};

/// A weighted average over the periods between charges. Each period has twice the weight of the previous one.
#[derive(Default)]
pub(super) struct Pace {
    since: Timestamp,
    used: u64,
    /// Units and microseconds of earlier periods, weighted.
    before: (u64, u64),
    /// The size of the last batch, if enough units had remained.
    demand: u64,
    /// The duration of a call in microseconds. Adopts a longer one at once, and decreases slowly.
    call: u64,
}

impl Pace {
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    pub(super) fn is_expired(&self, now: Timestamp, terms: BatchTerms) -> bool {
        now.micros_since(self.since) >= 2 * terms.micros()
    }

    pub(super) fn used(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }

    pub(super) fn answered(&mut self, micros: u64) {
        self.call = micros.max(self.call - self.call / 8);
    }

    /// The expected usage during the lifetime of a batch, and at most twice the last size. `cost` units are spent
    /// immediately.
    pub(super) fn charge(&mut self, cost: u64, terms: BatchTerms, now: Timestamp) -> u64 {
        if self.is_expired(now, terms) {
            (self.before, self.demand) = ((0, 0), 0);
        } else {
            // First used `ahead` after it was charged, and spent before it expires.
            let lasting = (terms.micros() * 7 / 8).saturating_sub(self.ahead(terms));
            let used = self.used_in(lasting.max(terms.micros() / 4), now);
            self.demand = used.unwrap_or(u64::MAX).min(self.demand.saturating_mul(2));
            self.before = self.until(now);
        }
        self.demand = self.demand.min(terms.units).max(cost);
        (self.since, self.used) = (now, cost);
        self.demand
    }

    /// `true` if a later call would complete after the `rest` units are spent, or after they expire in `lasting`
    /// microseconds.
    pub(super) fn is_due(&self, rest: u64, lasting: u64, terms: BatchTerms, now: Timestamp) -> bool {
        let (ahead, (units, time)) = (self.ahead(terms), self.until(now));
        let is_spent = || time > 0 && product(rest, time) < product(units, ahead);
        ahead > 0 && (lasting <= ahead || is_spent())
    }

    /// Two call durations, because neither calls nor requests are evenly spaced.
    fn ahead(&self, terms: BatchTerms) -> u64 {
        self.call.saturating_mul(2).min(terms.micros() / 2)
    }

    /// Rounded down. `None` if no time has passed yet.
    fn used_in(&self, micros: u64, now: Timestamp) -> Option<u64> {
        let (units, time) = self.until(now);
        let used = product(units, micros).checked_div(time.into())?;
        Some(u64::try_from(used).unwrap_or(u64::MAX))
    }

    fn until(&self, now: Timestamp) -> (u64, u64) {
        let (units, micros) = self.before;
        // Rounded up, so that an even rate of one unit in each period remains the same.
        let units = units.div_ceil(2).saturating_add(self.used);
        (units, (micros / 2).saturating_add(now.micros_since(self.since)))
    }
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

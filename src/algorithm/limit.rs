use super::{ChargeRejection, Counter, Form, Lockout, Measured, Newcomer, Reading, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) counter: Counter,
    /// What clients see, if there is an overage. Both have the same states and readings.
    pub(crate) quota: Option<Counter>,
    pub(crate) lockout: Option<Lockout>,
    pub(crate) newcomer: Option<Newcomer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyReading {
    pub(crate) counted: Reading,
    pub(crate) locked: u64,
}

impl From<Reading> for PolicyReading {
    fn from(counted: Reading) -> Self {
        Self { counted, locked: 0 }
    }
}

impl Limit {
    #[inline]
    pub(crate) fn admits(&self, reading: PolicyReading, now: u64, charge: u64) -> bool {
        reading.locked == 0 && self.counter.admits(reading.counted, now, charge)
    }

    #[inline]
    pub(crate) fn charged(&self, reading: PolicyReading, now: u64, charge: u64) -> PolicyReading {
        let counted = self.counter.charged(reading.counted, charge);
        let remaining = || self.counter.remaining(counted, now);
        PolicyReading {
            counted,
            locked: self.locked_by(reading.locked, charge, remaining),
        }
    }

    #[inline]
    fn locked_by(&self, left: u64, charge: u64, remaining: impl FnOnce() -> u64) -> u64 {
        match self.lockout {
            Some(lockout) if left == 0 && charge > 0 && remaining() == 0 => lockout.micros,
            _ => left,
        }
    }

    pub(crate) fn remaining(&self, reading: PolicyReading, now: u64) -> u64 {
        match reading.locked {
            0 => self.counter.remaining(reading.counted, now),
            _ => 0,
        }
    }

    /// The wait of a log with an overage is the time until a unit of the quota remains. A peek does not keep the
    /// charge.
    #[inline]
    pub(crate) fn measure(&self, state: &State, times: Times, cost: u64, is_kept: bool, first: u64) -> Measured {
        let mut measured = self.counter.measure(state, times, cost, first);
        if let (Some(Counter::SlidingLog(quota)), State::SlidingLog(log)) = (&self.quota, state)
            && let (Reading::SlidingLog(reading), true) = (&mut measured.reading, measured.fits)
        {
            reading.wait = quota.wait_for_one(log, times, if is_kept { cost } else { 0 });
        }
        measured
    }

    #[inline]
    pub(crate) fn left_after(&self, reading: &PolicyReading, now: u64, asked: u64, charge: u64) -> (u64, Option<u64>) {
        let (remaining, reset) = match &self.quota {
            None => self.counter.left_after(&reading.counted, now, charge),
            Some(quota) => self.quota_left_after(quota, reading.counted, now, asked, charge),
        };
        match (self.locked_by(reading.locked, charge, || remaining), remaining) {
            (0, _) => (remaining, reset),
            // Until the next unit is available and the lockout has ended.
            (locked, 0) => (0, reset.map(|reset| reset.max(locked))),
            (locked, _) => (0, Some(locked)),
        }
    }

    #[cold]
    fn quota_left_after(
        &self,
        quota: &Counter,
        before: Reading,
        now: u64,
        asked: u64,
        charge: u64,
    ) -> (u64, Option<u64>) {
        let mut after = self.counter.charged(before, charge);
        if let (Reading::SlidingLog(before_charge), Reading::SlidingLog(after)) = (before, &mut after) {
            // The wait of a rejection is that of the ceiling, and the store did not know the units of a late charge.
            let is_known = charge <= asked && self.counter.admits(before, now, asked);
            after.wait = if is_known { before_charge.wait } else { 0 };
        }
        quota.left_after(&after, now, 0)
    }

    pub(crate) fn full_after(&self, reading: PolicyReading, now: u64) -> Option<u64> {
        let counted = self.counter.full_after(reading.counted, now);
        counted.max((reading.locked > 0).then_some(reading.locked))
    }

    pub(crate) fn wait(&self, reading: PolicyReading, now: u64, charge: u64) -> Option<u64> {
        // The wait of some counters is the time until they are full, even if the charge fits.
        let counted = match self.counter.admits(reading.counted, now, charge) {
            true if reading.locked > 0 => 0,
            _ => self.counter.wait(reading.counted, now, charge)?,
        };
        Some(counted.max(reading.locked))
    }

    /// The certain rejection, `elapsed` microseconds after a reading for a charge of `asked`. `None` if the charge may
    /// pass. For another charge, the wait of a log can be too long.
    #[inline]
    pub(crate) fn rejection(
        &self,
        reading: PolicyReading,
        now: u64,
        asked: u64,
        charge: u64,
        elapsed: u64,
    ) -> Option<ChargeRejection> {
        let PolicyReading { counted, locked } = reading;
        let Some(wait) = self.counter.wait(counted, now, charge) else {
            let later = match self.counter.form() {
                // The remaining units of a log cannot be predicted.
                Form::Log => None,
                Form::Numbers | Form::Slots => self.predict(reading, now, elapsed, 0, 0),
            };
            let later = later.unwrap_or(reading);
            let (remaining, reset) = self.left_after(&later, now.saturating_add(elapsed), asked, 0);
            return Some(ChargeRejection::Never { remaining, reset });
        };
        let (certain, shown) = match self.counter.admits(counted, now, charge) {
            true => (0, 0),
            false => self.counter.certain_wait(counted, asked, charge, wait),
        };
        (certain.max(locked) > elapsed).then(|| ChargeRejection::For(shown.max(locked) - elapsed))
    }

    pub(crate) fn predict(
        &self,
        reading: PolicyReading,
        now: u64,
        elapsed: u64,
        charge: u64,
        hold: u64,
    ) -> Option<PolicyReading> {
        let counted = self.counter.predict(reading.counted, now, elapsed, charge, hold)?;
        let left = reading.locked.saturating_sub(elapsed);
        let remaining = || self.counter.remaining(counted, now.saturating_add(elapsed));
        Some(PolicyReading {
            counted,
            locked: self.locked_by(left, charge, remaining),
        })
    }
}

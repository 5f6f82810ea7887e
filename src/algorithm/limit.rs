//! A counter with its lockout, and what a reading of both says.

use super::{ChargeRejection, Counter, Form, Lockout, Reading};

/// The whole arithmetic of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) counter: Counter,
    /// It begins with the charge that leaves less than one unit.
    pub(crate) lockout: Option<Lockout>,
}

/// The reading of a policy at one moment, before a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyReading {
    /// The reading of its counter.
    pub(crate) counted: Reading,
    /// The remaining microseconds of a lockout; 0 without one.
    pub(crate) locked: u64,
}

impl From<Reading> for PolicyReading {
    fn from(counted: Reading) -> Self {
        Self { counted, locked: 0 }
    }
}

/// See [`Arithmetic`](super::Arithmetic) for what is not explained here.
impl Limit {
    /// Returns `true` if a charge fits. During a lockout none does, not even of nothing.
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

    /// The rest of a lockout, or a new one if a charge has used the counter up.
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

    /// The units that are left after a charge, and their effective window.
    #[inline]
    pub(crate) fn left_after(&self, reading: &PolicyReading, now: u64, charge: u64) -> (u64, Option<u64>) {
        let (remaining, reset) = self.counter.left_after(&reading.counted, now, charge);
        match (self.locked_by(reading.locked, charge, || remaining), remaining) {
            (0, _) => (remaining, reset),
            // Until the next unit is there, and may be used.
            (locked, 0) => (0, reset.map(|reset| reset.max(locked))),
            (locked, _) => (0, Some(locked)),
        }
    }

    pub(crate) fn full_after(&self, reading: PolicyReading, now: u64) -> Option<u64> {
        let counted = self.counter.full_after(reading.counted, now);
        counted.max((reading.locked > 0).then_some(reading.locked))
    }

    pub(crate) fn wait(&self, reading: PolicyReading, now: u64, charge: u64) -> Option<u64> {
        // Some counters say when they are full again, whatever is left.
        let counted = match self.counter.admits(reading.counted, now, charge) {
            true if reading.locked > 0 => 0,
            _ => self.counter.wait(reading.counted, now, charge)?,
        };
        Some(counted.max(reading.locked))
    }

    /// Returns the rejection that is certain, `elapsed` microseconds after a reading that was made at `now` for a charge of
    /// `asked`; `None` if it may pass.
    ///
    /// The wait is the one after which it passes if no other request comes. Of a log it may be longer than that, where the
    /// reading was made for another charge.
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
                // Foresees only that a charge may not pass, not what remains.
                Form::Log => None,
                Form::Numbers | Form::Slots => self.predict(reading, now, elapsed, 0, 0),
            };
            let later = later.unwrap_or(reading);
            let (remaining, reset) = self.left_after(&later, now.saturating_add(elapsed), 0);
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

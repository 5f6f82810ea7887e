//! A lockout: a policy rejects every request for some time after it was exhausted.
//!
//! The rest of a lockout is stored as a bucket of microseconds that drains one per microsecond. Every store and
//! instance can therefore carry it over, even if its rules have no lockout or its version does not support lockouts.

use super::{Bucket, Counter, EXACT, Reading, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lockout {
    pub(crate) micros: u64,
    counter: Counter,
}

impl Lockout {
    pub(crate) fn new(secs: u64) -> Self {
        Self {
            micros: secs * 1_000_000,
            // Exhausted while the lockout lasts, with the eviction priority of an exhausted quota.
            counter: Counter::Bucket(Bucket {
                weight: 1,
                drain: 1,
                limit: 1,
                bound: EXACT - 1,
                is_leaky: false,
            }),
        }
    }

    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }

    pub(crate) fn left(&self, state: &State, times: Times) -> u64 {
        match self.counter.read(state, times, 0, 0) {
            Reading::Bucket(left) => left,
            _ => 0,
        }
    }

    pub(crate) fn state(left: u64) -> State {
        State::Bucket(left)
    }

    /// The rest after a charge was settled. A charge that exhausts the policy starts a lockout if there is none; a
    /// refund that restores a unit ends it.
    pub(crate) fn settled(&self, left: u64, is_refund: bool, is_used_up: bool) -> u64 {
        match (is_refund, is_used_up) {
            (false, true) if left == 0 => self.micros,
            (true, false) => 0,
            _ => left,
        }
    }
}

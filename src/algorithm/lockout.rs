//! The remaining time of a lockout is stored as a bucket of microseconds, so that instances can carry it without
//! knowing it.

use super::{Bucket, Counter, EXACT, Reading, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lockout {
    pub(crate) micros: u64,
    counter: Counter,
}

impl Lockout {
    pub(crate) fn new(secs: u64) -> Self {
        // Exhausted while the lockout lasts, so that it has the eviction priority of an exhausted quota.
        Self::of_micros(secs * 1_000_000, 1)
    }

    pub(super) fn of_micros(micros: u64, limit: u64) -> Self {
        Self {
            micros,
            counter: Counter::Bucket(Bucket {
                weight: 1,
                drain: 1,
                limit,
                bound: EXACT - 1,
                is_leaky: false,
                keeps_rate: false,
            }),
        }
    }

    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }

    pub(crate) fn left(&self, state: &State, times: Times) -> u64 {
        match self.counter.read(state, times, 0, 0) {
            Reading::Bucket(reading) => reading.used,
            _ => 0,
        }
    }

    pub(crate) fn state(left: u64) -> State {
        State::Bucket(left)
    }

    pub(crate) fn settled(&self, left: u64, is_refund: bool, is_used_up: bool) -> u64 {
        match (is_refund, is_used_up) {
            (false, true) if left == 0 => self.micros,
            (true, false) => 0,
            _ => left,
        }
    }
}

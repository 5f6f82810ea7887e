//! A lockout: for some time after it was used up, a policy rejects every request.
//!
//! The rest of a lockout is kept as a bucket of microseconds, which drains one of them in each. So every store and every
//! instance carries it as it carries any bucket, also one whose rules have no lockout, and one that is older than lockouts.

use super::{Bucket, Counter, EXACT, Reading, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lockout {
    /// Its length.
    pub(crate) micros: u64,
    counter: Counter,
}

impl Lockout {
    pub(crate) fn new(secs: u64) -> Self {
        Self {
            micros: secs * 1_000_000,
            // It holds one unit while anything is left of it, so that its worth to a full store is that of a used up quota.
            counter: Counter::Bucket(Bucket {
                weight: 1,
                drain: 1,
                limit: 1,
                bound: EXACT - 1,
                is_leaky: false,
            }),
        }
    }

    /// The counter of the bucket in which the rest is kept.
    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }

    /// The rest of it.
    pub(crate) fn left(&self, state: &State, times: Times) -> u64 {
        match self.counter.read(state, times, 0, 0) {
            Reading::Bucket(left) => left,
            _ => 0,
        }
    }

    /// The state with so much left.
    pub(crate) fn state(left: u64) -> State {
        State::Bucket(left)
    }

    /// The rest after a charge that was changed late. One that uses the policy up begins a lockout, unless there is one; a
    /// refund that leaves a unit lifts it.
    pub(crate) fn settled(&self, left: u64, is_refund: bool, is_used_up: bool) -> u64 {
        match (is_refund, is_used_up) {
            (false, true) if left == 0 => self.micros,
            (true, false) => 0,
            _ => left,
        }
    }
}

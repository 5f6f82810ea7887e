//! The first level of a caller's bucket, if the bucket does not begin full.
//!
//! A caller is new if nothing of its bucket is used and its *known time* has passed, which restarts whenever the level
//! is written. It lasts longer than any wait for the policies of the partition: a caller that was told when its bucket
//! is full must find it full. It is stored like a lockout.

use super::{Bucket, Counter, EXACT, Lockout, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newcomer {
    pub(crate) level: u64,
    pub(crate) known: Lockout,
}

impl Newcomer {
    const KNOWN_MICROS: u64 = 3_600_000_000;

    pub(crate) fn new(bucket: &Bucket, units: u64) -> Self {
        let level = bucket.limit - units * bucket.weight;
        Self::known_for(level, bucket.micros_to_drain(bucket.bound))
    }

    pub(crate) fn known_for(level: u64, longest: u64) -> Self {
        let micros = longest.saturating_add(Self::KNOWN_MICROS).min(EXACT - 1);
        Self {
            level,
            known: Lockout::of_micros(micros, EXACT - 1),
        }
    }

    pub(crate) fn counter(&self) -> &Counter {
        self.known.counter()
    }

    pub(crate) fn is_new(&self, level: &State, known: &State, times: Times) -> bool {
        matches!(level, State::Bucket(0)) && self.known.left(known, times) == 0
    }

    pub(crate) fn known(&self) -> State {
        Lockout::state(self.known.micros)
    }
}

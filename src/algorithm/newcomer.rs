//! The first level of a caller's bucket, if the bucket does not begin full.
//!
//! A caller is new if nothing of its bucket is used and its *known time* has passed. It restarts whenever the level is
//! written, and lasts longer than any wait for the policies of the same partition: a caller that was told when its
//! bucket is full must find it full. Like a lockout, it is stored as a bucket of microseconds, so that instances can
//! carry it without knowing the setting.

use super::{Bucket, Counter, EXACT, Lockout, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newcomer {
    pub(crate) level: u64,
    pub(crate) known: Lockout,
}

impl Newcomer {
    /// How long a caller stays known after the longest wait.
    const KNOWN_MICROS: u64 = 3_600_000_000;

    /// `units` must be less than the capacity.
    pub(crate) fn new(bucket: &Bucket, units: u64) -> Self {
        let level = bucket.limit - units * bucket.weight;
        Self::known_for(level, bucket.micros_to_drain(bucket.bound))
    }

    /// With a known time for waits of up to `longest`.
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

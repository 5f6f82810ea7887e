//! Leaky bucket: requests leave at a constant rate, one after the other.
//!
//! The bucket of a token bucket with the words turned around: what was used is what has not left yet. A request that
//! finds something in it waits until that has left; a *meter* has no places to wait in.

use super::token_bucket::TokenBucket;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakyBucket {
    /// Holds the unit that is leaving and the units that wait.
    pub(crate) bucket: TokenBucket,
}

impl LeakyBucket {
    pub(crate) fn new(quota: u64, window_secs: u64, places: u64) -> Result<Self, String> {
        TokenBucket::new(quota, window_secs, places.saturating_add(1)).map(|bucket| Self { bucket })
    }

    /// Microseconds until a request leaves that comes when this much has not left yet.
    pub(crate) fn delay(&self, used: u64) -> u64 {
        self.bucket.micros_to_drain(used)
    }

    /// What is in the bucket once a charge is taken out again that was made `age` microseconds ago and filled it up to
    /// `used_then`.
    ///
    /// Only the last place can be given up: those behind another one know when they leave. It was the last if nothing
    /// has come in since.
    pub(crate) fn given_up(&self, used: u64, charge: u64, used_then: u64, age: u64) -> u64 {
        if used == self.bucket.drained(used_then, age) {
            used.saturating_sub(charge)
        } else {
            used
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L20
    #[test]
    fn requests_leave_half_a_second_apart_at_two_a_second() {
        let leaky = LeakyBucket::new(2, 1, 3).unwrap();
        let unit = leaky.bucket.weight;
        let delays: Vec<u64> = (0..4).map(|ahead| leaky.delay(ahead * unit)).collect();
        assert_eq!(delays, [0, 500_000, 1_000_000, 1_500_000]);
        assert!(leaky.bucket.admits(3 * unit, unit) && !leaky.bucket.admits(3 * unit + 1, unit));
    }

    #[test]
    fn only_the_last_place_can_be_given_up() {
        let leaky = LeakyBucket::new(2, 1, 3).unwrap();
        let (unit, second) = (leaky.bucket.weight, 500_000);
        assert_eq!(leaky.given_up(2 * unit, unit, 2 * unit, 0), unit);
        assert_eq!(leaky.given_up(unit, unit, 2 * unit, second), 0);
        assert_eq!(leaky.given_up(3 * unit, unit, 2 * unit, 0), 3 * unit);
    }
}

//! Leaky bucket: requests leave at a constant rate, one after the other.
//!
//! The bucket of a token bucket with the words turned around: what was used is what has not left yet. A request that
//! finds something in it waits until that has left; a *meter* has no places to wait in.

use super::{Arithmetic, Reader, Receipt, Times, TokenBucket, Writer};
use crate::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakyBucket {
    /// Holds the unit that is leaving and the units that wait.
    pub(crate) bucket: TokenBucket,
}

impl LeakyBucket {
    pub(crate) fn new(quota: u64, window_secs: u64, places: u64) -> Result<Self, String> {
        TokenBucket::new(quota, window_secs, places.saturating_add(1)).map(|bucket| Self { bucket })
    }

    /// The level of the bucket after a refund of a charge that was made `age` microseconds ago and filled it up to
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

impl Arithmetic for LeakyBucket {
    type State = u64;
    type Reading = u64;

    const CODE: u64 = 2;

    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        self.bucket.weigh(cost)
    }

    fn units(&self) -> u64 {
        self.bucket.units()
    }

    fn fill_micros(&self) -> u64 {
        self.bucket.fill_micros()
    }

    #[inline]
    fn read(&self, used: &u64, times: Times, charge: u64, first: u64) -> u64 {
        self.bucket.read(used, times, charge, first)
    }

    #[inline]
    fn charge(&self, state: &mut u64, now: u64, used: u64, charge: u64, lease: Option<Lease>) {
        self.bucket.charge(state, now, used, charge, lease);
    }

    fn believed(&self, used: u64, charge: u64) -> u64 {
        self.bucket.believed(used, charge)
    }

    fn refund(&self, used: &mut u64, now: u64, refund: u64, receipt: Receipt) {
        *used = self.given_up(*used, refund, receipt.mark, now.saturating_sub(receipt.at));
    }

    /// A request that has left the bucket has used its place.
    fn is_refundable(is_unused: bool) -> bool {
        is_unused
    }

    fn advance(&self, used: &mut u64, times: Times) {
        self.bucket.advance(used, times);
    }

    fn convert(&self, used: &u64, from: &Self) -> u64 {
        self.bucket.convert(used, &from.bucket)
    }

    fn empty_at(&self, used: &u64, last: u64) -> u64 {
        self.bucket.empty_at(used, last)
    }

    fn write(&self, used: &u64, bytes: &mut Writer) {
        self.bucket.write(used, bytes);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, u64)> {
        let (bucket, used) = TokenBucket::parse(bytes)?;
        Some((Self { bucket }, used))
    }

    #[inline]
    fn is_counted(used: u64) -> bool {
        TokenBucket::is_counted(used)
    }

    #[inline]
    fn admits(&self, used: u64, now: u64, charge: u64) -> bool {
        self.bucket.admits(used, now, charge)
    }

    #[inline]
    fn charged(&self, used: u64, charge: u64) -> u64 {
        self.bucket.charged(used, charge)
    }

    fn mark(used: u64, charge: u64) -> u64 {
        TokenBucket::mark(used, charge)
    }

    fn remaining(&self, used: u64, now: u64) -> u64 {
        self.bucket.remaining(used, now)
    }

    fn reset(&self, used: u64, now: u64) -> Option<u64> {
        self.bucket.reset(used, now)
    }

    fn wait(&self, used: u64, now: u64, charge: u64) -> Option<u64> {
        self.bucket.wait(used, now, charge)
    }

    /// Until those have left that came before.
    #[inline]
    fn delay(&self, used: u64, charge: u64) -> u64 {
        if charge > 0 {
            self.bucket.micros_to_drain(used)
        } else {
            0
        }
    }

    fn foreseen(&self, used: u64, now: u64, elapsed: u64, charge: u64, hold: u64) -> Option<u64> {
        self.bucket.foreseen(used, now, elapsed, charge, hold)
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
        let delays: Vec<u64> = (0..4).map(|ahead| leaky.delay(ahead * unit, unit)).collect();
        assert_eq!(delays, [0, 500_000, 1_000_000, 1_500_000]);
        assert!(leaky.admits(3 * unit, 0, unit) && !leaky.admits(3 * unit + 1, 0, unit));
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

//! Fixed window counter: counts in windows that begin at whole multiples of their length since the Unix epoch.

use super::{Arithmetic, Reader, Receipt, Times, Writer, least_time_for, window_start};
use crate::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    pub(crate) window_micros: u64,
    /// Units per window.
    pub(crate) limit: u64,
    /// The most used units that are ever believed.
    pub(crate) bound: u64,
}

impl FixedWindow {
    pub(crate) fn new(quota: u64, window_secs: u64) -> Self {
        Self {
            window_micros: window_secs * 1_000_000,
            limit: quota,
            bound: quota * 2,
        }
    }

    /// The count now, from the count when the state was written.
    pub(crate) fn counted(&self, used: u64, times: Times) -> u64 {
        if window_start(times.last, self.window_micros) == window_start(times.now, self.window_micros) {
            used.min(self.bound)
        } else {
            0
        }
    }

    pub(crate) fn micros_left(&self, now: u64) -> u64 {
        self.window_micros - now % self.window_micros
    }

    /// The used units after a refund of units charged at `charged_at`: zero if that was in another window.
    pub(crate) fn refunded(&self, used: u64, refund: u64, charged_at: u64, now: u64) -> u64 {
        if charged_at >= window_start(now, self.window_micros) {
            used.saturating_sub(refund)
        } else {
            used
        }
    }
}

impl Arithmetic for FixedWindow {
    /// The used units.
    type State = u64;
    type Reading = u64;

    const CODE: u64 = 3;

    fn units(&self) -> u64 {
        self.limit
    }

    fn fill_micros(&self) -> u64 {
        self.window_micros
    }

    fn lapse_micros(&self, now: u64) -> Option<u64> {
        Some(self.micros_left(now))
    }

    #[inline]
    fn read(&self, used: &u64, times: Times, _charge: u64, _first: u64) -> u64 {
        self.counted(*used, times)
    }

    #[inline]
    fn charge(&self, state: &mut u64, _now: u64, used: u64, charge: u64, _lease: Option<Lease>) {
        *state = used + charge;
    }

    fn believed(&self, used: u64, charge: u64) -> u64 {
        charge.min(self.bound.saturating_sub(used))
    }

    fn refund(&self, used: &mut u64, now: u64, refund: u64, receipt: Receipt) {
        *used = self.refunded(*used, refund, receipt.at, now);
    }

    fn advance(&self, used: &mut u64, times: Times) {
        *used = self.counted(*used, times);
    }

    fn convert(&self, used: &u64, _from: &Self) -> u64 {
        (*used).min(self.bound)
    }

    fn empty_at(&self, used: &u64, last: u64) -> u64 {
        match used {
            0 => last,
            1.. => last + self.micros_left(last),
        }
    }

    fn write(&self, used: &u64, bytes: &mut Writer) {
        for number in [self.window_micros, self.limit, self.bound, *used] {
            bytes.write(number);
        }
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, u64)> {
        let own = Self {
            window_micros: bytes.divisor()?,
            limit: bytes.amount()?,
            bound: bytes.amount()?,
        };
        Some((own, bytes.amount()?))
    }

    #[inline]
    fn is_counted(used: u64) -> bool {
        used > 0
    }

    #[inline]
    fn admits(&self, used: u64, _now: u64, charge: u64) -> bool {
        used.saturating_add(charge) <= self.limit
    }

    #[inline]
    fn charged(&self, used: u64, charge: u64) -> u64 {
        used.saturating_add(charge).min(self.bound)
    }

    fn remaining(&self, used: u64, _now: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    /// Until the window ends; longer if so many units are left that a client would be invited to more than twice the
    /// rate.
    fn reset(&self, used: u64, now: u64) -> Option<u64> {
        let least = least_time_for(self.remaining(used, now), self.limit, self.window_micros);
        Some(self.micros_left(now).max(least))
    }

    fn wait(&self, _used: u64, now: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| self.micros_left(now))
    }

    fn foreseen(&self, used: u64, now: u64, elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        Some(self.charged(self.counted(used, Times::since(now, elapsed)), charge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    #[test]
    fn windows_begin_at_multiples_of_their_length() {
        let window = FixedWindow::new(10, 60);
        let at = |last, now| Times { last, now };
        assert_eq!(window.counted(7, at(MINUTE, 2 * MINUTE - 1)), 7);
        assert_eq!(window.counted(7, at(2 * MINUTE - 1, 2 * MINUTE)), 0);
        assert_eq!(window.wait(10, 2 * MINUTE - 1, 1), Some(1));
        assert_eq!(window.wait(10, 2 * MINUTE, 1), Some(MINUTE));
        assert_eq!(window.wait(10, 2 * MINUTE, 11), None);
    }

    /// D6: ten units for the last second of a minute would invite to sixty times the rate.
    #[test]
    fn the_end_of_a_window_does_not_invite_to_more_than_twice_the_rate() {
        let window = FixedWindow::new(10, 60);
        assert_eq!(window.reset(0, 2 * MINUTE - 1), Some(MINUTE / 2));
        assert_eq!(window.reset(10, 2 * MINUTE - 1), Some(1));
        assert_eq!(window.reset(9, MINUTE), Some(MINUTE));
    }

    #[test]
    fn units_of_a_window_that_is_over_do_not_come_back() {
        let window = FixedWindow::new(10, 60);
        assert_eq!(window.refunded(3, 2, MINUTE, MINUTE + 5), 1);
        assert_eq!(window.refunded(3, 5, MINUTE, MINUTE + 5), 0);
        assert_eq!(window.refunded(3, 2, MINUTE - 1, MINUTE + 5), 3);
    }
}

//! Fixed window counter: counts in windows that begin at whole multiples of their length since the Unix epoch.

use super::{Times, least_time_for, window_start};

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

    /// What is counted now of what was counted when the state was written.
    pub(crate) fn counted(&self, used: u64, times: Times) -> u64 {
        if window_start(times.last, self.window_micros) == window_start(times.now, self.window_micros) {
            used.min(self.bound)
        } else {
            0
        }
    }

    pub(crate) fn admits(&self, used: u64, charge: u64) -> bool {
        used.saturating_add(charge) <= self.limit
    }

    pub(crate) fn wait(&self, now: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| self.micros_left(now))
    }

    /// Until the window ends; longer if so many units are left that a client would be invited to more than twice the
    /// rate.
    pub(crate) fn reset(&self, used: u64, now: u64) -> u64 {
        let remaining = self.limit.saturating_sub(used);
        self.micros_left(now)
            .max(least_time_for(remaining, self.limit, self.window_micros))
    }

    pub(crate) fn micros_left(&self, now: u64) -> u64 {
        self.window_micros - now % self.window_micros
    }

    /// What is used once units are given back that were charged at `charged_at`: nothing, if that was in another window.
    pub(crate) fn refunded(&self, used: u64, refund: u64, charged_at: u64, now: u64) -> u64 {
        if charged_at >= window_start(now, self.window_micros) {
            used.saturating_sub(refund)
        } else {
            used
        }
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
        assert_eq!(window.wait(2 * MINUTE - 1, 1), Some(1));
        assert_eq!(window.wait(2 * MINUTE, 1), Some(MINUTE));
        assert_eq!(window.wait(2 * MINUTE, 11), None);
    }

    /// D6: ten units for the last second of a minute would invite to sixty times the rate.
    #[test]
    fn the_end_of_a_window_does_not_invite_to_more_than_twice_the_rate() {
        let window = FixedWindow::new(10, 60);
        assert_eq!(window.reset(0, 2 * MINUTE - 1), MINUTE / 2);
        assert_eq!(window.reset(10, 2 * MINUTE - 1), 1);
        assert_eq!(window.reset(9, MINUTE), MINUTE);
    }

    #[test]
    fn units_of_a_window_that_is_over_do_not_come_back() {
        let window = FixedWindow::new(10, 60);
        assert_eq!(window.refunded(3, 2, MINUTE, MINUTE + 5), 1);
        assert_eq!(window.refunded(3, 5, MINUTE, MINUTE + 5), 0);
        assert_eq!(window.refunded(3, 2, MINUTE - 1, MINUTE + 5), 3);
    }
}

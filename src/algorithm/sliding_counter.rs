use super::{Arithmetic, Late, Reader, Receipt, Sent, Times, Window, Writer, window::MAX_COUNT};
use crate::lease::Lease;

/// Products of units and microseconds need 128 bits; the script multiplies in halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingCounter(pub(crate) Window);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl SlidingCounter {
    pub(crate) fn new(quota: u64, window_secs: u64) -> Self {
        Self(Window::new(quota, window_secs))
    }

    pub(crate) fn rolled(&self, windows: Windows, times: Times) -> Windows {
        let (start, its_start) = (self.0.start(times.now), self.0.start(times.last));
        let (previous, current) = if its_start == start {
            (windows.previous, windows.current)
        } else if start.saturating_sub(its_start) == self.0.micros {
            (windows.current, 0)
        } else {
            (0, 0)
        };
        Windows {
            previous: previous.min(MAX_COUNT),
            current: current.min(MAX_COUNT),
        }
    }

    fn weight_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.0.micros)
    }

    fn overlapping(&self, previous: u64, now: u64) -> u128 {
        u128::from(previous) * u128::from(self.0.left(now))
    }

    fn weight(&self, windows: Windows, now: u64) -> u128 {
        self.overlapping(windows.previous, now)
            .saturating_add(self.weight_of(windows.current))
    }

    /// From the start of a window until `count` units of the previous one weigh at most `room` units.
    fn micros_until_overlap(&self, count: u64, room: u64) -> u64 {
        let window = u128::from(self.0.micros);
        let overlap = self
            .weight_of(room)
            .checked_div(count.into())
            .unwrap_or(window)
            .min(window);
        (window - overlap) as u64
    }

    fn empty_from(&self, windows: Windows, last: u64) -> u64 {
        let from_start = match windows {
            Windows { current: 1.., .. } => 2 * self.0.micros,
            Windows { previous: 1.., .. } => self.0.micros,
            Windows { .. } => 0,
        };
        self.0.start(last).saturating_add(from_start)
    }
}

impl Arithmetic for SlidingCounter {
    type State = Box<Windows>;
    type Reading = Windows;

    const CODE: u64 = 4;

    const WIDTH: usize = 2;

    fn units(&self) -> u64 {
        self.0.limit
    }

    fn fill_micros(&self) -> u64 {
        self.0.micros
    }

    fn read(&self, windows: &Box<Windows>, times: Times, _charge: u64, _first: u64) -> Windows {
        self.rolled(**windows, times)
    }

    fn charge(&self, state: &mut Box<Windows>, _now: u64, windows: Windows, charge: u64, _lease: Option<Lease>) {
        **state = Windows {
            current: windows.current + charge,
            ..windows
        };
    }

    fn believed(&self, windows: Windows, late: Late<'_, Self>) -> u64 {
        late.settling.0.believed(windows.current, late.charge)
    }

    fn refund(&self, windows: &mut Box<Windows>, now: u64, refund: u64, _settling: &Self, receipt: Receipt) {
        let units = match receipt.at >= self.0.start(now) {
            true => &mut windows.current,
            false => &mut windows.previous,
        };
        *units = units.saturating_sub(refund);
    }

    fn advance(&self, windows: &mut Box<Windows>, times: Times) {
        **windows = self.rolled(**windows, times);
    }

    fn empty_at(&self, windows: &Box<Windows>, last: u64) -> u64 {
        self.empty_from(**windows, last)
    }

    fn write(&self, windows: &Box<Windows>, bytes: &mut Writer) {
        self.0.write(bytes);
        bytes.write_all([windows.previous, windows.current]);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Windows>)> {
        let own = Self(Window::parse(bytes)?);
        let windows = Windows {
            previous: bytes.amount()?,
            current: bytes.amount()?,
        };
        Some((own, Box::new(windows)))
    }

    fn sent(&self, _lease_micros: u64) -> Sent {
        self.0.sent(-4)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        Some(Windows {
            previous: next()?,
            current: next()?,
        })
    }

    fn admits(&self, windows: Windows, now: u64, charge: u64) -> bool {
        let room = self.0.limit.checked_sub(windows.current.saturating_add(charge));
        room.is_some_and(|room| self.overlapping(windows.previous, now) <= self.weight_of(room))
    }

    fn charged(&self, windows: Windows, charge: u64) -> Windows {
        Windows {
            current: self.0.charged(windows.current, charge),
            ..windows
        }
    }

    fn remaining(&self, windows: Windows, now: u64) -> u64 {
        let left = self.weight_of(self.0.limit).saturating_sub(self.weight(windows, now));
        // The result is at most the limit.
        (left / u128::from(self.0.micros)) as u64
    }

    /// If no unit remains, until the next one.
    fn reset(&self, windows: Windows, now: u64) -> Option<u64> {
        Some(match self.remaining(windows, now) {
            0 => self.wait(windows, now, 1).unwrap_or(0),
            remaining => self.0.left(now).max(self.0.least_time_for(remaining)),
        })
    }

    fn full_after(&self, windows: Windows, now: u64) -> Option<u64> {
        let micros = self.empty_from(windows, now).saturating_sub(now);
        (micros > 0).then_some(micros)
    }

    fn wait(&self, windows: Windows, now: u64, charge: u64) -> Option<u64> {
        let left = self.0.limit.checked_sub(charge)?;
        if self.admits(windows, now, charge) {
            return Some(0);
        }
        // If the count of this window leaves enough room, the charge passes within this window. Otherwise, it passes in
        // the next window, in which this window is the previous window.
        let from_start = match left.checked_sub(windows.current) {
            Some(room) => self.micros_until_overlap(windows.previous, room),
            None => self.0.micros + self.micros_until_overlap(windows.current, left),
        };
        Some(from_start - (now - self.0.start(now)))
    }

    fn predict(&self, windows: Windows, now: u64, elapsed: u64, charge: u64, _hold: u64) -> Option<Windows> {
        Some(self.charged(self.rolled(windows, Times::since(now, elapsed)), charge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn windows(previous: u64, current: u64) -> Windows {
        Windows { previous, current }
    }

    #[test]
    fn the_last_window_is_weighed_by_its_overlap() {
        let counter = SlidingCounter::new(12, 60);
        let now = 7 * MINUTE + MINUTE / 4;
        let units = counter.weight(windows(10, 3), now) as f64 / MINUTE as f64;
        assert_eq!(units.to_bits(), 10.5_f64.to_bits());
        assert_eq!(counter.remaining(windows(10, 3), now), 1);
        assert!(counter.admits(windows(10, 3), now, 1) && !counter.admits(windows(10, 3), now, 2));
    }

    #[test]
    fn a_wait_ends_in_this_window_or_in_the_next() {
        let counter = SlidingCounter::new(10, 60);
        // 10 × overlap + 1 ≤ 10 at a tenth of the window.
        assert_eq!(counter.wait(windows(10, 0), MINUTE, 1), Some(MINUTE / 10));
        // This window is full: as the previous window, its weight must decrease by a tenth.
        assert_eq!(counter.wait(windows(0, 10), MINUTE, 1), Some(MINUTE + MINUTE / 10));
        assert_eq!(counter.wait(windows(0, 10), MINUTE, 10), Some(2 * MINUTE));
        assert_eq!(counter.wait(windows(0, 0), MINUTE, 11), None);
    }

    #[test]
    fn the_largest_quota_in_the_longest_window_is_exact_to_the_microsecond() {
        let (quota, window) = (999_999_999_999_999, 1_000_000_000);
        let counter = SlidingCounter::new(quota, window);
        let now = 3 * counter.0.micros + 1;
        // A microsecond of this window is slightly less than one unit.
        assert_eq!(counter.remaining(windows(quota, 0), now - 1), 0);
        assert_eq!(counter.remaining(windows(quota, 0), now), 0);
        assert_eq!(counter.remaining(windows(quota, 0), now + 1), 1);
        assert!(counter.admits(windows(quota, 0), now + 1, 1) && !counter.admits(windows(quota, 0), now, 1));
        assert_eq!(counter.wait(windows(quota, 0), now - 1, 1), Some(2));
    }
}

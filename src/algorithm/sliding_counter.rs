//! Sliding window counter: the count of this window, and that of the last one weighed by how much of it the sliding
//! window still covers.

use super::{EXACT, Times, least_time_for, window_start};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingCounter {
    pub(crate) window_micros: u64,
    /// How finely the overlap is measured: the finest of a microsecond, a millisecond and a second with which amounts
    /// stay exact. The overlap is rounded up, so that a coarser one admits less and never more.
    pub(crate) tick_micros: u64,
    /// Units per window.
    pub(crate) limit: u64,
    /// The most units in a window that are ever believed.
    pub(crate) bound: u64,
}

/// Units counted in two windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl SlidingCounter {
    const TICKS: [u64; 3] = [1, 1_000, 1_000_000];

    pub(crate) fn new(quota: u64, window_secs: u64) -> Result<Self, String> {
        let window_micros = window_secs * 1_000_000;
        let bound = quota * 2;
        // Both windows may be at their bound.
        let is_exact = |tick: &u64| u128::from(bound) * 2 * u128::from(window_micros / tick) < u128::from(EXACT);
        let tick_micros = Self::TICKS.into_iter().find(is_exact).ok_or_else(|| {
            format!("quota {quota} per {window_secs} s cannot be counted exactly by a sliding window counter")
        })?;
        Ok(Self {
            window_micros,
            tick_micros,
            limit: quota,
            bound,
        })
    }

    /// Ticks of a window: what one unit of this window weighs.
    fn ticks(&self) -> u64 {
        self.window_micros / self.tick_micros
    }

    /// The windows as seen from now.
    pub(crate) fn rolled(&self, windows: Windows, times: Times) -> Windows {
        let start = window_start(times.now, self.window_micros);
        let its_start = window_start(times.last, self.window_micros);
        let Windows { previous, current } = if its_start == start {
            windows
        } else if its_start + self.window_micros == start {
            Windows {
                previous: windows.current,
                current: 0,
            }
        } else {
            Windows::default()
        };
        Windows {
            previous: previous.min(self.bound),
            current: current.min(self.bound),
        }
    }

    /// What is used in ticks: the overlap shrinks by one each tick.
    pub(crate) fn weight(&self, windows: Windows, now: u64) -> u64 {
        let overlap = self.ticks() - now % self.window_micros / self.tick_micros;
        // Windows that a store has read are within the bound; what else a server may answer, nobody knows.
        let previous = windows.previous.saturating_mul(overlap);
        previous.saturating_add(windows.current.saturating_mul(self.ticks()))
    }

    pub(crate) fn admits(&self, windows: Windows, now: u64, charge: u64) -> bool {
        let weight = self
            .weight(windows, now)
            .saturating_add(charge.saturating_mul(self.ticks()));
        weight <= self.limit * self.ticks()
    }

    pub(crate) fn remaining(&self, windows: Windows, now: u64) -> u64 {
        (self.limit * self.ticks()).saturating_sub(self.weight(windows, now)) / self.ticks()
    }

    /// Microseconds until a charge passes if nothing else is used; `None` if it never does.
    pub(crate) fn wait(&self, windows: Windows, now: u64, charge: u64) -> Option<u64> {
        let left = self.limit.checked_sub(charge)?;
        if self.admits(windows, now, charge) {
            return Some(0);
        }
        let start = window_start(now, self.window_micros);
        // The end of this window at the latest, if this window's own count leaves room for it; else within the next,
        // in which this window is the previous one.
        let passes_at = match left.checked_sub(windows.current) {
            Some(room) => start + self.micros_until_overlap(windows.previous, room),
            None => start + self.window_micros + self.micros_until_overlap(windows.current, left),
        };
        Some(passes_at - now)
    }

    /// Microseconds after the start of a window when `count` of the window before weighs at most `room` units.
    fn micros_until_overlap(&self, count: u64, room: u64) -> u64 {
        let ticks = self.ticks();
        let overlap = (room * ticks).checked_div(count).unwrap_or(ticks).min(ticks);
        (ticks - overlap) * self.tick_micros
    }

    /// Until the window ends, or longer if that would invite a client to more than twice the rate; with nothing left,
    /// until the next unit.
    pub(crate) fn reset(&self, windows: Windows, now: u64) -> u64 {
        match self.remaining(windows, now) {
            0 => self.wait(windows, now, 1).unwrap_or(0),
            remaining => (self.window_micros - now % self.window_micros).max(least_time_for(
                remaining,
                self.limit,
                self.window_micros,
            )),
        }
    }

    /// What is counted once units are given back that were charged at `charged_at`.
    pub(crate) fn refunded(&self, windows: Windows, refund: u64, charged_at: u64, now: u64) -> Windows {
        let start = window_start(now, self.window_micros);
        let Windows { previous, current } = windows;
        if charged_at >= start {
            Windows {
                previous,
                current: current.saturating_sub(refund),
            }
        } else {
            Windows {
                previous: previous.saturating_sub(refund),
                current,
            }
        }
    }

    /// Microseconds from the start of a window until these counts weigh nothing.
    pub(crate) fn micros_from_start(&self, windows: Windows) -> u64 {
        match windows {
            Windows { current: 1.., .. } => 2 * self.window_micros,
            Windows { previous: 1.., .. } => self.window_micros,
            Windows { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn windows(previous: u64, current: u64) -> Windows {
        Windows { previous, current }
    }

    /// L18: a quarter into the window, 3 + 10 × 75 % = 10.5.
    #[test]
    fn the_last_window_is_weighed_by_its_overlap() {
        let counter = SlidingCounter::new(12, 60).unwrap();
        let now = 7 * MINUTE + MINUTE / 4;
        let units = counter.weight(windows(10, 3), now) as f64 / counter.ticks() as f64;
        assert_eq!(units.to_bits(), 10.5_f64.to_bits());
        assert_eq!(counter.remaining(windows(10, 3), now), 1);
        assert!(counter.admits(windows(10, 3), now, 1) && !counter.admits(windows(10, 3), now, 2));
    }

    #[test]
    fn a_wait_ends_in_this_window_or_in_the_next() {
        let counter = SlidingCounter::new(10, 60).unwrap();
        // 10 × overlap + 1 ≤ 10 at a tenth of the window.
        assert_eq!(counter.wait(windows(10, 0), MINUTE, 1), Some(MINUTE / 10));
        // This window is full: it has to become the last one and lose a tenth of its weight.
        assert_eq!(counter.wait(windows(0, 10), MINUTE, 1), Some(MINUTE + MINUTE / 10));
        assert_eq!(counter.wait(windows(0, 10), MINUTE, 10), Some(2 * MINUTE));
        assert_eq!(counter.wait(windows(0, 0), MINUTE, 11), None);
    }

    #[test]
    fn large_quotas_are_measured_in_coarser_ticks_and_absurd_ones_refused() {
        let tick = |quota, window| {
            SlidingCounter::new(quota, window)
                .map(|counter| counter.tick_micros)
                .ok()
        };
        assert_eq!(tick(5_000, 86_400), Some(1));
        assert_eq!(tick(1_000_000, 86_400), Some(1_000));
        assert_eq!(tick(10_000_000_000, 86_400), Some(1_000_000));
        assert_eq!(tick(999_999_999_999_999, 86_400), None);
    }
}

//! Fixed windows for calendar days, weeks and months in a time zone.
//!
//! A count contains the start of its window, because instances may have different time-zone data. A window that starts
//! nearer to a boundary than to the one before it is treated as the window of that boundary.

mod borders;
mod period;
#[cfg_attr(feature = "calendar", path = "calendar/zone.rs")]
#[cfg_attr(not(feature = "calendar"), path = "calendar/no_zone.rs")]
mod zone;

use self::borders::SECOND;
pub use self::period::{CalendarPeriod, Weekday};
pub(crate) use self::{borders::Borders, zone::TIME_ZONE_DATA};
use super::{Arithmetic, Late, Reader, Receipt, Times, Writer, window::MAX_COUNT};
use crate::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    /// Units per window.
    pub(crate) limit: u64,
    /// The maximum count after a late charge: twice the limit.
    pub(crate) bound: u64,
    windows: Windows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    Of(&'static Borders),
    /// The only window in a ledger's bytes, for a policy that this instance does not have.
    Only {
        start: u64,
        end: u64,
    },
}

/// A window and the boundaries next to it.
#[derive(Clone, Copy)]
struct Near {
    before: u64,
    start: u64,
    end: u64,
    after: u64,
}

/// `start` is the start of the window in which the units were used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    start: u64,
    used: u64,
}

impl Calendar {
    pub(crate) fn new(quota: u64, borders: &'static Borders) -> Self {
        Self {
            limit: quota,
            bound: quota * 2,
            windows: Windows::Of(borders),
        }
    }

    /// For stores that compute no dates.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only the memory store computes dates")
    )]
    pub(crate) fn borders(&self) -> Option<&'static Borders> {
        match self.windows {
            Windows::Of(borders) => Some(borders),
            Windows::Only { .. } => None,
        }
    }

    fn near(&self, moment: u64) -> Near {
        let [before, start, end, after] = match self.windows {
            Windows::Of(borders) => borders.near(moment),
            Windows::Only { start, end } if moment < end => [0, start, end, u64::MAX],
            Windows::Only { start, end } => [start, end, u64::MAX, u64::MAX],
        };
        Near {
            before,
            start,
            end,
            after,
        }
    }

    fn left(&self, moment: u64) -> u64 {
        self.near(moment).end - moment
    }

    fn length(&self, moment: u64) -> u64 {
        let near = self.near(moment);
        near.end - near.start
    }

    fn rolled(&self, count: Count, times: Times) -> Count {
        let near = self.near(times.now);
        let is_held = match count.start > times.last {
            // Written by a clock that was ahead. The count belongs to the window at `last`, the time to which the state
            // was moved.
            true => times.last >= near.start,
            false => near.has(count.start),
        };
        Count {
            start: near.start_for(count.start, times.now),
            used: if is_held { count.used.min(MAX_COUNT) } else { 0 },
        }
    }

    /// The time in which `units` correspond to at most twice the rate.
    fn least_time_for(&self, units: u64, now: u64) -> u64 {
        let micros = (u128::from(units) * u128::from(self.length(now))).div_ceil(2 * u128::from(self.limit));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

impl Near {
    /// Returns `true` if a count with this start belongs to this window. The start can come from different time-zone
    /// data, and can be in a later window.
    fn has(&self, start: u64) -> bool {
        start >= self.start || self.start - start < start.saturating_sub(self.before)
    }

    /// Returns the start to store when a count with the given start is continued.
    fn start_for(&self, start: u64, now: u64) -> u64 {
        if (self.start..=now).contains(&start) {
            start
        } else {
            self.start
        }
    }

    /// Returns the end of the window of a count with this start.
    fn end_of(&self, start: u64, now: u64) -> u64 {
        let start = self.start_for(start, now);
        let is_next = self.end - start < start - self.start;
        if is_next { self.after } else { self.end }
    }
}

impl Arithmetic for Calendar {
    type State = Box<Count>;
    type Reading = u64;

    const CODE: u64 = 8;

    fn units(&self) -> u64 {
        self.limit
    }

    /// A lower bound for all windows.
    fn fill_micros(&self) -> u64 {
        3_600 * SECOND
    }

    fn lapse_micros(&self, now: u64) -> Option<u64> {
        Some(self.left(now))
    }

    fn window_micros(&self, now: u64) -> Option<u64> {
        Some(self.length(now))
    }

    fn read(&self, count: &Box<Count>, times: Times, _charge: u64, _first: u64) -> u64 {
        self.rolled(**count, times).used
    }

    fn charge(&self, count: &mut Box<Count>, now: u64, used: u64, charge: u64, _lease: Option<Lease>) {
        **count = Count {
            start: self.near(now).start_for(count.start, now),
            used: used + charge,
        };
    }

    /// Drops charges of a window that has ended, by the partition's time and by the server's clock.
    fn believed(&self, used: u64, late: Late<'_, Self>) -> u64 {
        let start = late.settling.near(late.now).start;
        match late.receipt.at < start && start <= late.clock {
            true => 0,
            false => late.charge.min(late.settling.bound.saturating_sub(used)),
        }
    }

    /// Units of past windows are not refunded.
    fn refund(&self, count: &mut Box<Count>, now: u64, refund: u64, settling: &Self, receipt: Receipt) {
        if receipt.at >= settling.near(now).start.max(count.start) {
            count.used = count.used.saturating_sub(refund);
        }
    }

    fn advance(&self, count: &mut Box<Count>, times: Times) {
        **count = self.rolled(**count, times);
    }

    /// Parsed bytes contain only one window.
    fn in_windows_of(self, settling: &Self) -> Self {
        Self {
            windows: settling.windows,
            ..self
        }
    }

    fn empty_at(&self, count: &Box<Count>, last: u64) -> u64 {
        match **count {
            Count { used: 0, .. } => last,
            Count { start, .. } => self.near(last).end_of(start, last),
        }
    }

    fn write(&self, count: &Box<Count>, bytes: &mut Writer) {
        let near = self.near(count.start);
        let end = near.end_of(count.start, count.start);
        bytes.write_all([self.limit, self.bound, count.start, end, count.used]);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Count>)> {
        let (limit, bound) = (bytes.amount()?, bytes.amount()?);
        let (start, end) = (bytes.amount()?, bytes.any()?);
        let own = Self {
            limit,
            bound,
            windows: Windows::Only { start, end },
        };
        let used = bytes.amount()?;
        (start < end).then(|| (own, Box::new(Count { start, used })))
    }

    #[inline]
    fn admits(&self, used: u64, _now: u64, charge: u64) -> bool {
        used.saturating_add(charge) <= self.limit
    }

    #[inline]
    fn charged(&self, used: u64, charge: u64) -> u64 {
        used.saturating_add(charge).min(self.bound.max(used))
    }

    fn remaining(&self, used: u64, _now: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    /// The time until the window ends, or longer, so that clients do not exceed twice the rate.
    fn reset(&self, used: u64, now: u64) -> Option<u64> {
        let least = self.least_time_for(self.remaining(used, now), now);
        Some(self.left(now).max(least))
    }

    fn full_after(&self, used: u64, now: u64) -> Option<u64> {
        (used > 0).then(|| self.left(now))
    }

    fn wait(&self, _used: u64, now: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| self.left(now))
    }

    fn predict(&self, used: u64, now: u64, elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        let is_over = elapsed >= self.left(now);
        Some(self.charged(if is_over { 0 } else { used }, charge))
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests;

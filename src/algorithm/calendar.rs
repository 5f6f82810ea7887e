//! Policies with different windows share a count if months of a caller begin on another day, or if instances have
//! different time-zone data. A count lasts until the window in which it began has ended, by the policy that began it or
//! by the present one, so that announced renewals are kept. It stores the time at which it began: with the start of its
//! window, a caller could get several quotas on one date, by days of which each begins a month later.

mod borders;
mod period;
#[cfg_attr(feature = "calendar", path = "calendar/zone.rs")]
#[cfg_attr(not(feature = "calendar"), path = "calendar/no_zone.rs")]
mod zone;

use self::borders::SECOND;
pub use self::period::{CalendarPeriod, Weekday};
pub(crate) use self::{borders::Borders, zone::TIME_ZONE_DATA};
use super::{Arithmetic, Late, Reader, Receipt, Sent, Times, Writer, window::MAX_COUNT};
use crate::lease::Lease;

const HOUR: u64 = 3_600 * SECOND;

/// Ends that differ by less belong to the same window, in different time-zone data. Ends of months that begin on
/// different days differ by at least 23 hours, unless both begin on the last day of a short month.
const SAME: u64 = 12 * HOUR;

/// The length of a count is a multiple of this time, which the narrow layout of the script can represent. Boundaries
/// are multiples, too, so a rounded beginning never precedes one.
const GRAIN: u64 = 25 * SECOND;

/// Two months, if the end is unknown.
const LONGEST: u64 = 62 * 24 * HOUR;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) limit: u64,
    pub(crate) bound: u64,
    /// `None` for a policy in a ledger's bytes that this instance does not have.
    borders: Option<&'static Borders>,
}

#[derive(Clone, Copy)]
struct Near {
    start: u64,
    end: u64,
    after: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    start: u64,
    /// By the policy that began the count. 0 if unknown, because a clock was ahead.
    end: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CalendarReading {
    /// 0 without a count.
    pub(crate) end: u64,
    pub(crate) used: u64,
    pub(crate) count: Count,
}

impl Calendar {
    pub(crate) fn new(quota: u64, borders: &'static Borders) -> Self {
        Self {
            limit: quota,
            bound: quota * 2,
            borders: Some(borders),
        }
    }

    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only the memory store computes dates")
    )]
    pub(crate) fn borders(&self) -> Option<&'static Borders> {
        self.borders
    }

    fn near(&self, moment: u64) -> Near {
        let borders = self.borders.map(|borders| borders.near(moment));
        let [start, end, after] = borders.unwrap_or([0, u64::MAX, u64::MAX]);
        Near { start, end, after }
    }

    fn length(&self, moment: u64) -> u64 {
        let near = self.near(moment);
        near.end - near.start
    }

    fn left(&self, reading: CalendarReading, now: u64) -> u64 {
        match reading.end > now {
            true => reading.end - now,
            false => self.near(now).end - now,
        }
    }

    fn least_time_for(&self, units: u64, now: u64) -> u64 {
        let micros = (u128::from(units) * u128::from(self.length(now))).div_ceil(2 * u128::from(self.limit));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

impl Near {
    fn has(&self, count: Count) -> bool {
        count.start >= self.start || is_same(count.end, self.end)
    }

    fn end_of(&self, count: Count) -> u64 {
        let end = match is_same(count.end, self.after) {
            true => self.after,
            false => self.end,
        };
        match count.end {
            0 => end,
            own => end.min(own),
        }
    }
}

impl Count {
    fn begun(start: u64, end: u64, used: u64) -> Self {
        let length = (end - start).div_ceil(GRAIN).saturating_mul(GRAIN);
        let start = end.saturating_sub(length);
        Self { start, end, used }
    }

    fn end(&self) -> u64 {
        match self.end {
            0 => self.start.saturating_add(LONGEST),
            end => end,
        }
    }

    /// A beginning after `last` was written by a clock that was ahead.
    fn since(self, last: u64) -> Self {
        match self.start > last {
            true => Self {
                start: last - last % SECOND,
                end: 0,
                ..self
            },
            false => self,
        }
    }

    fn current(self, times: Times) -> Self {
        let count = self.since(times.last);
        match count.used > 0 && times.now < count.end() {
            true => count,
            false => Self::default(),
        }
    }
}

fn is_same(end: u64, other: u64) -> bool {
    end.abs_diff(other) < SAME
}

impl Arithmetic for Calendar {
    type State = Box<Count>;
    type Reading = CalendarReading;

    const CODE: u64 = 8;

    const WIDTH: usize = 2;

    fn units(&self) -> u64 {
        self.limit
    }

    fn fill_micros(&self) -> u64 {
        HOUR
    }

    fn lapse_micros(&self, now: u64) -> Option<u64> {
        Some(self.near(now).end - now)
    }

    fn window_micros(&self, now: u64) -> Option<u64> {
        Some(self.length(now))
    }

    fn read(&self, count: &Box<Count>, times: Times, _charge: u64, _first: u64) -> CalendarReading {
        let (near, count) = (self.near(times.now), count.current(times));
        let (end, used) = match count.used {
            0 => (0, 0),
            used if near.has(count) => (near.end_of(count), used.min(MAX_COUNT)),
            _ => (near.end, 0),
        };
        CalendarReading { end, used, count }
    }

    fn charge(&self, state: &mut Box<Count>, now: u64, reading: CalendarReading, charge: u64, _lease: Option<Lease>) {
        let (count, used) = (reading.count, reading.used + charge);
        let begun = |start| Count::begun(start, self.near(now).end, used);
        **state = match charge {
            0 => count,
            _ if reading.used == 0 => begun(now),
            _ if count.end == 0 => begun(count.start),
            _ => Count { used, ..count },
        };
    }

    fn believed(&self, reading: CalendarReading, late: Late<'_, Self>) -> u64 {
        let start = late.settling.near(late.now).start;
        match late.receipt.at < start && start <= late.clock {
            true => 0,
            false => late.charge.min(late.settling.bound.saturating_sub(reading.used)),
        }
    }

    /// A charge from before the beginning of the count is in the count if both have the same window: a late charge has
    /// then begun it.
    fn refund(&self, count: &mut Box<Count>, now: u64, refund: u64, settling: &Self, receipt: Receipt) {
        let near = settling.near(now);
        let is_own = receipt.at >= count.start || is_same(count.end, near.end);
        if near.has(**count) && is_own && receipt.at >= near.start {
            count.used = count.used.saturating_sub(refund);
        }
    }

    fn advance(&self, count: &mut Box<Count>, times: Times) {
        **count = count.current(times);
    }

    fn in_windows_of(self, settling: &Self) -> Self {
        Self {
            borders: settling.borders,
            ..self
        }
    }

    fn empty_at(&self, count: &Box<Count>, last: u64) -> u64 {
        match count.used {
            0 => last,
            1.. => count.since(last).end(),
        }
    }

    fn write(&self, count: &Box<Count>, bytes: &mut Writer) {
        bytes.write_all([self.limit, self.bound, count.start, count.end, count.used]);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Count>)> {
        let own = Self {
            limit: bytes.amount()?,
            bound: bytes.amount()?,
            borders: None,
        };
        let count = Count {
            start: bytes.amount()?,
            end: bytes.amount()?,
            used: bytes.amount()?,
        };
        Some((own, Box::new(count)))
    }

    fn sent(&self, _lease_micros: u64) -> Sent {
        (0, -5, self.limit, self.bound)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        Some(CalendarReading {
            end: next()?,
            used: next()?,
            ..CalendarReading::default()
        })
    }

    #[inline]
    fn admits(&self, reading: CalendarReading, _now: u64, charge: u64) -> bool {
        reading.used.saturating_add(charge) <= self.limit
    }

    #[inline]
    fn charged(&self, reading: CalendarReading, charge: u64) -> CalendarReading {
        let used = reading.used;
        CalendarReading {
            used: used.saturating_add(charge).min(self.bound.max(used)),
            ..reading
        }
    }

    fn remaining(&self, reading: CalendarReading, _now: u64) -> u64 {
        self.limit.saturating_sub(reading.used)
    }

    fn reset(&self, reading: CalendarReading, now: u64) -> Option<u64> {
        let least = self.least_time_for(self.remaining(reading, now), now);
        Some(self.left(reading, now).max(least))
    }

    fn full_after(&self, reading: CalendarReading, now: u64) -> Option<u64> {
        (reading.used > 0).then(|| self.left(reading, now))
    }

    fn wait(&self, reading: CalendarReading, now: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| self.left(reading, now))
    }

    fn predict(
        &self,
        reading: CalendarReading,
        now: u64,
        elapsed: u64,
        charge: u64,
        _hold: u64,
    ) -> Option<CalendarReading> {
        let later = match elapsed >= self.left(reading, now) {
            true => CalendarReading::default(),
            false => reading,
        };
        Some(self.charged(later, charge))
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests;

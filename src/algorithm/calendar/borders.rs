use std::{fmt, sync::OnceLock};

use super::{period::CalendarPeriod, zone::TimeZone};
use crate::{algorithm::EXACT, sync::mutex::Mutex};

pub(super) const SECOND: u64 = 1_000_000;

/// Seconds, slightly more than a year, whose boundaries are computed together on first use.
const SPAN: u64 = 1 << 25;

const SPANS: u64 = EXACT / SECOND / SPAN + 1;

/// Microseconds since 1970. Earlier windows begin at 0.
pub(crate) struct Borders {
    period: CalendarPeriod,
    name: &'static str,
    time_zone: TimeZone,
    spans: Box<[OnceLock<Box<[u64]>>]>,
}

/// Never freed: bounded by the number of time zones and periods.
static KNOWN: Mutex<Vec<&'static Borders>> = Mutex::new(Vec::new());

impl Borders {
    pub(crate) const AROUND: usize = 5;

    pub(crate) fn find(period: CalendarPeriod, time_zone: &str) -> Result<&'static Self, String> {
        if let CalendarPeriod::Month { begins } = period
            && !(1..=31).contains(&begins)
        {
            return Err(format!("month begins on day {begins}: day is outside 1..=31"));
        }
        let mut known = KNOWN.lock();
        let is_it = |borders: &&&Self| borders.period == period && borders.name == time_zone;
        if let Some(borders) = known.iter().find(is_it) {
            return Ok(borders);
        }
        let (name, time_zone) = TimeZone::find(time_zone)?;
        let borders: &'static Self = Box::leak(Box::new(Self {
            period,
            name,
            time_zone,
            spans: (0..SPANS).map(|_| OnceLock::new()).collect(),
        }));
        known.push(borders);
        Ok(borders)
    }

    pub(super) fn near(&self, moment: u64) -> [u64; 3] {
        self.from(moment, 0)
    }

    pub(crate) fn around(&self, moment: u64) -> [u64; Self::AROUND] {
        self.from(moment, 1)
    }

    /// Begins `before` windows before the current one.
    fn from<const COUNT: usize>(&self, moment: u64, before: usize) -> [u64; COUNT] {
        let span = (moment / SECOND / SPAN).min(SPANS - 1);
        let borders = self.spans[span as usize].get_or_init(|| self.compute(span));
        // The first boundary is at 1970 or before the span.
        let own = borders.partition_point(|border| *border <= moment).saturating_sub(1);
        std::array::from_fn(|index| match (own + index).checked_sub(before) {
            Some(index) => borders.get(index).copied().unwrap_or(u64::MAX),
            None => 0,
        })
    }

    #[cold]
    fn compute(&self, span: u64) -> Box<[u64]> {
        let (from, to) = (span * SPAN, (span + 1) * SPAN);
        let starts = self.time_zone.starts(self.period, from as i64, to as i64);
        let mut borders: Vec<u64> = starts
            .into_iter()
            .map(|second| u64::try_from(second).unwrap_or(0) * SECOND)
            .collect();
        // A day that the time zone skips begins at the same time as the next day.
        borders.dedup();
        borders.into()
    }
}

impl PartialEq for Borders {
    fn eq(&self, other: &Self) -> bool {
        self.period == other.period && self.name == other.name
    }
}

impl Eq for Borders {}

impl fmt::Debug for Borders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.period, self.name)
    }
}

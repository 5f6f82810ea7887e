//! Windows, each with a number. For a calendar, the number identifies the local day, week or month of a moment.

use std::{cell::RefCell, collections::HashMap};

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use tower_quota::{
    QuotaPolicy,
    calendar::{CalendarPeriod, Weekday},
};

/// Windows of the same length.
#[derive(Clone, Debug)]
pub(super) struct Windows(i128);

impl Windows {
    pub(super) fn of(policy: &QuotaPolicy) -> Self {
        Self(policy.window().unwrap().as_micros() as i128)
    }

    pub(super) fn number(&self, moment: i128) -> i128 {
        moment.div_euclid(self.0)
    }

    /// The first moment of the next window.
    pub(super) fn end(&self, moment: i128) -> i128 {
        (self.number(moment) + 1) * self.0
    }
}

#[derive(Clone, Debug)]
pub(super) struct Calendar(CalendarPeriod, TimeZone);

impl Calendar {
    pub(super) fn of(policy: &QuotaPolicy) -> Self {
        let window = policy.calendar_window().unwrap();
        Self(window.period(), TimeZone::get(window.time_zone()).unwrap())
    }

    pub(super) fn number(&self, moment: i128) -> i128 {
        number(self.0, &self.1, moment)
    }

    /// The first moment of the next window.
    pub(super) fn end(&self, moment: i128) -> i128 {
        let number = self.number(moment);
        self.first(moment, |tried| self.number(tried) > number)
    }

    /// The length of the window of a moment.
    pub(super) fn length(&self, moment: i128) -> i128 {
        let number = self.number(moment);
        let start = self.first(moment - LONGEST, |tried| self.number(tried) >= number);
        self.end(moment) - start
    }

    /// The first moment after this one, and not too late, of which something is true from then on.
    fn first(&self, after: i128, is_true: impl Fn(i128) -> bool) -> i128 {
        let (mut early, mut late) = (after, after + LONGEST);
        while late - early > 1 {
            let middle = early + (late - early) / 2;
            if is_true(middle) {
                late = middle;
            } else {
                early = middle;
            }
        }
        late
    }
}

/// The number of a local day, week or month.
fn number(period: CalendarPeriod, time_zone: &TimeZone, moment: i128) -> i128 {
    // Nowhere does a day begin within one of these.
    const QUARTER: i128 = 900_000_000;
    type Known = HashMap<(CalendarPeriod, String, i128), i128>;
    thread_local! {
        static KNOWN: RefCell<Known> = RefCell::default();
    }

    // A wait that is tried may end in the year 100 000.
    let moment = moment.min(LATEST).div_euclid(QUARTER);
    let name = time_zone.iana_name().unwrap().to_owned();
    let compute = || {
        let moment = Timestamp::from_microsecond((moment * QUARTER) as i64).unwrap();
        let today = time_zone.to_datetime(moment).date();
        // The first of January 1970 was a Thursday.
        let days = i128::from((today - Date::constant(1970, 1, 1)).get_days());
        match period {
            CalendarPeriod::Day => days,
            CalendarPeriod::Week { begins } => (days + days_from_thursday(begins)).div_euclid(7),
            CalendarPeriod::Month { begins } => {
                let is_before = today.day() < (begins as i8).min(today.days_in_month());
                i128::from(today.year()) * 12 + i128::from(today.month()) - i128::from(is_before)
            }
            other => panic!("{other:?} has no model"),
        }
    };
    KNOWN.with_borrow_mut(|known| *known.entry((period, name, moment)).or_insert_with(compute))
}

/// In the year 9900.
const LATEST: i128 = 250_000_000_000_000_000;

const LONGEST: i128 = 40 * 86_400_000_000;

/// The days from this weekday to the next Thursday.
fn days_from_thursday(weekday: Weekday) -> i128 {
    match weekday {
        Weekday::Thursday => 0,
        Weekday::Wednesday => 1,
        Weekday::Tuesday => 2,
        Weekday::Monday => 3,
        Weekday::Sunday => 4,
        Weekday::Saturday => 5,
        Weekday::Friday => 6,
    }
}

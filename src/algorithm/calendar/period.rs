use std::time::Duration;

/// A calendar period: a day, week or month.
///
/// ```
/// use tower_quota::calendar::{CalendarPeriod, Weekday};
///
/// assert_eq!(CalendarPeriod::WEEK, CalendarPeriod::Week { begins: Weekday::Monday });
/// assert_ne!(CalendarPeriod::WEEK, CalendarPeriod::Week { begins: Weekday::Sunday });
/// assert_eq!(CalendarPeriod::MONTH, CalendarPeriod::Month { begins: 1 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CalendarPeriod {
    /// From midnight to midnight: 23 to 25 hours. If clocks skip midnight, the day begins at the change.
    Day,
    /// A month of 28 to 31 days.
    Month {
        /// The day on which the period begins, at midnight, from 1 to 31. In shorter months, the last day.
        begins: u8,
    },
    /// Seven days.
    Week {
        /// At midnight.
        begins: Weekday,
    },
}

impl CalendarPeriod {
    /// The month that begins on the 1st.
    pub const MONTH: Self = Self::Month { begins: 1 };

    /// The week of ISO 8601, which begins on Monday.
    pub const WEEK: Self = Self::Week {
        begins: Weekday::Monday,
    };

    /// Returns the usual length of a window; for months, the maximum length.
    pub(crate) fn usual_length(self) -> Duration {
        let days = match self {
            Self::Day => 1,
            Self::Month { .. } => 31,
            Self::Week { .. } => 7,
        };
        Duration::from_secs(days * 86_400)
    }
}

/// A day of the week.
///
/// ```
/// use tower_quota::calendar::{CalendarPeriod, CalendarWindow, Weekday};
///
/// let week = CalendarPeriod::Week { begins: Weekday::Saturday };
/// assert_eq!(CalendarWindow::new(week, "Africa/Cairo").period(), week);
/// ```
#[allow(missing_docs, reason = "the names are self-explanatory")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

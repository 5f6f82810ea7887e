use std::borrow::Cow;

use super::{CalendarPeriod, CalendarWindow, QuotaPolicy};

impl QuotaPolicy {
    /// Creates a policy of `quota` units per calendar day in `time_zone`, such as `"Europe/Berlin"`.
    ///
    /// See [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_day(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::Day, time_zone)
    }

    /// Creates a policy of `quota` units per week, Monday to Sunday, in `time_zone`.
    ///
    /// For weeks that begin on another day, see [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_week(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::WEEK, time_zone)
    }

    /// Creates a policy of `quota` units per calendar month in `time_zone`.
    ///
    /// For months that begin on another day, see [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_month(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::MONTH, time_zone)
    }

    /// Creates a policy of `quota` units per window of a calendar, such as 10,000 per month.
    ///
    /// Requires the feature `calendar`. The policy counts as a [fixed window](crate::Algorithm::FixedWindow): to
    /// prevent bursts around a window boundary, add a policy per minute. `build()` rejects other algorithms, a burst
    /// capacity, and [prefetching](Self::with_prefetch).
    ///
    /// ```
    /// use tower_quota::{
    ///     Limiter, MemoryStore, QuotaPolicy, calendar::{CalendarPeriod, CalendarWindow}, clock::{Clock, Timestamp},
    /// };
    ///
    /// const PLAN: QuotaPolicy = QuotaPolicy::per_calendar_month("month", 10_000, "Europe/Berlin");
    ///
    /// // A time zone that is only known at run time:
    /// let zone = String::from("Asia/Tokyo");
    /// let daily = QuotaPolicy::per_calendar("day", 500, CalendarWindow::new(CalendarPeriod::Day, zone));
    ///
    /// # #[cfg(feature = "calendar")] tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(1_774_000_000_000_000)); // 20 March 2026, 09:46:40 UTC
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock).build()?)
    ///     .scope("api")
    ///     .policy(PLAN)
    ///     .policy(daily)
    ///     .build()?;
    ///
    /// let decision = limiter.caller("acme").cost(500).check().await;
    /// let left: Vec<u64> = decision.allowances().map(|allowance| allowance.remaining()).collect();
    /// assert_eq!(left, [9_500, 0]);
    /// // The day ends at midnight in Tokyo.
    /// let day = decision.allowances().find(|allowance| allowance.policy().name() == "day").expect("it is one of them");
    /// assert_eq!(day.effective_window().map(|time| time.as_secs()), Some(5 * 3_600 + 13 * 60 + 20));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Fields
    ///
    /// `t` is the time until the window ends, or a longer time if spending all remaining units before the end would
    /// exceed twice the policy's average rate. `w` is omitted, because months differ in length.
    ///
    /// # Changes
    ///
    /// If the period or the time zone changes, callers start with a full quota. If the [first day of
    /// months](crate::CallerQuotas::month_begins) changes, used units still count for a while. After a window has
    /// ended, its charges can be neither settled nor refunded.
    ///
    /// # Clock and time zones
    ///
    /// Windows follow the clock of the store; with Redis, the server's clock. If that clock jumps by more than a window
    /// between the calls of one decision, the decision fails with a store error. If builds with different [time-zone
    /// data](CalendarWindow::time_zone_data) disagree about a boundary, the first instance to reach its boundary begins
    /// the window for all.
    pub fn per_calendar(name: impl Into<Cow<'static, str>>, quota: u64, window: CalendarWindow) -> Self {
        Self {
            calendar: Some(window),
            ..Self::dated("", quota, CalendarPeriod::Day, "")
        }
        .with_name(name)
    }

    const fn dated(name: &'static str, quota: u64, period: CalendarPeriod, time_zone: &'static str) -> Self {
        let time_zone = Cow::Borrowed(time_zone);
        Self::of_window(name, quota, None, Some(CalendarWindow { period, time_zone }))
    }

    /// Returns the calendar window, or `None` for other policies.
    pub const fn calendar_window(&self) -> Option<&CalendarWindow> {
        self.calendar.as_ref()
    }
}

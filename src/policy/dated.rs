use std::borrow::Cow;

use super::{CalendarPeriod, CalendarWindow, QuotaPolicy};

impl QuotaPolicy {
    /// Creates a policy of `quota` units per calendar day in `time_zone`, such as `"Europe/Berlin"`.
    ///
    /// See [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_day(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::Day, time_zone)
    }

    /// Creates a policy of `quota` units per week, Monday to Sunday, in `time_zone`, such as `"Europe/Berlin"`.
    ///
    /// For weeks that begin on another day, see [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_week(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::WEEK, time_zone)
    }

    /// Creates a policy of `quota` units per calendar month in `time_zone`, such as `"Europe/Berlin"`.
    ///
    /// For months that begin on another day, see [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_month(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::MONTH, time_zone)
    }

    /// Creates a policy of `quota` units per window of a calendar, such as 10,000 per month.
    ///
    /// Requires the feature `calendar`. The policy counts as a [fixed window](crate::Algorithm::FixedWindow): all
    /// units are available when a window begins, and twice the quota can pass around a window boundary. To prevent
    /// such bursts, add a policy per minute.
    ///
    /// - **Fields.** `t` is the time until the window ends, or a longer time if spending all remaining units before the
    ///   end would exceed twice the policy's average rate. `w` is omitted, because months differ in length.
    /// - **Clock.** Windows follow the clock of the store; with Redis, the server's clock. Each call sends the
    ///   boundaries of several windows, and the script selects one. If the server's time is in none of these windows,
    ///   the call changes nothing and is repeated with the boundaries around that time, at most twice. The store
    ///   remembers the clock offset. If the server's clock jumps by more than a window between these calls, the
    ///   decision fails with a store error.
    /// - **Time-zone data** is compiled into the program ([`CalendarWindow::time_zone_data`]), so containers need none.
    ///   Instances of different builds can contain different data. Counts are stored with the start of their window.
    ///   If instances disagree about a boundary, the first instance to reach its boundary begins the window, and all
    ///   others continue the count. Therefore, no window grants its quota twice.
    /// - **Invalid combinations.** `build()` rejects other algorithms, a burst capacity, and
    ///   [prefetching](Self::with_prefetch).
    /// - **Changes.** If the period or the time zone changes, callers start with a full quota. If the quota changes,
    ///   used units still count. If the day on which months begin changes, used units still count if the old and the
    ///   new window began near each other: see [`CallerQuotas::month_begins`](crate::CallerQuotas::month_begins).
    /// - **Late changes.** After a window has ended, its charges can be neither settled nor refunded.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # #[cfg(feature = "calendar")] run(async {
    /// use tower_quota::{CalendarPeriod, CalendarWindow};
    ///
    /// const PLAN: QuotaPolicy = QuotaPolicy::per_calendar_month("month", 10_000, "Europe/Berlin");
    ///
    /// // A time zone that is only known at run time:
    /// let zone = String::from("Asia/Tokyo");
    /// let daily = QuotaPolicy::per_calendar("day", 500, CalendarWindow::new(CalendarPeriod::Day, zone));
    ///
    /// let clock = Clock::manual(Timestamp::from_micros(1_774_000_000_000_000)); // 20 March 2026, 09:46:40 UTC
    /// let layer = RateLimitLayer::builder(MemoryStore::builder().clock(clock).build()?)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(PLAN)
    ///     .policy(daily)
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// // 11 days of March remain. Spending all units in that time would exceed twice the rate, so `t` is longer.
    /// assert_eq!(response.headers()["ratelimit"], r#""month";r=9999;t=1337267, "day";r=499;t=43114"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""month";q=10000, "day";q=500"#);
    ///
    /// let error = PolicySet::new([PLAN.with_prefetch(10)]).unwrap_err();
    /// assert!(error.to_string().contains("prefetch 10: not supported for calendar windows"));
    /// # Ok(()) });
    /// ```
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

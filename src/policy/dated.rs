//! Policies whose windows are those of a calendar.

use std::borrow::Cow;

use super::{CalendarPeriod, CalendarWindow, QuotaPolicy};

impl QuotaPolicy {
    /// `quota` units from one midnight to the next in a time zone (`"Europe/Berlin"`). See
    /// [`per_calendar`](Self::per_calendar).
    pub const fn per_calendar_day(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::Day, time_zone)
    }

    /// `quota` units from Monday to Sunday in a time zone (`"Europe/Berlin"`). See [`per_calendar`](Self::per_calendar), also
    /// for weeks that begin on another day.
    pub const fn per_calendar_week(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::WEEK, time_zone)
    }

    /// `quota` units from the first to the last day of a month in a time zone (`"Europe/Berlin"`). See
    /// [`per_calendar`](Self::per_calendar), also for months that begin on another day.
    pub const fn per_calendar_month(name: &'static str, quota: u64, time_zone: &'static str) -> Self {
        Self::dated(name, quota, CalendarPeriod::MONTH, time_zone)
    }

    /// `quota` units in each window of a calendar: plans such as "10 000 a month, from the first". Needs the feature
    /// `calendar`.
    ///
    /// It counts as a [fixed window](crate::Algorithm::FixedWindow) does: all units are there when a window begins, and twice
    /// the quota can pass around a border. Take a policy per minute beside it if that is too much at once.
    ///
    /// - **The fields.** `t` is the time until the window ends, or longer where a client would be invited to more
    ///   than twice the rate. `w` is left out, because no number of seconds is a month.
    /// - **The clock** is the store's: that of the Redis server. Each call brings the borders of some windows, and the script
    ///   picks the window by its time. If that is in none of them, it says so before it does anything, and is called again with
    ///   the borders around its time, twice at most; the store remembers by how much the clocks differ. A server whose clock
    ///   jumps between these calls by more than a window is an error of the store.
    /// - **Time-zone data** are in the program ([`CalendarWindow::time_zone_data`]), so that a container needs none. Instances
    ///   of different builds may have different data. Counts carry the start of their window: where the data disagree about a
    ///   border, the first instance that reaches its border begins the window, and all others go on with its count. So no
    ///   window has its quota twice.
    /// - **Not for** other algorithms, a burst capacity, and [prefetching](Self::with_prefetch). `build()`
    ///   rejects them.
    /// - A change of the period or the time zone begins with a full quota. A change of the quota keeps what was used, and so
    ///   does a change of the day on which months begin, if both windows began near each other: see
    ///   [`CallerQuotas::month_begins`](crate::CallerQuotas::month_begins).
    /// - A change of a charge comes too late once the window has ended.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # #[cfg(feature = "calendar")] run(async {
    /// use tower_quota::{CalendarPeriod, CalendarWindow};
    ///
    /// const PLAN: QuotaPolicy = QuotaPolicy::per_calendar_month("month", 10_000, "Europe/Berlin");
    ///
    /// // A time zone that is known at run time:
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
    /// // 11 days are left of March. All units in so short a time would be more than twice the rate, which `t` says.
    /// assert_eq!(response.headers()["ratelimit"], r#""month";r=9999;t=1337267, "day";r=499;t=43114"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""month";q=10000, "day";q=500"#);
    ///
    /// let error = PolicySet::new([PLAN.with_prefetch(10)]).unwrap_err();
    /// assert!(error.to_string().contains("prefetch 10 does not apply to calendar windows"));
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

    /// The window of a calendar quota; other policies have none.
    pub const fn calendar_window(&self) -> Option<&CalendarWindow> {
        self.calendar.as_ref()
    }
}

//! A policy as a user writes it.

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use super::{Algorithm, CalendarWindow, Direction, QuotaUnit, UnitName};
use crate::fields::ExtensionValue;

/// A named limit: so many units per time window, or so many at a time, for each partition.
///
/// By default it counts requests with a *token bucket*: a bucket of [`burst_capacity`](Self::burst_capacity) units (by
/// default the quota) that fills evenly, at `quota` units per `window`. In any time *t* no more than the capacity and
/// `quota` × *t* ÷ `window` units pass. So `per_minute("minute", 60)` lets 60 requests pass at one moment and then one each
/// second: up to 119 in a minute that begins with a full bucket, as fixed windows do around a border. Where no minute may
/// see more than 60, take [`StrictTokenBucket`](Algorithm::StrictTokenBucket) or
/// [`SlidingWindowLog`](Algorithm::SlidingWindowLog). [`Algorithm`] and [`QuotaUnit`] say what else there is.
///
/// Counting is exact to the unit and the microsecond. Only where a full bucket times the window has more digits than
/// a double holds (5 003 in 31 days is such a quota, 5 000 is not) is the rate rounded down, by less than a millionth.
/// Numbers with which more would be lost are rejected when the layer is built.
///
/// Nothing is checked here: [`build`](crate::RateLimitLayerBuilder::build) does that, and its error names the policy. A
/// policy has
/// - a **name** of 1 to 128 characters of printable ASCII, shown to clients in the `RateLimit` field;
/// - a **quota** up to 999 999 999 999 999; 0 means *closed*;
/// - a **window** of whole seconds, from 1 second to 1 000 000 000 seconds, or one of a [calendar](Self::per_calendar), unless
///   it limits concurrent requests;
/// - a **burst capacity** from 1 to 999 999 999 999 999, for token buckets.
///
/// Constructors are named after the window, and the number is how many units it has. They are `const`, so that limits can
/// be constants of a module; a name that is made at run time is set by [`with_name`](Self::with_name):
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Algorithm, PolicySet, Direction, QuotaPolicy, QuotaUnit};
///
/// const DAILY: QuotaPolicy = QuotaPolicy::per_day("daily", 5_000);
/// assert_eq!(DAILY.window(), Some(Duration::from_secs(86_400)));
/// let weekly = QuotaPolicy::new("weekly", 20_000, Duration::from_secs(7 * 86_400));
/// assert_eq!((weekly.name(), weekly.quota()), ("weekly", 20_000));
/// let of_tenant = DAILY.with_name(format!("daily of tenant {}", 7));
/// assert_eq!((of_tenant.name(), of_tenant.quota()), ("daily of tenant 7", 5_000));
///
/// // 1 unit a second, 5 at once:
/// let bursty = QuotaPolicy::per_second("bursty", 1).with_burst_capacity(5);
/// assert_eq!((bursty.quota(), bursty.burst_capacity()), (1, 5));
///
/// // 10 MB of responses a minute, 8 requests at a time, and 100 requests in any hour:
/// let bandwidth = QuotaPolicy::per_minute("bandwidth", 10_000_000).with_content_bytes(Direction::Response);
/// let slots = QuotaPolicy::concurrent("slots", 8);
/// let hourly = QuotaPolicy::per_hour("hourly", 100).with_algorithm(Algorithm::SlidingWindowLog);
/// assert_eq!((slots.unit(), slots.window()), (QuotaUnit::ConcurrentRequests, None));
/// assert_eq!(hourly.algorithm(), Algorithm::SlidingWindowLog);
///
/// // Counted by address, hidden, and rejecting nothing yet:
/// let trial = QuotaPolicy::per_hour("trial", 10).keyed_by("address").shadow();
/// assert_eq!(trial.key_name(), Some("address"));
/// assert!(trial.is_shadow() && trial.is_hidden() && trial.prefetch().is_none());
///
/// // All of them are valid for one request, and a window of zero is not.
/// let error = PolicySet::new([QuotaPolicy::new("now", 1, Duration::ZERO)]).unwrap_err();
/// assert_eq!(error.to_string(), r#"policy "now": window 0ns is not a whole number of seconds in 1..=1000000000"#);
/// assert!(PolicySet::new([DAILY, weekly, bursty, bandwidth, slots, hourly]).is_ok());
/// ```
///
/// # Closed
///
/// A policy with quota 0 rejects every request, also one that costs nothing, without asking the store, and so also while
/// that is unavailable. There is no `Retry-After`: the request never passes while the policy holds. The fields say `q=0`
/// and `r=0` (draft-11, section "Quota Parameter", allows that), and no `t`; the problem says that the limit is closed.
/// You want it to close a tier or a route, most often by [rules that change](crate::RulesHandle). Units that were used
/// before stay used when it is opened again. Neither a [top-up](crate::CallerQuotas::top_up) nor
/// [capacity](crate::Capacity) opens it. Its other settings (a burst capacity, prefetch, a lockout) have no effect until it
/// is opened, and a [shadow](Self::shadow) rejects nothing.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("exports")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 0))
///     .build()?;
///
/// let rejected = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
/// assert_eq!(rejected.status(), 429);
/// assert_eq!(rejected.headers()["ratelimit-policy"], r#""hour";q=0;w=3600"#);
/// assert_eq!(rejected.headers()["ratelimit"], r#""hour";r=0"#);
/// assert!(!rejected.headers().contains_key("retry-after"));
/// # Ok(()) });
/// ```
///
/// # In files
///
/// With the feature `serde` a policy can be read from any format. It has a `name` and a `quota`, within the bounds above, and
/// what else it needs of `window_seconds`, `calendar` (such as
/// `{"period": "month", "time_zone": "Europe/Berlin", "month_begins": 15}`), `burst_capacity`,
/// `algorithm` (such as `"fixed_window"`), `unit` (`"requests"`, `"concurrent_requests"`, `"content_bytes"`,
/// `"request_content_bytes"`, `"response_content_bytes"`, or a name of [your own](Self::with_unit)), `key`,
/// `caller_quotas` (such as `[10, 10000]`), `overage_percent`, `lockout_seconds`, `prefetch`, `hidden`, `shadow`, `partition_key` and `extensions`:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_quota::{Algorithm, QuotaPolicy};
///
/// let queue: QuotaPolicy = serde_json::from_str(
///     r#"{
///         "name": "even", "quota": 10, "window_seconds": 1,
///         "algorithm": {"leaky_bucket_queue": {"max_waiting": 20}}
///     }"#,
/// )?;
/// let algorithm = Algorithm::LeakyBucketQueue { max_waiting: 20 };
/// assert_eq!(queue, QuotaPolicy::per_second("even", 10).with_algorithm(algorithm));
/// # }
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    pub(crate) name: Cow<'static, str>,
    pub(crate) quota: u64,
    pub(crate) window: Option<Duration>,
    pub(crate) calendar: Option<CalendarWindow>,
    pub(crate) burst_capacity: Option<u64>,
    pub(crate) algorithm: Algorithm,
    pub(crate) unit: QuotaUnit,
    /// The number of units that an instance may prefetch at once.
    pub(crate) prefetch: Option<u64>,
    /// The time for which it rejects everything once it is used up.
    pub(crate) lockout: Option<Duration>,
    pub(crate) is_hidden: bool,
    pub(crate) is_shadow: bool,
    pub(crate) shows_partition_key: bool,
    pub(crate) caller_quotas: Option<CallerQuotaBounds>,
    pub(crate) overage: Option<u32>,
    /// The name of the layer's key by which it counts, if that is not the main one.
    pub(crate) key: Option<Cow<'static, str>>,
    pub(crate) extensions: Vec<(Cow<'static, str>, ExtensionValue)>,
}

/// The bounds of the quotas that callers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerQuotaBounds {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl QuotaPolicy {
    /// `quota` units in each `window`, which is of whole seconds.
    ///
    /// The name has 1 to 128 characters of printable ASCII. The error about a longer one shows its beginning:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let long = QuotaPolicy::new("n".repeat(129), 60, Duration::from_secs(60));
    /// let error = PolicySet::new([long]).unwrap_err().to_string();
    /// assert!(error.ends_with("nnn…\": the name has 129 bytes; at most 128 are allowed"), "{error}");
    /// ```
    pub fn new(name: impl Into<Cow<'static, str>>, quota: u64, window: Duration) -> Self {
        Self::windowed("", quota, window).with_name(name)
    }

    /// `quota` units per second. A name that is made at run time is set by [`with_name`](Self::with_name).
    pub const fn per_second(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(1))
    }

    /// `quota` units per minute. A name that is made at run time is set by [`with_name`](Self::with_name).
    pub const fn per_minute(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(60))
    }

    /// `quota` units per hour. A name that is made at run time is set by [`with_name`](Self::with_name).
    pub const fn per_hour(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(3_600))
    }

    /// `quota` units per day of 24 hours. A token bucket's window slides with each caller; that of a
    /// [fixed window](Algorithm::FixedWindow) ends at midnight UTC.
    ///
    /// A name that is made at run time is set by [`with_name`](Self::with_name).
    pub const fn per_day(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(86_400))
    }

    /// At most `quota` requests at a time. A name that is made at run time is set by [`with_name`](Self::with_name).
    ///
    /// A request holds its slot from admission (waiting in a queue included) until its response body has ended or was
    /// dropped, it was cancelled, or the inner service failed. See [`WeakPermit`](crate::WeakPermit) for upgraded
    /// connections.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::concurrent("at once", 2)])?;
    /// let begin = async || store.decide(Plan::new(policies.clone(), alice, 1)).await;
    ///
    /// let first = begin().await?;
    /// assert_eq!(begin().await?.outcome(), Outcome::Allowed);
    /// assert_eq!(begin().await?.outcome(), Outcome::Rejected);
    /// // The first one is over. A layer settles that by itself.
    /// store.settle(Settlement::new(&first, 1)).await?;
    /// assert_eq!(begin().await?.outcome(), Outcome::Allowed);
    /// # Ok(()) });
    /// ```
    pub const fn concurrent(name: &'static str, quota: u64) -> Self {
        let mut policy = Self::of_window(name, quota, None, None);
        policy.unit = QuotaUnit::ConcurrentRequests;
        policy
    }

    const fn windowed(name: &'static str, quota: u64, window: Duration) -> Self {
        Self::of_window(name, quota, Some(window), None)
    }

    pub(super) const fn of_window(
        name: &'static str,
        quota: u64,
        window: Option<Duration>,
        calendar: Option<CalendarWindow>,
    ) -> Self {
        Self {
            name: Cow::Borrowed(name),
            quota,
            window,
            algorithm: match calendar {
                Some(_) => Algorithm::FixedWindow,
                None => Algorithm::TokenBucket,
            },
            calendar,
            burst_capacity: None,
            unit: QuotaUnit::Requests,
            prefetch: None,
            lockout: None,
            is_hidden: false,
            is_shadow: false,
            shows_partition_key: false,
            caller_quotas: None,
            overage: None,
            key: None,
            extensions: Vec::new(),
        }
    }

    /// Lets `capacity` units pass at one moment after a pause, more or fewer than the quota. The rate stays the same
    /// unless the bucket is [strict](Algorithm::StrictTokenBucket). For token buckets only.
    ///
    /// The `RateLimit-Policy` field shows the quota, not the capacity: tell your clients what else may pass at once.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Algorithm;
    /// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
    /// # let clock = Clock::manual(Timestamp::from_micros(0));
    /// # let store = MemoryStore::builder().clock(clock.clone()).build()?;
    /// # tokio_test::block_on(async {
    /// let policy = QuotaPolicy::per_second("second", 1).with_burst_capacity(5);
    /// let plan = Plan::new(PolicySet::new([policy.clone()])?, alice, 1);
    /// for _ in 0..5 {
    ///     assert_eq!(store.decide(plan.clone()).await?.outcome(), Outcome::Allowed);
    /// }
    /// // Afterwards there is the rate.
    /// assert_eq!(store.decide(plan.clone()).await?.outcome(), Outcome::Rejected);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(store.decide(plan.clone()).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(plan).await?.outcome(), Outcome::Rejected);
    ///
    /// let error = PolicySet::new([policy.with_algorithm(Algorithm::FixedWindow)]).unwrap_err();
    /// assert!(error.to_string().contains("burst capacity 5 does not apply to FixedWindow"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub const fn with_burst_capacity(mut self, capacity: u64) -> Self {
        self.burst_capacity = Some(capacity);
        self
    }

    /// Allows individual quotas within `quotas`, such as those of contracts. By default, all callers of a tier have the same
    /// quota.
    ///
    /// [`CallerQuotas`](crate::CallerQuotas) carries the numbers, in the request or from the source of tiers. A number
    /// outside the bounds is replaced by the nearest bound. With a lower bound of 0, a caller's policy can be closed.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) fails if the lower bound is above the upper one, or if either is not a
    /// valid quota of the policy.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{CallerQuotas, Limiter};
    ///
    /// # run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("exports")
    ///     .policy(QuotaPolicy::concurrent("exports", 2).with_caller_quotas(1..=20))
    ///     .build()?;
    ///
    /// let acme = limiter.caller("acme").quotas(CallerQuotas::new().quota("exports", 3));
    /// let running = [acme.hold().await, acme.hold().await, acme.hold().await];
    /// assert!(running.iter().all(Result::is_ok));
    /// assert!(acme.hold().await.is_err());
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn with_caller_quotas(mut self, quotas: RangeInclusive<u64>) -> Self {
        self.caller_quotas = Some(CallerQuotaBounds {
            least: *quotas.start(),
            most: *quotas.end(),
        });
        self
    }

    /// Admits requests up to `percent` percent above the quota and counts them exactly: a soft limit below a hard ceiling.
    ///
    /// Use this to notify or bill a customer before rejecting its requests. For a request above the quota, the `RateLimit`
    /// field shows `r=0`, [`Allowance::over_quota`](crate::Allowance::over_quota) returns the excess units, the metric
    /// `tower_quota_over_quota_total` increments, and a sampled event of level `INFO` names the policy. Requests above the
    /// ceiling are rejected.
    ///
    /// An overage applies to fixed windows, sliding windows, calendar windows and concurrency limits, not to buckets. Caller
    /// quotas, top-ups and reduced capacity change quota and ceiling in proportion. Counters are lost with the store's data:
    /// they are not an invoice.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) fails if `percent` is not in 1..=10,000, if the ceiling is above
    /// 999,999,999,999,999, and for policies that are shadows, buckets, prefetched, or have a lockout.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{Algorithm, Limiter};
    ///
    /// # run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_day("day", 10).with_algorithm(Algorithm::FixedWindow).with_overage(20))
    ///     .build()?;
    ///
    /// let acme = limiter.caller("acme");
    /// for (left, over) in (0..10).rev().map(|left| (left, 0)).chain([(0, 1), (0, 2)]) {
    ///     let decision = acme.check().await;
    ///     let day = decision.allowances().next().unwrap();
    ///     assert_eq!((decision.outcome(), day.remaining(), day.over_quota()), (Outcome::Allowed, left, over));
    /// }
    /// assert_eq!(acme.check().await.outcome(), Outcome::Rejected);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn with_overage(mut self, percent: u32) -> Self {
        self.overage = Some(percent);
        self
    }

    /// The units above the quota that the [overage](Self::with_overage) admits; 0 without one.
    pub(crate) fn overage_units(&self) -> u64 {
        let Some(percent) = self.overage else { return 0 };
        let units = u128::from(self.quota) * u128::from(percent) / 100;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The most that is ever admitted: the quota with its overage.
    pub(crate) fn ceiling(&self) -> u64 {
        self.quota.saturating_add(self.overage_units())
    }

    /// Counts time in another way than a token bucket: [`Algorithm`] shows each. Not for limits of concurrent requests.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Counts bytes of content instead of requests; a request counts for at least one.
    ///
    /// The layer charges a known length before it passes the request on, and other bytes as they are streamed: the
    /// policy is then overdrawn, by up to as much again as it may hold, and later requests wait until that is paid off.
    /// A request of unknown size is passed on if one byte is left.
    ///
    /// A response that says how long it is is charged before it is sent, but never more than 1 MiB ahead; of any other,
    /// up to 1 MiB is charged after it was sent. Nothing is delayed for that. What is charged ahead stays charged if the
    /// client goes away before the end; a `HEAD` request counts for a byte, whatever length it is told.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("downloads")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("download", 1_000).with_content_bytes(Direction::Response))
    ///     .build()?;
    /// let inner = service_fn(async |_: Request<()>| Ok::<_, http::Error>(Response::new("x".repeat(300))));
    /// let service = layer.layer(inner);
    ///
    /// let response = service.oneshot(Request::get("/").header("x-user-id", "alice").body(())?).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""download";r=700;t=2520"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""download";q=1000;qu="content-bytes";w=3600"#);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn with_content_bytes(mut self, content: Direction) -> Self {
        self.unit = QuotaUnit::ContentBytes(content);
        self
    }

    /// Counts units of your own, `"tokens"` say, in place of requests: for what runs out sooner than requests do.
    ///
    /// A policy of requests beside it, and policies of up to three such units, hold in the same decision: all of them are
    /// charged, or none.
    ///
    /// - **Before** the request is passed on, the layer charges what
    ///   [`unit_cost`](crate::RateLimitLayerBuilder::unit_cost) says for the unit: the amount, or an estimate. `build()` rejects
    ///   a unit that has no cost.
    /// - **Afterwards** the handler reports to the [permit](crate::WeakPermit) of its request how much was used, also
    ///   while the response is streamed. The difference is given back, or charged: the policy is then overdrawn, by up to as
    ///   much again as it may hold, and later requests wait until that is paid off.
    ///
    /// A unit has from 1 to 24 printable ASCII characters. Policies of different units share no used units. The
    /// `RateLimit` field shows what is left; `RateLimit-Policy` leaves the policy out, because draft-11 lets `qu` name only
    /// the units of its registry, and a reader takes a policy without one to count requests. Dialects without names show no
    /// such policy at all.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::WeakPermit;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("models")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("requests", 60))
    ///     .policy(QuotaPolicy::per_minute("tokens", 6_000).with_unit("tokens"))
    ///     .unit_cost("tokens", |_| 1_000) // the estimate
    ///     .build()?;
    /// let answer = layer.layer(service_fn(async |request: Request<()>| {
    ///     let permit = request.extensions().get().and_then(WeakPermit::upgrade);
    ///     permit.expect("tokens are limited").finish("tokens", 400);
    ///     Ok::<_, Infallible>(Response::new("a short answer".to_owned()))
    /// }));
    ///
    /// let response = answer.oneshot(Request::get("/").header("x-user-id", "alice").body(())?).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""requests";r=59;t=59, "tokens";r=5600;t=56"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""requests";q=60;w=60"#);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn with_unit(mut self, unit: &str) -> Self {
        self.unit = QuotaUnit::Custom(UnitName::new(unit));
        self
    }

    /// Lets an instance charge up to `units` units in one call, spend them without asking the store, and give back what it
    /// does not use: for callers that are hotter than what one Redis can decide, and for a Redis that is far away.
    ///
    /// An instance begins with single charges. While a caller keeps asking, its batches double until one lasts for most of its
    /// lifetime: four round trips to the store (the shortest of the last minute), at least 1 s, and at most 5 s or a tenth of the
    /// window. A batch is never larger than `units`, and never more than a quarter of what the store has left, so that the
    /// last units are charged one by one again. Units that are not spent within the lifetime are given back.
    ///
    /// The next batch is fetched *ahead*: by a call in the background, two round trips before the caller has used up what is
    /// held. So the requests of a busy caller wait twice, for the first answer and for the first batch, and then no more,
    /// however far away the store is. They wait again where a fixed window ends, for one round trip; where the caller is
    /// suddenly much faster; and near the end of a quota.
    ///
    /// - **Never more than the quota.** A unit is charged before it is spent. A fixed window never sees more than its quota.
    ///   A token bucket lets no more pass in any time *t* than its burst capacity and what its rate gives in *t* and in the
    ///   lifetime before, and no more than capacity, rate and instances × `units`.
    /// - **At times less.** What one instance holds, the others cannot spend meanwhile: at most instances × `units` for
    ///   each caller and for one lifetime, what is under way included. Keep that far below the quota; a tenth is a good choice.
    ///   A caller whose requests are spread evenly over 20 instances gets 99 % of a fixed window or more.
    /// - **A batch that is answered late is not lost.** Its units are spent, or given back if their lifetime is over. Lost are at
    ///   most `units` for each caller of an instance that is killed, and a batch that is not answered within 5 s after the
    ///   deadline or whose connection ends. `tower_quota_late_batches_total` [counts](crate::telemetry) all of them.
    /// - **The size of a batch.** As many units as one instance spends on one caller in a second: fewer need more calls.
    ///   With 500 and 200 requests a second, there is one call for about 60 requests. With fewer than the caller uses in two
    ///   round trips, requests wait.
    /// - **The distance.** Three round trips within the [deadline](crate::LimiterBuilder::deadline): near the end of
    ///   a quota a request asks for a batch, for itself, and once more when a rest was given back. Where a tenth of the window
    ///   is less than four round trips, as with a window of a second and a store 80 ms away, requests wait.
    /// - **The remaining units that are shown** are those that the store had left when the batch was charged, less what this
    ///   instance has charged since.
    /// - **While a quota is used up**, each request is charged or rejected for itself again, as without the setting.
    /// - **While the store is unavailable**, prefetched units are still spent; then it is up to the
    ///   [`FailureMode`](crate::FailureMode). A call ahead that fails changes no request; the next one is made after an eighth
    ///   of the lifetime.
    /// - **A [reset](crate::Caller::reset)** forgets what this instance holds, and what is on its way to it. What others
    ///   hold is spent or given back as above.
    ///
    /// For token buckets and fixed windows that count requests, of 1 to as many units as may be used at one moment. Units
    /// are prefetched only where *all* policies of a request have this setting, count by one key, and none is a
    /// [shadow](Self::shadow) or counts [units of your own](Self::with_unit); otherwise each request is charged by itself, as
    /// without the setting. A layer that has a hot limit for all users beside limits per user is better split into two.
    /// Changes of a charge, such as [`ActualCost`](crate::ActualCost), still cost a call each. It needs a Tokio runtime, with
    /// timers, in which units are given back; without one each request is charged by itself.
    ///
    /// ```
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let everybody = QuotaPolicy::per_second("everybody", 100_000).with_prefetch(500);
    /// assert_eq!(everybody.prefetch(), Some(500));
    ///
    /// let error = PolicySet::new([QuotaPolicy::per_minute("minute", 60).with_prefetch(61)]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "minute": prefetch 61 is outside 1..=60"#);
    /// # PolicySet::new([everybody]).unwrap();
    /// ```
    #[must_use]
    pub const fn with_prefetch(mut self, units: u64) -> Self {
        self.prefetch = Some(units);
        self
    }

    /// Rejects every request for so long after the policy was used up: against guesses, where a window is too short a
    /// punishment.
    ///
    /// The lockout begins with the charge that leaves less than one unit, and ends `time` after it; a request that finds a
    /// lockout is rejected, also one that costs nothing. `t` and `Retry-After` say when the lockout is over *and* there are
    /// enough units again.
    ///
    /// - **Rejections do not lengthen it**, and a request that another policy rejects begins none.
    /// - **A charge that is given back lifts it** if it restores a unit: a login that was charged before the password was
    ///   looked at, say, and then turns out to be right. So does a [reset](crate::Caller::reset). A cost that is known
    ///   late begins one, as any other charge does.
    /// - **It outlives other settings.** A new quota, window, algorithm or `time` changes no lockout that has begun. An
    ///   instance whose rules have none does not enforce it, and keeps it for those that do. Reduced
    ///   [capacity](crate::Capacity) leaves the policy as it is.
    /// - **A client that can use up the quota of another caller can lock that caller out.** The account that a login names
    ///   is only a claim: never lock out by it alone, but by address *and* account, as the
    ///   [guide](crate::guide#guesses-that-lock-no-user-out) does.
    ///
    /// Whole seconds, from 1 to 1 000 000 000. `build()` rejects it for limits of concurrent requests, for a
    /// [leaky bucket as a queue](crate::Algorithm::LeakyBucketQueue), whose requests have a moment at which they leave, for
    /// a [shadow](Self::shadow), and together with [prefetch](Self::with_prefetch), which would begin lockouts with units that
    /// no request has used. With quota 0 it has no effect.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::time::Duration;
    /// # let alice = Scope::new("login").partition(&PartitionKey::new("user", "alice"));
    /// # let clock = Clock::manual(Timestamp::from_micros(0));
    /// # let store = MemoryStore::builder().clock(clock.clone()).build()?;
    /// # tokio_test::block_on(async {
    /// let policy = QuotaPolicy::per_minute("failures", 5).with_lockout(Duration::from_secs(15 * 60));
    /// let attempt = Plan::new(PolicySet::new([policy.clone()])?, alice, 1);
    /// for _ in 0..5 {
    ///     assert_eq!(store.decide(attempt.clone()).await?.outcome(), Outcome::Allowed);
    /// }
    /// // Without the lockout, one would pass every 12 seconds.
    /// clock.advance(Duration::from_secs(60));
    /// let rejected = store.decide(attempt.clone()).await?;
    /// assert_eq!(rejected.retry_after(), Some(Duration::from_secs(14 * 60)));
    /// clock.advance(Duration::from_secs(14 * 60));
    /// assert_eq!(store.decide(attempt).await?.outcome(), Outcome::Allowed);
    ///
    /// let error = PolicySet::new([policy.shadow()]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "failures": a lockout of 900s does not apply to a shadow"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub const fn with_lockout(mut self, time: Duration) -> Self {
        self.lockout = Some(time);
        self
    }

    /// Enforces the policy without showing it: it is in no field and in no list of violated policies, so that clients
    /// learn nothing about what it protects. `Retry-After` is true all the same.
    ///
    /// A [decision](crate::Decision) names it: that is for you.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .policy(QuotaPolicy::per_hour("database", 1).hidden())
    ///     .build()?;
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&layer, alice()).await;
    /// let rejected = send(&layer, alice()).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert_eq!(rejected.headers()["ratelimit"], r#""hour";r=99;t=3564"#);
    /// assert_eq!(rejected.headers()["retry-after"], "3600");
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn hidden(mut self) -> Self {
        self.is_hidden = true;
        self
    }

    /// Counts and reports what the policy would reject, and rejects nothing: to find out whom new limits would hit.
    ///
    /// It counts as if it were enforced: a request that it would reject takes nothing from it. What it would have rejected
    /// is in [`Decision::shadow_violated`](crate::Decision::shadow_violated) and, from time to time, in a `tracing`
    /// event. It is [hidden](Self::hidden) from clients unless you [show](Self::visible) it. When it is enforced later, it
    /// goes on with what was used.
    ///
    /// ```
    /// use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    ///
    /// # tokio_test::block_on(async {
    /// let store = MemoryStore::new();
    /// let policies = [QuotaPolicy::per_hour("now", 5), QuotaPolicy::per_hour("planned", 1).shadow()];
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let plan = Plan::new(PolicySet::new(policies)?, alice, 1);
    /// store.decide(plan.clone()).await?;
    ///
    /// let decision = store.decide(plan).await?;
    /// assert_eq!(decision.outcome(), Outcome::Allowed);
    /// assert_eq!(decision.shadow_violated().next().unwrap().policy().name(), "planned");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self.is_hidden = true;
        self
    }

    /// Shows the policy to clients: the opposite of [`hidden`](Self::hidden), and the default unless the policy is a
    /// [shadow](Self::shadow).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("now", 100))
    ///     .policy(QuotaPolicy::per_hour("soon", 50).shadow().visible())
    ///     .policy(QuotaPolicy::per_hour("perhaps", 20).shadow())
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""now";r=99;t=3564, "soon";r=49;t=3528"#);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn visible(mut self) -> Self {
        self.is_hidden = false;
        self
    }

    /// Counts by another key of the layer than the main one, which has
    /// [this name](crate::RateLimitLayerBuilder::named_key): per address beside per user, say, or for all callers together.
    ///
    /// ```
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// let build = |policy| RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .named_key("address", key::client_ip())
    ///     .policy(policy)
    ///     .build();
    /// let policy = QuotaPolicy::per_minute("minute", 60);
    ///
    /// assert!(build(policy.clone().keyed_by("address")).is_ok());
    /// let error = build(policy.keyed_by("adress")).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "minute": there is no key named "adress""#);
    /// ```
    #[must_use]
    pub fn keyed_by(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Shows the partition key (`pk`), so that clients can tell whose quota the numbers are about.
    ///
    /// The value is [`PartitionId::shown_key`](crate::PartitionId::shown_key), a digest. Dialects that have no place for
    /// it leave it out.
    ///
    /// **A digest hides only what cannot be guessed.** A client that sees it, and knows the scope and how keys are
    /// made, can try names until one gives the same digest: a million numbers of users take seconds, all IPv4 addresses
    /// minutes. With a [`digest_key`](crate::LimiterBuilder::digest_key), a secret of the servers, no client can
    /// try them; but then a client can no longer compute its key in advance. Set one, unless keys are long and random,
    /// or what they are made from is no secret among those who see responses. For keys that are [made from
    /// addresses](crate::key::KeyExtractor::may_be_address), `build()` warns by an event if there is none.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100).show_partition_key())
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""hour";r=99;t=3564;pk=:0ij1xcNBZmisa+8X:"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""hour";q=100;w=3600;pk=:0ij1xcNBZmisa+8X:"#);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn show_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Adds an extension parameter to this policy in the `RateLimit-Policy` field: a comment, to most readers.
    ///
    /// The name needs a vendor prefix, such as `acme-burst`; `build()` rejects others.
    ///
    /// ```
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// let policy = QuotaPolicy::per_minute("minute", 60).with_burst_capacity(90);
    /// let build = |policy| RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::client_ip())
    ///     .policy(policy)
    ///     .build();
    /// assert!(build(policy.clone().with_extension("acme-burst", 90)).is_ok());
    /// let error = build(policy.with_extension("burst", 90)).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "policy \"minute\": RateLimit-Policy: the extension parameter's name has no vendor prefix, as acme-burst has"
    /// );
    /// ```
    #[must_use]
    pub fn with_extension(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<ExtensionValue>) -> Self {
        self.extensions.push((name.into(), value.into()));
        self
    }

    /// The same policy under another name, which need not be known when the program is compiled.
    ///
    /// ```
    /// use tower_quota::QuotaPolicy;
    ///
    /// const HOUR: QuotaPolicy = QuotaPolicy::per_hour("hour", 100);
    ///
    /// let tenant = 7;
    /// let policy = HOUR.with_name(format!("hour of tenant {tenant}"));
    /// assert_eq!((policy.name(), policy.quota()), ("hour of tenant 7", 100));
    /// ```
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The name, as clients see it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Units per window, or at a time; with 0, no request ever passes.
    pub const fn quota(&self) -> u64 {
        self.quota
    }

    /// The window; concurrent requests have none, and neither have [calendar quotas](Self::calendar_window), whose windows
    /// differ in length.
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// The unit of the quota.
    pub const fn unit(&self) -> QuotaUnit {
        self.unit
    }

    /// The algorithm of the policy.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most units that can be used at one moment: the quota unless it was set, half of it, rounded up, for a strict
    /// token bucket, 1 for a leaky bucket as a meter, and one more than may wait for one with a queue.
    pub const fn burst_capacity(&self) -> u64 {
        match (self.burst_capacity, self.algorithm) {
            _ if self.is_closed() => 0,
            (Some(capacity), _) => capacity,
            (None, algorithm) => algorithm.default_capacity(self.quota),
        }
    }

    /// The number of units that an instance may prefetch at once, if [`with_prefetch`](Self::with_prefetch) is set.
    pub const fn prefetch(&self) -> Option<u64> {
        self.prefetch
    }

    /// The time for which the policy rejects every request once its quota is exhausted, if it has a [lockout](Self::with_lockout).
    pub const fn lockout(&self) -> Option<Duration> {
        self.lockout
    }

    /// Returns `true` if responses do not show the policy.
    pub const fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// The name of the key by which it [counts](Self::keyed_by); `None` for the main one.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns `true` if the policy is a [shadow](Self::shadow), which rejects nothing.
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns `true` if no request ever passes.
    pub(crate) const fn is_closed(&self) -> bool {
        self.quota == 0
    }

    /// Returns `true` if reduced capacity lowers it. One that is closed has nothing to lower, and with fewer units one that
    /// lockouts would lock out callers who have done nothing wrong.
    pub(crate) const fn is_reducible(&self) -> bool {
        !self.is_closed() && self.lockout.is_none()
    }

    /// The same policy with this part of its numbers, but at least one unit; itself if it cannot be
    /// [reduced](Self::is_reducible).
    pub(crate) fn reduced_to(mut self, percent: u8) -> Self {
        if !self.is_reducible() {
            return self;
        }
        let reduced = |number: u64| (u128::from(number) * u128::from(percent) / 100).max(1) as u64;
        self.quota = reduced(self.quota);
        self.burst_capacity = self.burst_capacity.map(reduced);
        self.prefetch = self.prefetch.map(reduced);
        if let Algorithm::LeakyBucketQueue { max_waiting } = &mut self.algorithm {
            *max_waiting = reduced(*max_waiting);
        }
        self
    }

    /// Returns `true` if units come back with time.
    pub(crate) fn is_timed(&self) -> bool {
        self.unit != QuotaUnit::ConcurrentRequests
    }

    /// The window, or the usual length of a calendar's.
    pub(crate) fn usual_window(&self) -> Option<Duration> {
        let calendar = self.calendar.as_ref();
        self.window.or(calendar.map(|window| window.period().usual_length()))
    }

    pub(crate) fn window_micros(&self) -> u64 {
        self.window.map_or(0, |window| window.as_secs() * 1_000_000)
    }

    /// After this many microseconds no unit of a charge comes back. Of a calendar it is the time after which the window is
    /// over for certain.
    pub(crate) fn refundable_micros(&self) -> u64 {
        match &self.calendar {
            Some(window) => 2 * window.period().usual_length().as_micros() as u64,
            None => self.window_micros(),
        }
    }
}

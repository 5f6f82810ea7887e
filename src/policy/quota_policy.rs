use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use super::{Algorithm, CalendarWindow, Direction, QuotaUnit, UnitName};
use crate::fields::ExtensionValue;

/// A named limit: a number of units per window, or of concurrent requests, for each partition.
///
/// By default, a policy counts requests with a *token bucket*, which holds [`burst_capacity`](Self::burst_capacity)
/// units (by default, the quota) and refills continuously at `quota` units per `window`. With
/// `per_minute("minute", 60)`, a caller can send 60 requests at once and then one per second: up to 119 within one
/// minute. If at most 60 requests may pass in any minute, use [`StrictTokenBucket`](Algorithm::StrictTokenBucket) or
/// [`SlidingWindowLog`](Algorithm::SlidingWindowLog). See [`Algorithm`] and [`QuotaUnit`] for the alternatives.
///
/// Policies are validated by [`build`](crate::RateLimitLayerBuilder::build) and
/// [`PolicySet::new`](crate::PolicySet::new), whose errors name the policy. A policy has
/// - a **name** of 1 to 128 printable ASCII characters, which clients see in the `RateLimit` field;
/// - a **quota** of up to 999,999,999,999,999 units; 0 means *closed*;
/// - a **window** of 1 to 1,000,000,000 whole seconds or of a [calendar](Self::per_calendar), unless it limits
///   concurrent requests;
/// - a **burst capacity** from 1 to 999,999,999,999,999, for token buckets.
///
/// Counting is exact to the unit and the microsecond. The refill rate is rounded down only if capacity times window
/// exceeds the precision of a double (as for 5,003 units in 31 days, but not for 5,000), and by less than one
/// millionth. Policies whose rate would be rounded by more are rejected.
///
/// Constructors such as [`per_minute`](Self::per_minute) are `const`, so limits can be constants of a module. Use
/// [`with_name`](Self::with_name) for names that are created at run time:
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
/// // 1 unit per second, in bursts of up to 5:
/// let bursty = QuotaPolicy::per_second("bursty", 1).with_burst_capacity(5);
/// assert_eq!((bursty.quota(), bursty.burst_capacity()), (1, 5));
///
/// // 10 MB of responses per minute, 8 concurrent requests, and 100 requests in any hour:
/// let bandwidth = QuotaPolicy::per_minute("bandwidth", 10_000_000).with_content_bytes(Direction::Response);
/// let slots = QuotaPolicy::concurrent("slots", 8);
/// let hourly = QuotaPolicy::per_hour("hourly", 100).with_algorithm(Algorithm::SlidingWindowLog);
/// assert_eq!((slots.unit(), slots.window()), (QuotaUnit::ConcurrentRequests, None));
/// assert_eq!(hourly.algorithm(), Algorithm::SlidingWindowLog);
///
/// // Keyed by address, and evaluated without enforcing (which also hides it):
/// let trial = QuotaPolicy::per_hour("trial", 10).keyed_by("address").shadow();
/// assert_eq!(trial.key_name(), Some("address"));
/// assert!(trial.is_shadow() && trial.is_hidden() && trial.prefetch().is_none());
///
/// // A set validates its policies: a window of zero is an error.
/// let error = PolicySet::new([QuotaPolicy::new("now", 1, Duration::ZERO)]).unwrap_err();
/// assert_eq!(error.to_string(), r#"policy "now": window 0ns is not a whole number of seconds in 1..=1000000000"#);
/// assert!(PolicySet::new([DAILY, weekly, bursty, bandwidth, slots, hourly]).is_ok());
/// ```
///
/// # Closed
///
/// A policy with quota 0 rejects every request, even at cost 0. The store is not called, so requests are also rejected
/// while it is unavailable. The response has no `Retry-After`, and its fields contain `q=0` and `r=0` (as draft-11,
/// section "Quota Parameter", allows) but no `t`. The problem details state that the limit is closed.
///
/// Use this to close a tier or a route, usually with [rules that change at run time](crate::RulesHandle). Units used
/// earlier still count after reopening. Neither a [top-up](crate::CallerQuotas::top_up) nor
/// [capacity](crate::Capacity) opens a closed policy. Its other settings (burst capacity, prefetch, lockout) have no
/// effect while it is closed, and a closed [shadow](Self::shadow) rejects nothing.
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
/// With the feature `serde`, a policy can be deserialized from any format. `name` and `quota` are required, as is
/// either `window_seconds` or `calendar` (such as
/// `{"period": "month", "time_zone": "Europe/Berlin", "month_begins": 15}`), unless `unit` is `"concurrent_requests"`.
/// The optional fields are `burst_capacity`, `algorithm` (such as `"fixed_window"`), `unit` (`"requests"`,
/// `"concurrent_requests"`, `"content_bytes"`, `"request_content_bytes"`, `"response_content_bytes"`, or a [custom
/// unit](Self::with_unit)), `key`, `caller_quotas` (such as `[10, 10000]`), `overage_percent`, `lockout_seconds`,
/// `prefetch`, `hidden`, `shadow`, `partition_key` and `extensions`:
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
    pub(crate) prefetch: Option<u64>,
    pub(crate) lockout: Option<Duration>,
    pub(crate) is_hidden: bool,
    pub(crate) is_shadow: bool,
    pub(crate) shows_partition_key: bool,
    pub(crate) caller_quotas: Option<CallerQuotaBounds>,
    pub(crate) overage: Option<u32>,
    /// `None` for the main key.
    pub(crate) key: Option<Cow<'static, str>>,
    pub(crate) extensions: Vec<(Cow<'static, str>, ExtensionValue)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerQuotaBounds {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl QuotaPolicy {
    /// Creates a policy of `quota` units per `window`, in whole seconds.
    ///
    /// The name has 1 to 128 printable ASCII characters. Error messages truncate longer names:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let long = QuotaPolicy::new("n".repeat(129), 60, Duration::from_secs(60));
    /// let error = PolicySet::new([long]).unwrap_err().to_string();
    /// assert!(error.ends_with("nnn…\": name length 129 exceeds 128 bytes"), "{error}");
    /// ```
    pub fn new(name: impl Into<Cow<'static, str>>, quota: u64, window: Duration) -> Self {
        Self::windowed("", quota, window).with_name(name)
    }

    /// Creates a policy of `quota` units per second.
    ///
    /// Use [`with_name`](Self::with_name) for names that are created at run time.
    pub const fn per_second(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(1))
    }

    /// Creates a policy of `quota` units per minute.
    ///
    /// Use [`with_name`](Self::with_name) for names that are created at run time.
    pub const fn per_minute(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(60))
    }

    /// Creates a policy of `quota` units per hour.
    ///
    /// Use [`with_name`](Self::with_name) for names that are created at run time.
    pub const fn per_hour(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(3_600))
    }

    /// Creates a policy of `quota` units per day of 24 hours.
    ///
    /// With the default token bucket, the window slides with each caller. With
    /// [`FixedWindow`](Algorithm::FixedWindow), it ends at midnight UTC. For days of a time zone, see
    /// [`per_calendar_day`](Self::per_calendar_day).
    ///
    /// Use [`with_name`](Self::with_name) for names that are created at run time.
    pub const fn per_day(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(86_400))
    }

    /// Creates a limit of `quota` concurrent requests.
    ///
    /// A request holds its slot from admission (including time in a queue) until its response body ends or is dropped,
    /// the request is cancelled, or the inner service fails. For upgraded connections, see
    /// [`WeakPermit`](crate::WeakPermit).
    ///
    /// Use [`with_name`](Self::with_name) for names that are created at run time.
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
    /// // The first request ends. A layer settles it automatically.
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

    /// Sets the burst capacity of a token bucket: the units that can be used at once.
    ///
    /// The refill rate does not change, except for [`StrictTokenBucket`](Algorithm::StrictTokenBucket). The capacity
    /// can be above or below the quota. Clients see only the quota in `RateLimit-Policy`, so document the burst
    /// capacity for them.
    ///
    /// Default: the quota; for `StrictTokenBucket`, half of it, rounded up. `build()` rejects a burst capacity for
    /// other algorithms.
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
    /// // Afterwards, the rate applies.
    /// assert_eq!(store.decide(plan.clone()).await?.outcome(), Outcome::Rejected);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(store.decide(plan.clone()).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(plan).await?.outcome(), Outcome::Rejected);
    ///
    /// let error = PolicySet::new([policy.with_algorithm(Algorithm::FixedWindow)]).unwrap_err();
    /// assert!(error.to_string().contains("burst capacity 5: not supported for FixedWindow"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub const fn with_burst_capacity(mut self, capacity: u64) -> Self {
        self.burst_capacity = Some(capacity);
        self
    }

    /// Allows individual quotas in the range `quotas`, such as contractual ones.
    ///
    /// The quotas are set with [`CallerQuotas`](crate::CallerQuotas), either in the request's extensions or by the tier
    /// source. A quota outside the range is replaced by the nearest bound. If the lower bound is 0, a caller's quota
    /// can be 0, which closes the policy for that caller. Default: all callers of a tier have the same quota.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) fails if the lower bound is above the upper one, or if either is
    /// not a valid quota of the policy.
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

    /// Admits and counts requests up to `percent` percent above the quota.
    ///
    /// Use this to notify or bill a customer before rejecting its requests: the quota is a soft limit below a hard
    /// ceiling. For a request above the quota, the `RateLimit` field shows `r=0`,
    /// [`Allowance::over_quota`](crate::Allowance::over_quota) returns the excess units, the metric
    /// `tower_quota_over_quota_total` increments, and a sampled event of level `INFO` names the policy. Requests above
    /// the ceiling are rejected.
    ///
    /// An overage applies to fixed windows, sliding windows, calendar windows and concurrency limits, not to token or
    /// leaky buckets. Caller quotas, top-ups and reduced capacity change quota and ceiling in proportion. If the store
    /// loses its data, the counters are lost as well, so do not use them for invoices.
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

    pub(crate) fn overage_units(&self) -> u64 {
        let Some(percent) = self.overage else { return 0 };
        let units = u128::from(self.quota) * u128::from(percent) / 100;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    pub(crate) fn ceiling(&self) -> u64 {
        self.quota.saturating_add(self.overage_units())
    }

    /// Sets the algorithm.
    ///
    /// Default: [`Algorithm::TokenBucket`], or [`Algorithm::FixedWindow`] for calendar windows. `build()` rejects
    /// other algorithms for calendar windows and for concurrency limits.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Counts bytes of content instead of requests, at least one per request.
    ///
    /// The layer charges a known length before it forwards the request, and other bytes as they are streamed. Streamed
    /// bytes can overdraw the policy by at most its capacity, and later requests are rejected until the debt is repaid. A
    /// request of unknown size is forwarded if at least one byte remains.
    ///
    /// At most the first 1 MiB of a response with a known length is charged before the response is sent, and stays
    /// charged if the client disconnects early. All other response bytes are charged after they were sent, in steps of
    /// about 1 MiB. Charging never delays a response. A response to `HEAD` counts as one byte, even with a
    /// `Content-Length`.
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

    /// Counts a custom unit, such as `"tokens"`, instead of requests.
    ///
    /// Policies with different units are charged in one decision: either all of them or none. A policy set can have up
    /// to three custom units.
    ///
    /// - **Before** the layer forwards the request, it charges the amount or estimate from
    ///   [`unit_cost`](crate::RateLimitLayerBuilder::unit_cost). `build()` rejects a unit without a cost.
    /// - **Afterwards**, and while the response is streamed, the handler reports the actual usage to the
    ///   [permit](crate::WeakPermit) of its request. The difference is refunded or charged. A late charge can overdraw
    ///   the policy by at most its capacity, and later requests are rejected until the debt is repaid.
    ///
    /// `unit` has 1 to 24 printable ASCII characters. The `RateLimit` field shows the remaining units.
    /// `RateLimit-Policy` omits the policy, because draft-11 allows `qu` to name only registered units, and clients
    /// would interpret a policy without `qu` as a limit on requests. Dialects without policy names omit such policies
    /// entirely.
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

    /// Charges units to the store in batches of up to `units`, which are spent locally.
    ///
    /// Use this for callers that exceed the throughput of one Redis server, or for a remote Redis. Only token buckets
    /// and fixed windows that count requests support it. Range: 1 to the burst capacity. Default: each request is
    /// charged individually.
    ///
    /// Requests are prefetched only if *all* policies of the request have this setting and the same key, and none is a
    /// [shadow](Self::shadow) or counts a [custom unit](Self::with_unit). Split a layer with both a busy limit for all
    /// users and limits per user into two layers. Each correction of a charge, such as
    /// [`ActualCost`](crate::ActualCost), still needs one call. Prefetching needs a Tokio runtime with timers; without
    /// one, requests are charged individually.
    ///
    /// An instance starts with individual charges. For a busy caller, the batch size doubles until a batch lasts for
    /// most of its lifetime. The lifetime is four times the store's round-trip time (the shortest of the last minute),
    /// and at least 1 s, but never more than 5 s or a tenth of the window. A batch has at most `units` and at most a
    /// quarter of the units that remain in the store, so the last units of a quota are charged individually. Units that
    /// are not spent within the lifetime are refunded.
    ///
    /// The next batch is fetched in the background, two round trips before the current batch is exhausted. A busy
    /// caller therefore waits only for the first decision and the first batch, regardless of the store's latency. The
    /// caller's requests wait again for one round trip when a fixed window ends, when the caller's rate suddenly rises,
    /// and near the end of a quota.
    ///
    /// - **Upper bound.** Units are charged before they are spent, so a fixed window never exceeds its quota. In any
    ///   interval *t*, a token bucket admits at most its burst capacity plus the refill during *t*, plus either the
    ///   refill during one lifetime or instances × `units`, whichever is less.
    /// - **Units held by other instances.** An instance cannot spend the units that other instances hold or have
    ///   requested: per caller and lifetime, at most instances × `units`. Keep this product far below the quota, for
    ///   example at a tenth. A caller whose requests are spread evenly over 20 instances gets at least 99 % of a fixed
    ///   window.
    /// - **Late and lost batches.** The units of a late batch are spent, or refunded after their lifetime. Units are
    ///   lost only if an instance is killed (at most `units` per caller), if the store does not respond within 5 s
    ///   after the deadline, or if the connection closes. `tower_quota_late_batches_total` [counts](crate::telemetry)
    ///   both late and lost batches.
    /// - **Batch size.** Set `units` to the number of units that one instance charges to one caller per second. With
    ///   500 units and 200 requests per second, one call serves about 60 requests. Smaller batches need more calls.
    ///   Requests wait if a batch lasts for less than two round trips.
    /// - **Latency.** The [deadline](crate::LimiterBuilder::deadline) must allow three round trips: near the end of a
    ///   quota, a request may fetch a batch, then be charged individually, and be charged again after a refund.
    ///   Requests also wait if a tenth of the window is less than four round trips, as for a window of one second and a
    ///   store 80 ms away.
    /// - **Remaining units.** Clients see the units that remained in the store when the batch was charged, minus what
    ///   this instance has charged since.
    /// - **Exhausted quota.** Each request is charged or rejected individually, as without this setting.
    /// - **Unavailable store.** Prefetched units are still spent; then the [`FailureMode`](crate::FailureMode)
    ///   applies. A background call that fails affects no request and is retried after an eighth of the lifetime.
    /// - **[Reset](crate::Caller::reset).** A reset discards the batches of this instance, including batches in flight.
    ///   Batches of other instances are spent or refunded as usual.
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

    /// Locks callers out for `time` after they exhaust the policy.
    ///
    /// Use this against password guessing, where a rejection until the next unit is not enough. The lockout begins with
    /// the charge that leaves less than one unit. During the lockout, all requests are rejected, even at cost 0. `t`
    /// and `Retry-After` cover both the lockout and the refill.
    ///
    /// - **Rejections do not extend a lockout**, and a request that another policy rejects does not begin one. A late
    ///   charge can begin a lockout.
    /// - **A refund ends the lockout** if it restores a unit, for example if logins are charged before the password is
    ///   verified and refunded afterwards. A [reset](crate::Caller::reset) also ends it.
    /// - **Lockouts outlive changes of the settings.** A new quota, window, algorithm or `time` does not affect a
    ///   lockout in progress. An instance whose rules have no lockout does not enforce it, but preserves it for the
    ///   others. Reduced [capacity](crate::Capacity) does not apply to the policy.
    /// - **A client that can exhaust another caller's quota can lock that caller out.** The account named in a login
    ///   is only a claim. Limit by address *and* account, never by the account alone, as in the
    ///   [guide](crate::guide#guesses-that-lock-no-user-out).
    ///
    /// `time` has 1 to 1,000,000,000 whole seconds. Default: no lockout. `build()` rejects it for concurrency limits,
    /// for [leaky-bucket queues](crate::Algorithm::LeakyBucketQueue), for [shadows](Self::shadow), and together with
    /// [prefetch](Self::with_prefetch), because prefetched units could begin a lockout without a request. On a policy
    /// with quota 0, the setting has no effect.
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
    /// // Without the lockout, one request would pass every 12 seconds.
    /// clock.advance(Duration::from_secs(60));
    /// let rejected = store.decide(attempt.clone()).await?;
    /// assert_eq!(rejected.retry_after(), Some(Duration::from_secs(14 * 60)));
    /// clock.advance(Duration::from_secs(14 * 60));
    /// assert_eq!(store.decide(attempt).await?.outcome(), Outcome::Allowed);
    ///
    /// let error = PolicySet::new([policy.shadow()]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "failures": lockout 900s: not supported for shadow policies"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub const fn with_lockout(mut self, time: Duration) -> Self {
        self.lockout = Some(time);
        self
    }

    /// Enforces the policy without showing it to clients.
    ///
    /// The policy is omitted from all fields and from the list of violated policies, so that it reveals nothing to
    /// clients. `Retry-After` still accounts for it. A [decision](crate::Decision) includes the policy, for your own
    /// logs.
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

    /// Evaluates the policy without enforcing it, to find out which callers a new limit would reject.
    ///
    /// Counts are the same as if the policy were enforced: a request that it would reject is not charged to it.
    /// [`Decision::shadow_violated`](crate::Decision::shadow_violated) and sampled `tracing` events report the
    /// rejections. The policy is [hidden](Self::hidden) from clients unless it is [visible](Self::visible). If the
    /// policy is enforced later, these counts continue.
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

    /// Shows the policy to clients: the opposite of [`hidden`](Self::hidden).
    ///
    /// This is the default, except for [shadows](Self::shadow).
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

    /// Counts requests by the [named key](crate::RateLimitLayerBuilder::named_key) `key` of the layer instead of its
    /// main key.
    ///
    /// Use this to limit each address as well as each user, for example, or all callers together. `build()` rejects an
    /// unknown name.
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
    /// assert_eq!(error.to_string(), r#"policy "minute": unknown key "adress""#);
    /// ```
    #[must_use]
    pub fn keyed_by(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Shows the partition key (`pk`), so that clients can determine which requests share a quota.
    ///
    /// The value is [`PartitionId::shown_key`](crate::PartitionId::shown_key), a digest. Dialects without a partition
    /// key omit it.
    ///
    /// **A digest hides only keys that cannot be guessed.** A client that knows the scope and the format of the keys
    /// can try candidates until the digest matches: a million user numbers take seconds, and all IPv4 addresses take
    /// minutes. A [`digest_key`](crate::LimiterBuilder::digest_key) that only the servers have prevents this, but then
    /// clients can no longer compute their own partition key. Set a digest key unless keys are long and random, or not
    /// secret. `build()` logs a warning if the keys are [derived from
    /// addresses](crate::key::KeyExtractor::may_be_address) and no digest key is set.
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

    /// Adds an extension parameter to this policy in the `RateLimit-Policy` field.
    ///
    /// Clients ignore parameters that they do not know. The name needs a vendor prefix, such as `acme-burst`;
    /// `build()` rejects other names.
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
    ///     "policy \"minute\": RateLimit-Policy: extension parameter name has no vendor prefix, \
    ///      such as acme- in acme-burst"
    /// );
    /// ```
    #[must_use]
    pub fn with_extension(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<ExtensionValue>) -> Self {
        self.extensions.push((name.into(), value.into()));
        self
    }

    /// Sets the name. Use this for names that are created at run time.
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

    /// Returns the name that clients see.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the units per window or the maximum number of concurrent requests; 0 means closed.
    pub const fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the window, or `None` for concurrency limits and for [calendar windows](Self::calendar_window), which
    /// differ in length.
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Returns the unit of the quota.
    pub const fn unit(&self) -> QuotaUnit {
        self.unit
    }

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the maximum number of units that can be used at once.
    ///
    /// Default: the quota. For a strict token bucket, the default is half the quota, rounded up. For a leaky bucket,
    /// the capacity is 1 as a meter and `max_waiting` + 1 as a queue. A closed policy returns 0.
    pub const fn burst_capacity(&self) -> u64 {
        match (self.burst_capacity, self.algorithm) {
            _ if self.is_closed() => 0,
            (Some(capacity), _) => capacity,
            (None, algorithm) => algorithm.default_capacity(self.quota),
        }
    }

    /// Returns the maximum size of a batch, if [`with_prefetch`](Self::with_prefetch) is set.
    pub const fn prefetch(&self) -> Option<u64> {
        self.prefetch
    }

    /// Returns the duration of the [lockout](Self::with_lockout), if there is one.
    pub const fn lockout(&self) -> Option<Duration> {
        self.lockout
    }

    /// Returns `true` if responses do not show the policy.
    pub const fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Returns the name of the key that the policy [counts by](Self::keyed_by), or `None` for the main key.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns `true` if the policy is a [shadow](Self::shadow), which is not enforced.
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.quota == 0
    }

    /// A closed policy has nothing to reduce. A policy with a lockout would lock out callers that have done nothing
    /// wrong.
    pub(crate) const fn is_reducible(&self) -> bool {
        !self.is_closed() && self.lockout.is_none()
    }

    /// Scales all numbers to `percent`, at least to 1, unless the policy is not [reducible](Self::is_reducible).
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

    pub(crate) fn is_timed(&self) -> bool {
        self.unit != QuotaUnit::ConcurrentRequests
    }

    /// The window, or the nominal length of a calendar window.
    pub(crate) fn usual_window(&self) -> Option<Duration> {
        let calendar = self.calendar.as_ref();
        self.window.or(calendar.map(|window| window.period().usual_length()))
    }

    pub(crate) fn window_micros(&self) -> u64 {
        self.window.map_or(0, |window| window.as_secs() * 1_000_000)
    }

    /// A refund after this time has no effect. For calendar windows, it is the time after which the window has
    /// certainly ended.
    pub(crate) fn refundable_micros(&self) -> u64 {
        match &self.calendar {
            Some(window) => 2 * window.period().usual_length().as_micros() as u64,
            None => self.window_micros(),
        }
    }
}

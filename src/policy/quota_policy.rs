use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use super::{Algorithm, CalendarWindow, Direction, QuotaUnit, UnitName};
use crate::fields::ExtensionValue;

/// A named limit: a number of units per window, or of concurrent requests, for each partition.
///
/// By default, a policy counts requests with a *token bucket*, which holds [`burst_capacity`](Self::burst_capacity)
/// units (by default, the quota) and refills continuously at `quota` units per `window`. With `per_minute("minute",
/// 60)`, a caller can send 60 requests at once and then one per second: up to 119 within one minute. If at most 60
/// requests may pass in any minute, use [`StrictTokenBucket`](Algorithm::StrictTokenBucket) or
/// [`SlidingWindowLog`](Algorithm::SlidingWindowLog).
///
/// [`build`](crate::RateLimitLayerBuilder::build) and [`PolicySet::new`](crate::PolicySet::new) validate policies. The
/// constructors with a `'static` name are `const`; use [`with_name`](Self::with_name) for names that are created at run
/// time.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Algorithm, Direction, PolicySet, QuotaPolicy};
///
/// const DAILY: QuotaPolicy = QuotaPolicy::per_day("daily", 5_000);
///
/// let tenant = 7;
/// let policies = PolicySet::new([
///     DAILY,
///     DAILY.with_name(format!("daily of tenant {tenant}")),
///     QuotaPolicy::new("weekly", 20_000, Duration::from_secs(7 * 86_400)),
///     // One unit per second, in bursts of up to five:
///     QuotaPolicy::per_second("bursty", 1).with_burst_capacity(5),
///     // 100 requests in any hour:
///     QuotaPolicy::per_hour("hourly", 100).with_algorithm(Algorithm::SlidingWindowLog),
///     QuotaPolicy::concurrent("slots", 8),
///     QuotaPolicy::per_minute("bandwidth", 10_000_000).with_content_bytes(Direction::Response),
///     QuotaPolicy::per_minute("tokens", 100_000).with_unit("tokens"),
///     // By the layer's key named "address", and omitted from all responses:
///     QuotaPolicy::per_hour("address", 1_000).keyed_by("address").hidden(),
///     // Evaluated, but not enforced:
///     QuotaPolicy::per_hour("trial", 50).shadow(),
///     // Charged to the store in batches:
///     QuotaPolicy::per_second("everybody", 100_000).with_prefetch(500),
/// ])?;
/// assert_eq!(policies.policies().count(), 11);
/// # let policy = |name| policies.policies().find(|policy| policy.name() == name).unwrap();
/// # assert_eq!(DAILY.window(), Some(Duration::from_secs(86_400)));
/// # assert_eq!(policy("daily of tenant 7").quota(), 5_000);
/// # assert_eq!((policy("bursty").quota(), policy("bursty").burst_capacity()), (1, 5));
/// # assert_eq!(policy("slots").unit(), tower_quota::QuotaUnit::ConcurrentRequests);
/// # assert_eq!(policy("slots").window(), None);
/// # assert_eq!(policy("hourly").algorithm(), Algorithm::SlidingWindowLog);
/// # assert!(policy("trial").is_shadow() && policy("trial").is_hidden() && policy("trial").prefetch().is_none());
/// # assert!(policy("address").is_hidden() && !DAILY.is_hidden());
/// # assert_eq!(policy("address").key_name(), Some("address"));
/// # assert_eq!(policy("everybody").prefetch(), Some(500));
/// # let fixed = policy("bursty").clone().with_algorithm(Algorithm::FixedWindow);
/// # let error = PolicySet::new([fixed]).unwrap_err();
/// # assert!(error.to_string().contains("burst capacity 5: not supported for FixedWindow"));
///
/// let error = PolicySet::new([QuotaPolicy::new("now", 1, Duration::ZERO)]).unwrap_err();
/// assert_eq!(error.to_string(), r#"policy "now": window 0ns is not a whole number of seconds in 1..=1000000000"#);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
///
/// # Valid values
///
/// | value | range |
/// |---|---|
/// | name, which clients see in the `RateLimit` field | 1 to 128 printable ASCII characters |
/// | quota | 0 ([closed](#closed)) to 999,999,999,999,999 units |
/// | window, except of concurrency limits | 1 to 1,000,000,000 whole seconds, or a [calendar](Self::per_calendar) window |
/// | burst capacity of a token bucket | 1 to 999,999,999,999,999 units |
///
/// Counting is exact to the unit and the microsecond. A policy is rejected if its refill rate would be rounded down by
/// one millionth or more.
///
/// # Closed
///
/// A policy with quota 0 rejects every request, even at cost 0, without a call to the store. The response has no
/// `Retry-After`, and its fields contain `q=0` and `r=0` (as draft-11, section "Quota Parameter", allows) but no `t`.
///
/// Use this to close a tier or a route with [rules that change at run time](crate::RulesHandle). Units used earlier
/// still count after reopening. Neither a [top-up](crate::CallerQuotas::top_up) nor [capacity](crate::Capacity) opens a
/// closed policy. Its other settings have no effect, and a closed [shadow](Self::shadow) rejects nothing.
///
/// # In files
///
/// With the feature `serde`, a policy can be deserialized from any format. `name` and `quota` are required, as is
/// either `window_seconds` or `calendar` (such as `{"period": "month", "time_zone": "Europe/Berlin", "month_begins":
/// 15}`), unless `unit` is `"concurrent_requests"`. The optional fields are `burst_capacity`, `initial_units`,
/// `algorithm` (such as `"fixed_window"`), `unit` (`"requests"`, `"concurrent_requests"`, `"content_bytes"`,
/// `"request_content_bytes"`, `"response_content_bytes"`, or a [custom unit](Self::with_unit)), `key`, `caller_quotas`
/// (such as `[10, 10000]`), `overage_percent`, `lockout_seconds`, `prefetch`, `hidden`, `shadow`, `partition_key` and
/// `extensions`:
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
    pub(crate) initial_units: Option<u64>,
    pub(crate) algorithm: Algorithm,
    pub(crate) unit: QuotaUnit,
    pub(crate) prefetch: Option<u64>,
    pub(crate) lockout: Option<Duration>,
    pub(crate) is_hidden: bool,
    pub(crate) is_shadow: bool,
    pub(crate) shows_partition_key: bool,
    pub(crate) caller_quotas: Option<CallerQuotaBounds>,
    pub(crate) overage: Option<u32>,
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
    pub fn new(name: impl Into<Cow<'static, str>>, quota: u64, window: Duration) -> Self {
        Self::windowed("", quota, window).with_name(name)
    }

    /// Creates a policy of `quota` units per second.
    pub const fn per_second(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(1))
    }

    /// Creates a policy of `quota` units per minute.
    pub const fn per_minute(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(60))
    }

    /// Creates a policy of `quota` units per hour.
    pub const fn per_hour(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(3_600))
    }

    /// Creates a policy of `quota` units per day of 24 hours.
    ///
    /// For days of a time zone, see [`per_calendar_day`](Self::per_calendar_day).
    pub const fn per_day(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(86_400))
    }

    /// Creates a limit of `quota` concurrent requests.
    ///
    /// A request holds its slot from admission (including time in a queue) until its response body ends or is dropped,
    /// the request is cancelled, or the inner service fails. For upgraded connections, see
    /// [`WeakPermit`](crate::WeakPermit).
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
            initial_units: None,
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
    /// capacity.
    ///
    /// Default: the quota; for `StrictTokenBucket`, half of it, rounded up. `build()` rejects a burst capacity for
    /// other algorithms.
    #[must_use]
    pub const fn with_burst_capacity(mut self, capacity: u64) -> Self {
        self.burst_capacity = Some(capacity);
        self
    }

    /// Sets the units in the token bucket of a new caller.
    ///
    /// Use this against clients that often change their key, or if the loss of Redis data must not grant a full burst
    /// to every caller. The bucket refills from the first request on, even if that request is rejected. With
    /// 0, the first request is always rejected.
    ///
    /// Range: 0 to the burst capacity. Default: the burst capacity. Only token buckets support the setting.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{
    ///     Limiter, MemoryStore, QuotaPolicy,
    ///     clock::{Clock, Timestamp},
    /// };
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_minute("minute", 60).with_initial_units(5))
    ///     .clock(clock.clone())
    ///     .build()?;
    ///
    /// let alice = limiter.caller("alice");
    /// assert_eq!(alice.clone().cost(8).check().await.retry_after(), Some(Duration::from_secs(3)));
    /// clock.advance(Duration::from_secs(3));
    /// assert!(alice.clone().cost(8).check().await.outcome().is_admitted());
    /// // After an idle minute, the bucket is full.
    /// clock.advance(Duration::from_secs(60));
    /// assert!(alice.cost(60).check().await.outcome().is_admitted());
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # New callers
    ///
    /// A caller is new if the store has no state of it: also after a [reset](crate::Caller::reset), after the store has
    /// lost or evicted its state, and in a fallback store. The state is kept for one hour longer than any wait that the
    /// policies with the same key can cause. A [peek](crate::Store::peek) shows the initial units, but does not start
    /// the refill. A refund does not raise them.
    ///
    /// Stored units take precedence over this setting, so instances with different values can share a store. When the
    /// setting is introduced, callers whose buckets are full are new. Caller quotas cap the initial units at the
    /// caller's burst capacity; reduced capacity changes them in proportion. In Redis, such a policy takes 16 or 32
    /// bytes more per caller, and about twice the time of other token buckets.
    #[must_use]
    pub const fn with_initial_units(mut self, units: u64) -> Self {
        self.initial_units = Some(units);
        self
    }

    /// Allows individual quotas in the range `quotas`, such as contractual ones. Default: all callers of a tier have
    /// the same quota.
    ///
    /// [`CallerQuotas`](crate::CallerQuotas) sets the quotas. A quota outside the range is replaced by the nearest
    /// bound. `build()` fails if the lower bound is above the upper one, or if either is not a valid quota of the
    /// policy.
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
    /// *ceiling*. For a request above the quota, the `RateLimit` field shows `r=0` and the time until a unit of the
    /// quota is available, [`Allowance::over_quota`](crate::Allowance::over_quota) returns the excess units, the metric
    /// `tower_quota_over_quota_total` increments, and a sampled event of level `INFO` names the policy.
    ///
    /// Range: 1 to 10,000, with a ceiling of at most 999,999,999,999,999. Default: no overage. `build()` rejects an
    /// overage for token and leaky buckets, for shadows, and together with prefetching or a lockout.
    ///
    /// ```
    /// use tower_quota::{Algorithm, Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_day("day", 10).with_algorithm(Algorithm::FixedWindow).with_overage(20))
    ///     .build()?;
    ///
    /// let acme = limiter.caller("acme");
    /// let above = acme.clone().cost(11).check().await;
    /// assert!(above.outcome().is_admitted());
    /// assert_eq!(above.allowances().map(|day| (day.remaining(), day.over_quota())).next(), Some((0, 1)));
    /// assert!(acme.check().await.outcome().is_admitted());
    /// // 12 of 12 units are used.
    /// assert!(!acme.check().await.outcome().is_admitted());
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// - `t` and `Retry-After` of a rejected request are the wait until the ceiling admits it.
    /// - A [partial plan](crate::Plan::allow_partial) is granted up to the ceiling.
    /// - A fraction of a unit above the quota, as in a sliding window counter, counts as a whole unit over the quota.
    ///
    /// Caller quotas, top-ups and reduced capacity change quota and ceiling in proportion. If the store loses its data,
    /// the counters are lost as well, so do not use them for invoices.
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

    /// Sets the algorithm. Default: [`Algorithm::TokenBucket`], or for calendar windows [`Algorithm::FixedWindow`], the
    /// only one that they support. `build()` rejects an algorithm for concurrency limits.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Counts bytes of content instead of requests, at least one per request.
    ///
    /// A known length is charged before the layer forwards the request, and other bytes while they are streamed,
    /// without delaying them. Streamed bytes can [overdraw](crate::Settlement#late-charges) the policy. A request of
    /// unknown size is forwarded if at least one byte remains.
    ///
    /// Of a response with a known length, at most the first 1 MiB is charged before it is sent, and stays charged if
    /// the client disconnects early. Other response bytes are charged after they were sent, in steps of about 1 MiB. A
    /// response to `HEAD` counts as one byte.
    #[must_use]
    pub const fn with_content_bytes(mut self, content: Direction) -> Self {
        self.unit = QuotaUnit::ContentBytes(content);
        self
    }

    /// Counts a custom unit, such as `"tokens"`, instead of requests.
    ///
    /// The layer charges the estimate from [`unit_cost`](crate::RateLimitLayerBuilder::unit_cost), which is required,
    /// before it forwards the request. The handler reports the actual usage to its [`WeakPermit`](crate::WeakPermit),
    /// and the difference is [charged or refunded](crate::Settlement).
    ///
    /// `unit` has 1 to 24 printable ASCII characters, and must not be that of another unit in the drafts or in rules
    /// files. A policy set has up to three custom units. `RateLimit` shows the remaining units, but `RateLimit-Policy`
    /// omits the policy, because draft-11 allows only registered units. Dialects without policy names omit it entirely.
    #[must_use]
    pub const fn with_unit(mut self, unit: &str) -> Self {
        self.unit = QuotaUnit::Custom(UnitName::new(unit));
        self
    }

    /// Charges units to the store in batches of up to `units`, which are spent locally.
    ///
    /// Use this for callers that exceed the throughput of one server, or for a remote Redis. A fixed window never
    /// exceeds its quota; a token bucket can exceed its usual bound by at most instances × `units`.
    /// [Tuning](crate::docs::tuning#prefetching) describes batches, latency and failures.
    ///
    /// Requests are prefetched only if *all* policies of the request have this setting and the same key, and none is a
    /// [shadow](Self::shadow). Range: 1 to the burst capacity. Default: individual charges. `build()` rejects all
    /// policies but token buckets and fixed windows that count requests.
    #[must_use]
    pub const fn with_prefetch(mut self, units: u64) -> Self {
        self.prefetch = Some(units);
        self
    }

    /// Locks callers out for `time` after they exhaust the policy.
    ///
    /// Use this against password guessing. The lockout begins with the charge that leaves less than one unit, and
    /// rejects all requests, even at cost 0. Rejections do not extend it. A refund that restores a unit ends it, as
    /// does a [reset](crate::Caller::reset). `t` and `Retry-After` cover both the lockout and the refill.
    ///
    /// `time` has 1 to 1,000,000,000 whole seconds. Default: no lockout. `build()` rejects it for concurrency limits,
    /// [leaky-bucket queues](crate::Algorithm::LeakyBucketQueue), [shadows](Self::shadow) and
    /// [prefetched](Self::with_prefetch) policies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{
    ///     Limiter, MemoryStore, QuotaPolicy,
    ///     clock::{Clock, Timestamp},
    /// };
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .scope("login")
    ///     .policy(QuotaPolicy::per_minute("failures", 5).with_lockout(Duration::from_secs(15 * 60)))
    ///     .clock(clock.clone())
    ///     .build()?;
    ///
    /// let alice = limiter.caller("alice");
    /// assert!(alice.clone().cost(5).check().await.outcome().is_admitted());
    /// // Without the lockout, one request would pass every 12 seconds.
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(alice.check().await.retry_after(), Some(Duration::from_secs(14 * 60)));
    /// clock.advance(Duration::from_secs(14 * 60));
    /// assert!(alice.check().await.outcome().is_admitted());
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A request that another policy rejects does not begin a lockout; a late charge can. New settings do not affect a
    /// lockout in progress. An instance whose rules have no lockout does not enforce it, but preserves it for the
    /// others. Reduced [capacity](crate::Capacity) does not apply to the policy.
    ///
    /// # Security
    ///
    /// **A client that can exhaust another caller's quota can lock that caller out.** The account named in a login is
    /// only a claim, so limit by address *and* account, as in the [guide](crate::guide::login).
    #[must_use]
    pub const fn with_lockout(mut self, time: Duration) -> Self {
        self.lockout = Some(time);
        self
    }

    /// Enforces the policy without showing it to clients: it is omitted from all fields and from the list of violated
    /// policies. `Retry-After` still accounts for it, and a [decision](crate::Decision) includes it.
    #[must_use]
    pub const fn hidden(mut self) -> Self {
        self.is_hidden = true;
        self
    }

    /// Evaluates the policy without enforcing it, to find out which callers a new limit would reject.
    ///
    /// Counts are the same as if the policy were enforced: a request that it would reject is not charged to it.
    /// [`Decision::shadow_violated`](crate::Decision::shadow_violated) and sampled events report the rejections.
    /// Clients do not see the policy unless it is [visible](Self::visible). If it is enforced later, its counts
    /// continue.
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, Outcome, QuotaPolicy};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("mails")
    ///     .policy(QuotaPolicy::per_hour("now", 5))
    ///     .policy(QuotaPolicy::per_hour("planned", 1).shadow())
    ///     .build()?;
    ///
    /// let alice = limiter.caller("alice");
    /// alice.check().await;
    /// let second = alice.check().await;
    /// assert_eq!(second.outcome(), Outcome::Allowed);
    /// assert_eq!(second.shadow_violated().map(|planned| planned.policy().name()).next(), Some("planned"));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self.is_hidden = true;
        self
    }

    /// Shows the policy to clients. This is the default, except for [shadows](Self::shadow): use it to announce a limit
    /// before you enforce it.
    #[must_use]
    pub const fn visible(mut self) -> Self {
        self.is_hidden = false;
        self
    }

    /// Counts requests by the [named key](crate::RateLimitLayerBuilder::named_key) `key` of the layer instead of its
    /// main key, for example by address. `build()` rejects an unknown name.
    ///
    /// # Separate and shared counts
    ///
    /// A named key never shares counts with the main key or with a key of another name, even if their values are equal.
    /// Layers and limiters with the same scope and store share the counts of keys with the same name: to share the
    /// counts of addresses between two layers, make the address a named key in both. A layer that limits only by
    /// address also needs a main key, which its policies do not use.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let (store, address) = (MemoryStore::new(), Ipv4Addr::new(192, 0, 2, 1));
    /// let builder = || Limiter::builder(store.clone()).scope("api");
    /// let of_address = QuotaPolicy::per_hour("address", 100).keyed_by("address");
    /// let pages = builder().named_key("address").policy(of_address.clone()).build()?;
    /// let of_user = QuotaPolicy::per_hour("user", 10);
    /// let calls = builder().named_key("address").policy(of_user).policy(of_address).build()?;
    ///
    /// pages.keyed_by("address", &address).check().await;
    /// let decision = calls.caller("alice").keyed_by("address", &address).check().await;
    /// assert!(decision.allowances().map(|policy| policy.remaining()).eq([9, 98]));
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn keyed_by(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Shows the partition key (`pk`), the digest [`PartitionId::shown_key`](crate::PartitionId::shown_key), so that
    /// clients can determine which requests share a quota. Dialects without a partition key omit it.
    ///
    /// # Security
    ///
    /// A client that knows the scope and the format of the keys can try candidates until the digest matches: all IPv4
    /// addresses take minutes. Set a [`digest_key`](crate::LimiterBuilder::digest_key) unless keys are long and random,
    /// or not secret.
    #[must_use]
    pub const fn show_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Adds an extension parameter to this policy in the `RateLimit-Policy` field.
    ///
    /// Clients ignore parameters that they do not know. The name needs a vendor prefix, such as `acme-burst`; `build()`
    /// rejects other names.
    #[must_use]
    pub fn with_extension(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<ExtensionValue>) -> Self {
        self.extensions.push((name.into(), value.into()));
        self
    }

    /// Sets the name.
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

    /// Returns the maximum number of units that can be used at once: 1 for a leaky bucket as a meter, one more than
    /// `max_waiting` as a queue, and 0 for a closed policy. See [`with_burst_capacity`](Self::with_burst_capacity) for
    /// the default.
    pub const fn burst_capacity(&self) -> u64 {
        match (self.burst_capacity, self.algorithm) {
            _ if self.is_closed() => 0,
            (Some(capacity), _) => capacity,
            (None, algorithm) => algorithm.default_capacity(self.quota),
        }
    }

    /// Returns the range of [individual quotas](Self::with_caller_quotas), or `None` if they are not allowed.
    pub fn caller_quotas(&self) -> Option<RangeInclusive<u64>> {
        self.caller_quotas.map(|bounds| bounds.least..=bounds.most)
    }

    /// Returns the units in the bucket of a new caller, if [`with_initial_units`](Self::with_initial_units) is set.
    pub const fn initial_units(&self) -> Option<u64> {
        self.initial_units
    }

    /// Returns the maximum size of a batch, if [`with_prefetch`](Self::with_prefetch) is set.
    pub const fn prefetch(&self) -> Option<u64> {
        self.prefetch
    }

    /// Returns the duration of the [lockout](Self::with_lockout), if there is one.
    pub const fn lockout(&self) -> Option<Duration> {
        self.lockout
    }

    /// Returns whether responses do not show the policy.
    pub const fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Returns the name of the key that the policy [counts by](Self::keyed_by), or `None` for the main key.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns whether the policy is a [shadow](Self::shadow).
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.quota == 0
    }

    /// A policy with a lockout would lock out innocent callers.
    pub(crate) const fn is_reducible(&self) -> bool {
        !self.is_closed() && self.lockout.is_none()
    }

    /// At least to 1, unless the policy is not [reducible](Self::is_reducible).
    pub(crate) fn reduced_to(mut self, percent: u8) -> Self {
        if !self.is_reducible() {
            return self;
        }
        let reduced = |number: u64| (u128::from(number) * u128::from(percent) / 100).max(1) as u64;
        self.quota = reduced(self.quota);
        self.burst_capacity = self.burst_capacity.map(reduced);
        self.prefetch = self.prefetch.map(reduced);
        self.initial_units = self.initial_units.map(|units| reduced(units).min(units));
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

    /// A refund after this time has no effect, because the window has certainly ended.
    pub(crate) fn refundable_micros(&self) -> u64 {
        match &self.calendar {
            Some(window) => 2 * window.period().usual_length().as_micros() as u64,
            None => self.window_micros(),
        }
    }
}

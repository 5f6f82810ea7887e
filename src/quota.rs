//! Quota policies: what a user writes, and what `build()` makes of it.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use crate::{
    algorithm::{Concurrency, Counter, FixedWindow, Form, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket},
    error::{ConfigError, ConfigErrorKind},
    fields::ExtensionValue,
};

/// The largest quota and burst capacity: fifteen digits, the most that a structured field can carry.
pub(crate) const MAX_QUOTA: u64 = 999_999_999_999_999;

/// The longest window, in seconds: a bit over 31 years.
pub(crate) const MAX_WINDOW: u64 = 1_000_000_000;

/// How time is counted: what a policy lets pass when, and what it has to remember for that.
///
/// *q* is the quota and *w* the window. "Most" is the most units that pass in any stretch of time as long as the window,
/// from its first microsecond up to the one before that at which the next stretch begins; costs that become known late,
/// and what is given back, come on top. Bytes are those of Redis for one caller with one such policy, its key included.
///
/// | algorithm | most in a window | bytes | take it when |
/// |---|---|---|---|
/// | [`TokenBucket`](Self::TokenBucket) | burst capacity + *q* − 1 | 104 to 120 | in doubt: bursts pass, and the rate holds over time |
/// | [`StrictTokenBucket`](Self::StrictTokenBucket) | *q* | 104 to 120 | *q* per window is a promise, and memory matters |
/// | [`FixedWindow`](Self::FixedWindow) | 2 *q* around a border | 104 | quotas begin anew at the full minute or at midnight (UTC) |
/// | [`SlidingWindowCounter`](Self::SlidingWindowCounter) | 2 *q* − 1, *q* for an even load | 104 | windows without the jump at the border |
/// | [`SlidingWindowLog`](Self::SlidingWindowLog) | *q* | 136, and 32 to 120 a request | *q* is small and has to be exact |
/// | [`LeakyBucketMeter`](Self::LeakyBucketMeter) | *q* | 104 to 120 | requests must come evenly, and clients can pace themselves |
/// | [`LeakyBucketQueue`](Self::LeakyBucketQueue) | *q* leave; where requests cost more than 1, one less than the dearest more | 104 to 120 | requests must leave evenly, and may wait |
///
/// A policy keeps its used units when its quota, burst capacity or queue is changed, and a token or leaky bucket also when
/// its window is. It starts with a full quota when its name, its unit or its algorithm is changed, or the length of a
/// fixed or sliding window; the two token buckets count as one algorithm, and so do the two leaky buckets.
///
/// ```
/// use tower_quota::Algorithm;
/// # use std::{error::Error, time::Duration};
/// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
/// # use tower_quota::clock::{Clock, Timestamp};
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// # tokio_test::block_on(async {
/// // 20 requests come a second before a fixed window ends, and 20 more two seconds later. How many pass?
/// let passed = async |algorithm| {
///     let clock = Clock::manual(Timestamp::from_micros(9_000_000));
///     let store = MemoryStore::builder().clock(clock.clone()).build()?;
///     let policy = QuotaPolicy::new("ten", 10, Duration::from_secs(10)).with_algorithm(algorithm);
///     let plan = Plan::new(PolicySet::new([policy])?, alice, 1);
///     let mut passed = [0, 0];
///     for count in &mut passed {
///         for _ in 0..20 {
///             *count += u32::from(store.decide(plan.clone()).await?.outcome() == Outcome::Allowed);
///         }
///         clock.advance(Duration::from_secs(2));
///     }
///     Ok::<_, Box<dyn Error>>(passed)
/// };
///
/// assert_eq!(passed(Algorithm::TokenBucket).await?, [10, 2]);
/// assert_eq!(passed(Algorithm::StrictTokenBucket).await?, [5, 1]);
/// assert_eq!(passed(Algorithm::FixedWindow).await?, [10, 10]);
/// assert_eq!(passed(Algorithm::SlidingWindowCounter).await?, [10, 1]);
/// assert_eq!(passed(Algorithm::SlidingWindowLog).await?, [10, 0]);
/// assert_eq!(passed(Algorithm::LeakyBucketMeter).await?, [1, 1]);
/// // These leave one second after the other.
/// assert_eq!(passed(Algorithm::LeakyBucketQueue { max_waiting: 3 }).await?, [4, 2]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// The same requests with a quota of 10 per 10 s, as `cargo run --example algorithms` draws them:
///
#[doc = include_str!("../docs/algorithms.svg")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts in windows that begin at whole multiples of their length since 1970: minutes at the full minute, days at
    /// midnight UTC.
    ///
    /// Twice the quota can pass around a border: a full quota at the end of one window, another at the beginning of the
    /// next.
    FixedWindow,
    /// Requests pass one at a time, *w* ÷ *q* apart; one that comes too early is rejected.
    ///
    /// There are no bursts, and a cost above 1 never passes.
    LeakyBucketMeter,
    /// Requests leave one at a time, *w* ÷ *q* apart, and wait for their turn.
    ///
    /// When a request leaves is decided in the store, so the order holds across instances. A request that finds
    /// `max_waiting` units waiting is rejected; the longest wait is `max_waiting` × *w* ÷ *q*. The place of a request that is
    /// [cancelled](crate::ResponseFuture) while it waits stays taken. If the inner service fails meanwhile, the place is
    /// given back if it was the last one.
    LeakyBucketQueue {
        /// How many units may wait, from 1 to 999 999 999 999 999.
        max_waiting: u64,
    },
    /// The count of this window and that of the last one, weighed by how much of it a sliding window still covers.
    ///
    /// An estimate: it takes the last window's requests to have come evenly. Windows begin as those of
    /// [`FixedWindow`](Self::FixedWindow).
    SlidingWindowCounter,
    /// The moment of each request. Exact, and the dearest: for quotas up to 10 000.
    ///
    /// What a request has not used comes back unless 1 000 or more have come after it.
    SlidingWindowLog,
    /// A token bucket of which no stretch of time as long as the window sees more than the quota.
    ///
    /// What the bucket holds is a part of the quota, so that it fills more slowly: with a burst capacity of *c*, by
    /// *q* − *c* + 1 units per window. The burst capacity is half the quota, rounded up, unless it is set, and at most
    /// the quota.
    StrictTokenBucket,
    /// A bucket of [`burst_capacity`](QuotaPolicy::burst_capacity) units that fills evenly, at *q* units per window.
    #[default]
    TokenBucket,
}

/// What is counted.
///
/// | unit | a request uses | take it when |
/// |---|---|---|
/// | [`Requests`](Self::Requests) | its cost, by default 1 | requests cost about the same, or you know what they cost |
/// | [`ContentBytes`](Self::ContentBytes) | the bytes of its content | bandwidth or storage is what runs out |
/// | [`ConcurrentRequests`](Self::ConcurrentRequests) | a slot, until its response has ended | requests are slow, and few at a time can be served |
///
/// ```
/// use tower_quota::{Direction, QuotaUnit};
/// # use std::{error::Error, time::Duration};
/// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
/// # use tower_quota::clock::{Clock, Timestamp};
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// let policies = PolicySet::new([
///     QuotaPolicy::per_minute("requests", 60),
///     QuotaPolicy::per_minute("bandwidth", 1_000_000).with_content_bytes(Direction::Both),
///     QuotaPolicy::concurrent("slots", 8),
/// ])?;
/// // A request that costs 5, has 200 bytes of content, and 300 in its response:
/// let plan = Plan::new(policies, alice, 5).with_content_bytes(200, 300);
///
/// let costs: Vec<_> = plan.charges().map(|charge| (charge.policy().policy().unit(), charge.cost())).collect();
/// assert_eq!(costs[0], (QuotaUnit::Requests, 5));
/// assert_eq!(costs[1], (QuotaUnit::ContentBytes(Direction::Both), 500));
/// assert_eq!(costs[2], (QuotaUnit::ConcurrentRequests, 1));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests in progress.
    ConcurrentRequests,
    /// Bytes of content, without fields.
    ContentBytes(Direction),
    /// Requests, each with its cost.
    #[default]
    Requests,
}

/// The content whose bytes are counted.
///
/// ```
/// use tower_quota::Direction;
/// # use std::{error::Error, time::Duration};
/// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
/// # use tower_quota::clock::{Clock, Timestamp};
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// let of = |name, content| QuotaPolicy::per_day(name, 1_000_000).with_content_bytes(content);
/// let policies = PolicySet::new([
///     of("up", Direction::Request),
///     of("down", Direction::Response),
///     of("all", Direction::Both),
/// ])?;
/// let plan = Plan::new(policies, alice, 1).with_content_bytes(200, 300);
/// let bytes: Vec<u64> = plan.charges().map(|charge| charge.cost()).collect();
/// assert_eq!(bytes, [200, 300, 500]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Direction {
    /// That of requests and that of responses, together.
    Both,
    /// That of requests.
    Request,
    /// That of responses.
    Response,
}

/// A named limit: so many units per time window, or so many at a time, for each partition.
///
/// By default it counts requests with a *token bucket*: a bucket of [`burst_capacity`](Self::burst_capacity) units (by
/// default the quota) that fills evenly, at `quota` units per `window`. So `per_minute("minute", 60)` lets 60 requests
/// pass at one moment and then one each second; no more than the capacity and what the rate has added since pass in any
/// time. [`Algorithm`] and [`QuotaUnit`] say what else there is.
///
/// Counting is exact to the unit and the microsecond. Only where a full bucket times the window has more digits than
/// a double holds (5 003 in 31 days is such a quota, 5 000 is not) is the rate rounded down, by less than a millionth.
/// Numbers with which more would be lost are rejected when the layer is built.
///
/// Nothing is checked here: [`build`](crate::RateLimitLayerBuilder::build) does that, and its error names the policy. A
/// policy has
/// - a **name** of printable ASCII, shown to clients in the `RateLimit` field;
/// - a **quota** from 1 to 999 999 999 999 999;
/// - a **window** of whole seconds, from 1 second to 1 000 000 000 seconds, unless it limits concurrent requests;
/// - a **burst capacity** in the same range as the quota, for token buckets.
///
/// Constructors are named after the window, and the number is how many units it has:
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Algorithm, PolicySet, Direction, QuotaPolicy, QuotaUnit};
///
/// const DAILY: QuotaPolicy = QuotaPolicy::per_day("daily", 5_000);
/// assert_eq!(DAILY.window(), Some(Duration::from_secs(86_400)));
/// let weekly = QuotaPolicy::new("weekly", 20_000, Duration::from_secs(7 * 86_400));
/// assert_eq!((weekly.name(), weekly.quota()), ("weekly", 20_000));
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
/// // Counted by address, shown to nobody, and rejecting nothing yet:
/// let trial = QuotaPolicy::per_hour("trial", 10).counted_by("address").shadow();
/// assert_eq!(trial.key(), Some("address"));
/// assert!(trial.is_shadow() && trial.is_hidden() && trial.prefetch().is_none());
///
/// // All of them for one request are sound, and nobody may have a window of nothing.
/// let error = PolicySet::new([QuotaPolicy::new("now", 1, Duration::ZERO)]).unwrap_err();
/// assert_eq!(error.to_string(), r#"policy "now": window 0ns is not a whole number of seconds in 1..=1000000000"#);
/// assert!(PolicySet::new([DAILY, weekly, bursty, bandwidth, slots, hourly]).is_ok());
/// ```
///
/// With the feature `serde` a policy can be read from any format. It has a `name` and a `quota`, and what else it needs
/// of `window_seconds`, `burst_capacity`, `algorithm` (such as `"fixed_window"`), `unit` (`"requests"`,
/// `"concurrent_requests"`, `"content_bytes"`, `"request_content_bytes"`, `"response_content_bytes"`), `key`,
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
    name: Cow<'static, str>,
    quota: u64,
    window: Option<Duration>,
    burst_capacity: Option<u64>,
    algorithm: Algorithm,
    unit: QuotaUnit,
    /// How many units an instance may take at once.
    prefetch: Option<u64>,
    is_hidden: bool,
    is_shadow: bool,
    shows_partition_key: bool,
    /// The name of the layer's key by which it counts, if that is not the main one.
    key: Option<Cow<'static, str>>,
    extensions: Vec<Extension>,
}

/// An extension parameter of a policy in the `RateLimit-Policy` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    pub(crate) name: Cow<'static, str>,
    pub(crate) value: ExtensionValue,
}

impl QuotaPolicy {
    /// `quota` units in each `window`, which is of whole seconds.
    pub fn new(name: impl Into<Cow<'static, str>>, quota: u64, window: Duration) -> Self {
        Self {
            name: name.into(),
            ..Self::windowed("", quota, window)
        }
    }

    /// `quota` units per second.
    pub const fn per_second(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(1))
    }

    /// `quota` units per minute.
    pub const fn per_minute(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(60))
    }

    /// `quota` units per hour.
    pub const fn per_hour(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(3_600))
    }

    /// `quota` units per day of 24 hours. A token bucket's window slides with each caller; that of a
    /// [fixed window](Algorithm::FixedWindow) ends at midnight UTC.
    pub const fn per_day(name: &'static str, quota: u64) -> Self {
        Self::windowed(name, quota, Duration::from_secs(86_400))
    }

    /// At most `quota` requests at a time.
    ///
    /// A request holds its slot from admission (waiting in a queue included) until its response body has ended or was
    /// dropped, it was cancelled, or the inner service failed. See [`SlotHandle`](crate::SlotHandle) for upgraded
    /// connections.
    ///
    /// ```
    /// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey};
    /// # use tower_quota::{Plan, QuotaPolicy, Scope, Settlement, Store};
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub const fn concurrent(name: &'static str, quota: u64) -> Self {
        let mut policy = Self::windowed(name, quota, Duration::ZERO);
        policy.window = None;
        policy.unit = QuotaUnit::ConcurrentRequests;
        policy
    }

    const fn windowed(name: &'static str, quota: u64, window: Duration) -> Self {
        Self {
            name: Cow::Borrowed(name),
            quota,
            window: Some(window),
            burst_capacity: None,
            algorithm: Algorithm::TokenBucket,
            unit: QuotaUnit::Requests,
            prefetch: None,
            is_hidden: false,
            is_shadow: false,
            shows_partition_key: false,
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
    /// use tower_quota::Algorithm;
    /// # use std::{error::Error, time::Duration};
    /// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    /// # use tower_quota::clock::{Clock, Timestamp};
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

    /// Counts time in another way than a token bucket: [`Algorithm`] shows each. Not for limits of concurrent requests.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Counts bytes of content instead of requests; a request counts for at least one.
    ///
    /// What is known before the request is passed on is charged then, and what is known later is charged later: the
    /// policy is then overdrawn, by up to as much again as it may hold, and later requests wait until that is paid off.
    /// A request whose size nobody knows in advance is passed on if one byte is left.
    ///
    /// A response that says how long it is is charged before it is sent, but never more than 1 MiB ahead; of any other,
    /// up to 1 MiB is charged after it was sent. Nothing is delayed for that. What is charged ahead stays charged if the
    /// client goes away before the end; a `HEAD` request counts for a byte, whatever length it is told.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{Direction, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn with_content_bytes(mut self, content: Direction) -> Self {
        self.unit = QuotaUnit::ContentBytes(content);
        self
    }

    /// Lets an instance take up to `units` units at once, spend them without asking the store, and give back what it does
    /// not use: for callers that are hotter than what one Redis can decide.
    ///
    /// An instance begins with single charges. While a caller keeps asking, its blocks double, up to `units`, but never to
    /// more than a quarter of what the store has left, so that the last units are charged one by one again. A request
    /// that finds no units waits for the one call that fetches them, together with the others. Units that are not spent
    /// within a tenth of the window, at most 1 s, are given back.
    ///
    /// - **Never more than the quota.** A unit is charged before it is spent. A fixed window never sees more than its quota.
    ///   A token bucket lets no more pass in any time *t* than its burst capacity and what its rate gives in *t* and in
    ///   a tenth of the window (at most 1 s) before.
    /// - **At times less.** What one instance holds, the others cannot spend meanwhile: at most instances × `units` for
    ///   each caller. Keep that far below the quota; a tenth is a good choice. What an instance holds when it is killed is
    ///   used up, as is a block whose fetching was not answered in time.
    /// - **What is shown** is what the store had left when the block was taken, less what this instance has charged since.
    /// - **While a quota is used up**, each request is charged or rejected for itself again, as without the setting.
    /// - **While the store is away**, what is held is still spent; then it is up to the
    ///   [`FailureMode`](crate::FailureMode).
    /// - **A [reset](crate::AdminHandle::reset)** forgets what this instance holds. What others hold is spent or given back
    ///   as above.
    ///
    /// For token buckets and fixed windows that count requests, of 1 to as many units as may be used at one moment. Units
    /// are taken in advance only where *all* policies of a request have this setting, count by one key, and none is a
    /// [shadow](Self::shadow); otherwise each request is charged by itself, as without the setting. A layer that has a hot
    /// limit for everybody beside limits per user is better split into two. Changes of a charge, such as
    /// [`ActualCost`](crate::ActualCost), still cost a call each. It needs a Tokio runtime, with timers, in which units are
    /// given back; without one each request is charged by itself.
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

    /// Enforces the policy without showing it: it is in no field and in no list of violated policies, so that clients
    /// learn nothing about what it protects. `Retry-After` is true all the same.
    ///
    /// A [decision](crate::Decision) names it: that is for you.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
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
    /// event. It is [hidden](Self::hidden) from clients unless you [show](Self::shown) it. When it is enforced later, it
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
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("now", 100))
    ///     .policy(QuotaPolicy::per_hour("soon", 50).shadow().shown())
    ///     .policy(QuotaPolicy::per_hour("perhaps", 20).shadow())
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""now";r=99;t=3564, "soon";r=49;t=3528"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn shown(mut self) -> Self {
        self.is_hidden = false;
        self
    }

    /// Counts by another key of the layer than the main one, which has
    /// [this name](crate::RateLimitLayerBuilder::named_key): per address beside per user, say, or for everybody together.
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
    /// assert!(build(policy.clone().counted_by("address")).is_ok());
    /// let error = build(policy.counted_by("adress")).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "minute": the layer has no key named "adress""#);
    /// ```
    #[must_use]
    pub fn counted_by(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Shows the partition key (`pk`), so that clients can tell whose quota the numbers are about.
    ///
    /// What is shown is [`PartitionId::shown_key`](crate::PartitionId::shown_key), a digest. Dialects that have no place for
    /// it leave it out.
    ///
    /// **A digest hides only what cannot be guessed.** Whoever sees it, and knows the scope and how keys are made, can try
    /// names until one gives the same digest: a million numbers of users take seconds, all IPv4 addresses minutes. With a
    /// [`digest_key`](crate::RateLimitLayerBuilder::digest_key), a secret of the servers, nobody else can try anything; but
    /// then a client can no longer compute its key in advance. Set one, unless keys are long and random, or what they are
    /// made from is no secret among those who see responses. For keys that are [made from
    /// addresses](crate::key::KeyExtractor::may_be_address), `build()` warns by an event if there is none.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100).show_partition_key())
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""hour";r=99;t=3564;pk=:0ij1xcNBZmisa+8X:"#);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""hour";q=100;w=3600;pk=:0ij1xcNBZmisa+8X:"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn show_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Adds an extension parameter to this policy in the `RateLimit-Policy` field: a comment, to most readers.
    ///
    /// The name begins with that of its vendor, as `acme-burst` does; `build()` rejects others.
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
        self.extensions.push(Extension {
            name: name.into(),
            value: value.into(),
        });
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

    /// Units per window, or at a time.
    pub const fn quota(&self) -> u64 {
        self.quota
    }

    /// The window; concurrent requests have none.
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// What is counted.
    pub const fn unit(&self) -> QuotaUnit {
        self.unit
    }

    /// How time is counted.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most units that can be used at one moment: the quota unless it was set, half of it, rounded up, for a strict
    /// token bucket, 1 for a leaky bucket as a meter, and one more than may wait for one with a queue.
    pub const fn burst_capacity(&self) -> u64 {
        match (self.burst_capacity, self.algorithm) {
            (Some(capacity), _) => capacity,
            (None, Algorithm::StrictTokenBucket) => self.quota.div_ceil(2),
            (None, Algorithm::LeakyBucketMeter) => 1,
            (None, Algorithm::LeakyBucketQueue { max_waiting }) => max_waiting.saturating_add(1),
            (None, _) => self.quota,
        }
    }

    /// How many units an instance may take at once, where [`with_prefetch`](Self::with_prefetch) has said so.
    pub const fn prefetch(&self) -> Option<u64> {
        self.prefetch
    }

    /// Whether clients are not told about the policy.
    pub const fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// The name of the key by which it [counts](Self::counted_by); `None` for the main one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Whether the policy rejects nothing, because it is a [shadow](Self::shadow).
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(crate) fn shows_partition_key(&self) -> bool {
        self.shows_partition_key
    }

    pub(crate) fn extensions(&self) -> &[Extension] {
        &self.extensions
    }

    /// The same policy with this part of its numbers, but at least one unit.
    pub(crate) fn reduced_to(mut self, percent: u8) -> Self {
        let reduced = |number: u64| (u128::from(number) * u128::from(percent) / 100).max(1) as u64;
        self.quota = reduced(self.quota);
        self.burst_capacity = self.burst_capacity.map(reduced);
        self.prefetch = self.prefetch.map(reduced);
        if let Algorithm::LeakyBucketQueue { max_waiting } = &mut self.algorithm {
            *max_waiting = reduced(*max_waiting);
        }
        self
    }

    /// The same policy with so many units more.
    pub(crate) fn raised_by(mut self, units: u64) -> Self {
        let raised = |number: u64| number.saturating_add(units).min(MAX_QUOTA);
        self.quota = raised(self.quota);
        self.burst_capacity = self.burst_capacity.map(raised);
        if let Algorithm::LeakyBucketQueue { max_waiting } = &mut self.algorithm {
            *max_waiting = raised(*max_waiting);
        }
        self
    }

    pub(crate) fn window_micros(&self) -> u64 {
        self.window.map_or(0, |window| window.as_secs() * 1_000_000)
    }
}

/// A policy that `build()` has found sound, with the numbers that stores compute with.
///
/// ```
/// use tower_quota::{PolicySet, QuotaPolicy};
///
/// let checked = PolicySet::new([QuotaPolicy::per_hour("hour", 100), QuotaPolicy::per_day("day", 500)])?;
/// let names: Vec<_> = checked.iter().map(|policy| policy.policy().name()).collect();
/// assert_eq!(names, ["hour", "day"]);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    policy: QuotaPolicy,
    id: u32,
    counter: Counter,
}

impl Policy {
    pub(crate) fn new(policy: QuotaPolicy) -> Result<Self, ConfigError> {
        check_name(&policy)?;
        check_amount(&policy, "quota", policy.quota, ConfigErrorKind::Quota)?;
        let counter = counter(&policy)?;
        check_prefetch(&policy)?;
        Ok(Self {
            counter,
            id: policy_id(&policy),
            policy,
        })
    }

    /// The policy as it was written.
    pub fn policy(&self) -> &QuotaPolicy {
        &self.policy
    }

    /// What tells this policy's state from that of others under one partition: made from the name, the unit and the
    /// algorithm, so that a policy whose numbers change keeps the units that were used.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    #[inline]
    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }
}

/// The policy in the numbers of its algorithm, if they are sound.
fn counter(policy: &QuotaPolicy) -> Result<Counter, ConfigError> {
    let quota = policy.quota;
    let Some(window) = policy.window else {
        if policy.algorithm != Algorithm::default() || policy.burst_capacity.is_some() {
            let message = "concurrent requests are not counted over time: neither algorithm nor burst capacity applies";
            return Err(policy_error(policy, ConfigErrorKind::Algorithm, message));
        }
        return Ok(Counter::Concurrency(Concurrency { limit: quota }));
    };
    check_window(policy, window)?;
    let (window, capacity) = (window.as_secs(), policy.burst_capacity());
    let with_kind = |kind| move |message: String| policy_error(policy, kind, &message);
    match policy.algorithm {
        Algorithm::TokenBucket | Algorithm::StrictTokenBucket => {
            check_amount(policy, "burst capacity", capacity, ConfigErrorKind::BurstCapacity)?;
        }
        algorithm if policy.burst_capacity.is_some() => {
            let message = format!("burst capacity {capacity} does not apply to {algorithm:?}, only to token buckets");
            return Err(policy_error(policy, ConfigErrorKind::BurstCapacity, &message));
        }
        Algorithm::LeakyBucketQueue { max_waiting } => {
            check_amount(policy, "max_waiting", max_waiting, ConfigErrorKind::Algorithm)?;
        }
        _ => {}
    }
    match policy.algorithm {
        Algorithm::TokenBucket => TokenBucket::new(quota, window, capacity)
            .map(Counter::TokenBucket)
            .map_err(with_kind(ConfigErrorKind::BurstCapacity)),
        Algorithm::StrictTokenBucket => TokenBucket::strict(quota, window, capacity)
            .map(Counter::TokenBucket)
            .map_err(with_kind(ConfigErrorKind::BurstCapacity)),
        Algorithm::LeakyBucketMeter => LeakyBucket::new(quota, window, 0)
            .map(Counter::LeakyBucket)
            .map_err(with_kind(ConfigErrorKind::Algorithm)),
        Algorithm::LeakyBucketQueue { max_waiting } => LeakyBucket::new(quota, window, max_waiting)
            .map(Counter::LeakyBucket)
            .map_err(with_kind(ConfigErrorKind::Algorithm)),
        Algorithm::FixedWindow => Ok(Counter::FixedWindow(FixedWindow::new(quota, window))),
        Algorithm::SlidingWindowCounter => Ok(Counter::SlidingCounter(SlidingCounter::new(quota, window))),
        Algorithm::SlidingWindowLog => SlidingLog::new(quota, window)
            .map(Counter::SlidingLog)
            .map_err(with_kind(ConfigErrorKind::Quota)),
    }
}

/// The policies that one decision holds together, checked as a whole.
///
/// [`RateLimitLayerBuilder::build`](crate::RateLimitLayerBuilder::build) makes them for you; you want them yourself
/// to limit something that is not an HTTP request, with a store alone. Clones share the policies.
///
/// ```
/// use tower_quota::{PolicySet, MemoryStore, Outcome, Scope, PartitionKey, Plan, QuotaPolicy, Store};
///
/// # tokio_test::block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 2)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
///
/// assert_eq!(store.decide(Plan::new(policies.clone(), alice, 2)).await?.outcome(), Outcome::Allowed);
/// assert_eq!(store.decide(Plan::new(policies.clone(), alice, 1)).await?.outcome(), Outcome::Rejected);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PolicySet {
    policies: Arc<[Policy]>,
    /// Whether any of them limits concurrent requests.
    has_slots: bool,
    /// Whether any of them keeps a log.
    has_logs: bool,
    /// Whether units of all of them may be taken in advance.
    has_prefetch: bool,
}

/// On which terms an instance may take units in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockTerms {
    /// The most units that are held at a time.
    pub(crate) units: u64,
    /// How long they may be spent.
    pub(crate) lifetime: Duration,
}

impl BlockTerms {
    const LONGEST: Duration = Duration::from_secs(1);

    /// Those of one policy. A shadow is charged or not by what each request costs, so that with one of those nothing is
    /// known about many units.
    fn of(policy: &QuotaPolicy) -> Option<Self> {
        Some(Self {
            units: policy.prefetch.filter(|_| !policy.is_shadow)?,
            lifetime: (policy.window? / 10).min(Self::LONGEST),
        })
    }

    /// Those that suit two policies.
    fn and(self, other: Self) -> Self {
        Self {
            units: self.units.min(other.units),
            lifetime: self.lifetime.min(other.lifetime),
        }
    }
}

impl PolicySet {
    /// Checks the policies one by one and together.
    ///
    /// ```
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let (hour, day) = (QuotaPolicy::per_hour("mails", 2), QuotaPolicy::per_day("mails", 9));
    /// let error = PolicySet::new([hour, day]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "mails": the name is used twice; names must be unique"#);
    /// let error = PolicySet::new([]).unwrap_err();
    /// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
    /// ```
    ///
    /// # Errors
    ///
    /// If there are none or more than 16, if two have the same name (or, once in four thousand million pairs, names
    /// that stores cannot tell apart), or if one of them is out of its range.
    pub fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Result<Self, ConfigError> {
        let mut checked: Vec<Policy> = Vec::new();
        for policy in policies {
            let policy = Policy::new(policy)?;
            if let Some(other) = checked.iter().find(|other| other.id == policy.id) {
                return Err(indistinguishable(policy.policy.name(), other.policy.name()));
            }
            checked.push(policy);
        }
        match checked.len() {
            1..=MAX_POLICIES => Ok(Self::of(checked)),
            count => Err(ConfigError::new(
                ConfigErrorKind::Policies,
                format!("policies: their number {count} is outside 1..={MAX_POLICIES}"),
            )),
        }
    }

    fn of(checked: Vec<Policy>) -> Self {
        let is_slots = |policy: &Policy| policy.policy.unit == QuotaUnit::ConcurrentRequests;
        Self {
            has_slots: checked.iter().any(is_slots),
            has_logs: checked.iter().any(|policy| policy.counter.form() == Form::Log),
            has_prefetch: checked.iter().all(|policy| BlockTerms::of(&policy.policy).is_some()),
            policies: checked.into(),
        }
    }

    /// Those that are not among the policies with these ids, if there are any.
    pub(crate) fn without(self, ids: &[u32]) -> Option<Self> {
        let is_other = |policy: &&Policy| !ids.contains(&policy.id);
        if self.iter().all(|policy| is_other(&policy)) {
            return Some(self);
        }
        let others: Vec<Policy> = self.iter().filter(is_other).cloned().collect();
        (!others.is_empty()).then(|| Self::of(others))
    }

    /// Whether these are clones of each other.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policies, &other.policies)
    }

    /// The policies alone, for what is kept many times.
    #[inline]
    pub(crate) fn list(&self) -> &Arc<[Policy]> {
        &self.policies
    }

    /// The policies, in the order in which they were given.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Policy> {
        self.policies.iter()
    }

    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.has_slots
    }

    #[inline]
    pub(crate) fn has_logs(&self) -> bool {
        self.has_logs
    }

    /// On which terms units of all of them may be taken in advance.
    #[inline]
    pub(crate) fn block_terms(&self) -> Option<BlockTerms> {
        if !self.has_prefetch {
            return None;
        }
        let terms = self.iter().filter_map(|policy| BlockTerms::of(&policy.policy));
        terms.reduce(BlockTerms::and)
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for &'a PolicySet {
    type Item = &'a Policy;
    type IntoIter = std::slice::Iter<'a, Policy>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn indistinguishable(name: &str, other: &str) -> ConfigError {
    let message = if name == other {
        format!("policy {name:?}: the name is used twice; names must be unique")
    } else {
        format!("policy {name:?}: stores cannot tell it from policy {other:?}; rename one of them")
    };
    ConfigError::new(ConfigErrorKind::DuplicatePolicy, message)
}

/// How many policies one decision can hold: enough for any sensible set, and a bound on the size of a value in Redis.
pub(crate) const MAX_POLICIES: usize = 16;

/// Policies share used units if all of this is equal. The window is a part where the state is counted in windows.
fn policy_id(policy: &QuotaPolicy) -> u32 {
    let window = policy.window_micros();
    let algorithm = match (policy.window, policy.algorithm) {
        (None, _) => "concurrency".to_owned(),
        (_, Algorithm::TokenBucket | Algorithm::StrictTokenBucket) => "token bucket".to_owned(),
        (_, Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }) => "leaky bucket".to_owned(),
        (_, Algorithm::FixedWindow) => format!("fixed window {window}"),
        (_, Algorithm::SlidingWindowCounter) => format!("sliding window counter {window}"),
        (_, Algorithm::SlidingWindowLog) => format!("sliding window log {window}"),
    };
    let unit = match policy.unit {
        QuotaUnit::ConcurrentRequests => "concurrent requests",
        QuotaUnit::ContentBytes(Direction::Both) => "bytes",
        QuotaUnit::ContentBytes(Direction::Request) => "request bytes",
        QuotaUnit::ContentBytes(Direction::Response) => "response bytes",
        QuotaUnit::Requests => "requests",
    };
    // The name comes last: no other part can hold the separator.
    let material = format!("{algorithm}/{unit}/{}", policy.name);
    let hash = blake3::derive_key("tower-quota 2026-11-21 policy id", material.as_bytes());
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

fn policy_error(policy: &QuotaPolicy, kind: ConfigErrorKind, message: &str) -> ConfigError {
    ConfigError::new(kind, format!("policy {:?}: {message}", policy.name()))
}

fn check_name(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let error = |message: &str| Err(policy_error(policy, ConfigErrorKind::PolicyName, message));
    if policy.name().is_empty() {
        return error("the name is empty");
    }
    match policy.name().chars().find(|character| !(' '..='~').contains(character)) {
        Some(character) => error(&format!(
            "the name holds {character:?}; only printable ASCII can be sent"
        )),
        None => Ok(()),
    }
}

fn check_window(policy: &QuotaPolicy, window: Duration) -> Result<(), ConfigError> {
    if window.subsec_nanos() == 0 && (1..=MAX_WINDOW).contains(&window.as_secs()) {
        return Ok(());
    }
    let message = format!("window {window:?} is not a whole number of seconds in 1..={MAX_WINDOW}");
    Err(policy_error(policy, ConfigErrorKind::Window, &message))
}

fn check_prefetch(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let error = |message| Err(policy_error(policy, ConfigErrorKind::Prefetch, message));
    let (Some(units), capacity) = (policy.prefetch, policy.burst_capacity()) else {
        return Ok(());
    };
    match (policy.unit, policy.algorithm) {
        (QuotaUnit::Requests, Algorithm::TokenBucket | Algorithm::FixedWindow) if (1..=capacity).contains(&units) => {
            Ok(())
        }
        (QuotaUnit::Requests, Algorithm::TokenBucket | Algorithm::FixedWindow) => {
            error(&format!("prefetch {units} is outside 1..={capacity}"))
        }
        (QuotaUnit::Requests, algorithm) => error(&format!(
            "prefetch {units} does not apply to {algorithm:?}, only to token buckets and fixed windows"
        )),
        (unit, _) => error(&format!(
            "prefetch {units} does not apply to {unit:?}, only to requests"
        )),
    }
}

fn check_amount(policy: &QuotaPolicy, field: &str, value: u64, kind: ConfigErrorKind) -> Result<(), ConfigError> {
    if (1..=MAX_QUOTA).contains(&value) {
        return Ok(());
    }
    Err(policy_error(
        policy,
        kind,
        &format!("{field} {value} is outside 1..={MAX_QUOTA}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_error(policy: QuotaPolicy) -> (ConfigErrorKind, String) {
        let error = PolicySet::new([policy]).unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn mistakes_in_a_policy_are_named_with_value_and_bound() {
        use ConfigErrorKind::{BurstCapacity, PolicyName, Quota, Window};

        let named = |name: &'static str| QuotaPolicy::per_second(name, 1);
        let quota = |quota| QuotaPolicy::per_second("p", quota);
        let window = |window| QuotaPolicy::new("p", 1, window);
        let seconds = Duration::from_secs;
        let only_ascii = "only printable ASCII can be sent";
        let cases = [
            (named(""), PolicyName, r#""": the name is empty"#.to_owned()),
            (
                named("käse"),
                PolicyName,
                format!(r#""käse": the name holds 'ä'; {only_ascii}"#),
            ),
            (
                named("a\r\nb"),
                PolicyName,
                format!(r#""a\r\nb": the name holds '\r'; {only_ascii}"#),
            ),
            (quota(0), Quota, format!(r#""p": quota 0 is outside 1..={MAX_QUOTA}"#)),
            (
                quota(MAX_QUOTA + 1),
                Quota,
                format!(r#""p": quota {} is outside 1..={MAX_QUOTA}"#, MAX_QUOTA + 1),
            ),
            (
                quota(1).with_burst_capacity(0),
                BurstCapacity,
                format!(r#""p": burst capacity 0 is outside 1..={MAX_QUOTA}"#),
            ),
        ];
        for (policy, kind, message) in cases {
            assert_eq!(build_error(policy), (kind, format!("policy {message}")));
        }
        for (duration, shown) in [
            (seconds(0), "0ns"),
            (Duration::from_millis(1_500), "1.5s"),
            (seconds(MAX_WINDOW + 1), "1000000001s"),
        ] {
            let message = format!(r#"policy "p": window {shown} is not a whole number of seconds in 1..={MAX_WINDOW}"#);
            assert_eq!(build_error(window(duration)), (Window, message));
        }
    }

    #[test]
    fn a_capacity_far_beyond_its_rate_is_rejected_rather_than_counted_wrongly() {
        let (kind, message) = build_error(QuotaPolicy::per_day("p", 1).with_burst_capacity(MAX_QUOTA));
        assert_eq!(kind, ConfigErrorKind::BurstCapacity);
        assert!(
            message.starts_with(r#"policy "p": burst capacity 999999999999999 with 1 per 86400 s"#),
            "{message}"
        );
    }

    #[test]
    fn names_are_used_once_and_policies_are_between_1_and_16() {
        let policy = |index: usize| QuotaPolicy::new(format!("policy {index}"), 1, Duration::from_secs(1));
        let kind = |policies: Vec<QuotaPolicy>| PolicySet::new(policies).map_err(|error| error.kind()).err();
        assert_eq!(kind(vec![policy(1), policy(1)]), Some(ConfigErrorKind::DuplicatePolicy));
        assert_eq!(kind(vec![]), Some(ConfigErrorKind::Policies));
        assert_eq!(kind((0..16).map(policy).collect()), None);
        assert_eq!(kind((0..17).map(policy).collect()), Some(ConfigErrorKind::Policies));
    }

    /// The 32 bits of an id are not enough for all names; the search for a pair is the birthday one.
    #[test]
    fn names_that_a_store_cannot_tell_apart_are_rejected() {
        let mut seen = std::collections::HashMap::new();
        let (first, second) = (0..)
            .find_map(|number: u32| {
                let name = format!("p{number}");
                seen.insert(
                    policy_id(&QuotaPolicy::new(name.clone(), 1, Duration::from_secs(1))),
                    name.clone(),
                )
                .map(|other| (other, name))
            })
            .unwrap();
        let policies = [&first, &second].map(|name| QuotaPolicy::new(name.clone(), 1, Duration::from_secs(1)));
        let error = PolicySet::new(policies).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::DuplicatePolicy);
        let expected = format!("policy {second:?}: stores cannot tell it from policy {first:?}; rename one of them");
        assert_eq!(error.to_string(), expected);
    }
}

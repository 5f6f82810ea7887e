mod prepare;
mod shown;
mod write;

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderMap;

pub(crate) use self::write::Times;
pub use crate::fields::LegacyReset;
use crate::{
    decision::{Allowance, Decision},
    error::{ConfigError, ConfigErrorKind},
    fields::Dialect,
};

/// The header fields that a layer adds to responses.
///
/// Default: [`draft11`](Self::draft11), which adds `RateLimit` and `RateLimit-Policy` to every response with a
/// decision. Both fields list all policies that are not [hidden](crate::QuotaPolicy::hidden). Every rejection also has
/// a `Retry-After`, regardless of these settings.
///
/// Settings change the fields, not the enforcement, and never overstate the quota: remaining units are only lowered,
/// and waits only lengthened. Fields of an inner service are merged as described in
/// [`merge_into`](crate::fields::merge_into).
///
/// | requirement | use |
/// |---|---|
/// | clients of the drafts up to 06 | [`draft06`](Self::draft06), or [`with_draft06_limit`](Self::with_draft06_limit) in addition to draft-11 |
/// | clients of draft-07, for example of express-rate-limit or hono-rate-limiter | [`draft07`](Self::draft07) |
/// | clients that only support `X-RateLimit-*` | [`legacy`](Self::legacy) |
/// | no fields, or custom fields | [`none`](Self::none), [`with_extra_fields`](Self::with_extra_fields) |
/// | short responses | [`tightest_only`](Self::tightest_only), [`emit_when`](Self::emit_when), [`without_policies`](Self::without_policies) |
/// | clients should not all retry at the same time | [`with_jitter`](Self::with_jitter) |
/// | slow clients down before they are rejected | [`map_remaining`](Self::map_remaining), [`with_rate_cap`](Self::with_rate_cap) |
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields, key};
///
/// # tokio_test::block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .policy(QuotaPolicy::per_day("day", 5_000))
///     .response_fields(ResponseFields::draft06())
///     .build()?;
/// let service = layer.layer(service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }));
///
/// let response = service.oneshot(Request::get("/").header("x-user-id", "alice").body(())?).await?;
/// assert_eq!(response.headers()["ratelimit-limit"], "60");
/// assert_eq!(response.headers()["ratelimit-remaining"], "59");
/// assert_eq!(response.headers()["ratelimit-reset"], "59");
/// assert_eq!(response.headers()["ratelimit-policy"], "60;w=60, 5000;w=86400");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "response fields have no effect until they are passed to a layer's builder"]
pub struct ResponseFields {
    form: Form,
    adds_draft06_limit: bool,
    shows_capacity_as_limit: bool,
    tightest_only: bool,
    emit_when: EmitWhen,
    without_limits: bool,
    without_policies: bool,
    rate_cap: RateCap,
    map_remaining: Option<Arc<Lower>>,
    jitter: Duration,
    retry_after_as_date: bool,
    usual_policies: bool,
    overwrite_upstream: bool,
    extra: Option<Arc<Extra>>,
}

type Lower = dyn Fn(&Allowance<'_>) -> u64 + Send + Sync;
type Extra = dyn Fn(&Decision, &mut HeaderMap) + Send + Sync;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Dialect(Dialect),
    Legacy(LegacyReset),
    None,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dialect(dialect) => write!(f, "{dialect:?}"),
            Self::Legacy(_) => f.write_str("the legacy fields"),
            Self::None => f.write_str("no fields"),
        }
    }
}

/// Selects the responses that have fields, among the responses with a decision. See [`ResponseFields::emit_when`].
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// // With 3 requests per minute, the fourth is rejected.
/// let are_shown = async |emit_when, request| {
///     let fields = ResponseFields::draft11().emit_when(emit_when);
///     told(fields, request).await.map(|headers| headers.contains_key("ratelimit"))
/// };
///
/// assert!(are_shown(EmitWhen::Always, 1).await?);
/// assert!(!are_shown(EmitWhen::NearExhaustion(50), 1).await?);
/// assert!(are_shown(EmitWhen::NearExhaustion(50), 2).await?);
/// assert!(!are_shown(EmitWhen::Rejected, 3).await?);
/// assert!(are_shown(EmitWhen::Rejected, 4).await?);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitWhen {
    /// All responses. The default.
    #[default]
    Always,
    /// Rejections, and responses in which at most this percentage of the quota of a visible policy remains, from 0 to
    /// 100.
    NearExhaustion(u8),
    /// Rejections only.
    Rejected,
}

/// The maximum rate suggested to clients, relative to a policy's rate: see [`ResponseFields::with_rate_cap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateCap {
    /// The rate of the policy: a client that spreads the remaining units over the effective window does not exceed this
    /// rate.
    Nominal,
    /// Twice the rate. The default.
    #[default]
    Double,
}

impl RateCap {
    const fn factor(self) -> u128 {
        match self {
            Self::Nominal => 1,
            Self::Double => 2,
        }
    }
}

impl ResponseFields {
    const MAX_JITTER: Duration = Duration::from_secs(3_600);

    const fn new(form: Form) -> Self {
        Self {
            form,
            adds_draft06_limit: false,
            shows_capacity_as_limit: false,
            tightest_only: false,
            emit_when: EmitWhen::Always,
            without_limits: false,
            without_policies: false,
            rate_cap: RateCap::Double,
            map_remaining: None,
            jitter: Duration::ZERO,
            retry_after_as_date: false,
            usual_policies: false,
            overwrite_upstream: false,
            extra: None,
        }
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-11: `RateLimit` and `RateLimit-Policy`. The default.
    ///
    /// The [`fields::draft11`](crate::fields::draft11) module describes their syntax.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::draft11(), 1).await?;
    /// assert_eq!(headers["ratelimit"], r#""minute";r=2;t=40, "hour";r=59;t=3540"#);
    /// assert_eq!(headers["ratelimit-policy"], r#""minute";q=3;w=60, "hour";q=60;w=3600"#);
    /// # Ok(()) });
    /// ```
    pub const fn draft11() -> Self {
        Self::new(Form::Dialect(Dialect::Draft11))
    }

    /// Creates fields of the dialect between draft-07 and draft-08, in which policy names are Tokens.
    ///
    /// `build()` rejects names that are not Tokens. In a response with `Retry-After`, the times of violated policies
    /// equal its value. If no visible policy is violated, the time of the tightest policy equals its value.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::in_between(), 1).await?;
    /// assert_eq!(headers["ratelimit"], "minute;r=2;t=40, hour;r=59;t=3540");
    /// assert_eq!(headers["ratelimit-policy"], "minute;q=3;w=60, hour;q=60;w=3600");
    /// # Ok(()) });
    /// ```
    pub const fn in_between() -> Self {
        Self::new(Form::Dialect(Dialect::EditorsCopy))
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-06.
    ///
    /// These are `RateLimit-Limit`, `-Remaining` and `-Reset` for the policy with the fewest remaining requests, and
    /// `RateLimit-Policy`. The dialect has no units, so only policies that count requests are included. `build()`
    /// rejects two policies with the same quota, because clients could not distinguish them.
    ///
    /// If the response has a `Retry-After`, set by this or another layer, `RateLimit-Reset` equals its value, as the
    /// draft recommends. If this time is before the actual reset, the remaining requests are reported as 0. While the
    /// [capacity](crate::Capacity) is exhausted, the limit is 0.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::draft06(), 1).await?;
    /// assert_eq!(headers["ratelimit-limit"], "3");
    /// assert_eq!(headers["ratelimit-remaining"], "2");
    /// assert_eq!(headers["ratelimit-reset"], "40");
    /// assert_eq!(headers["ratelimit-policy"], "3;w=60, 60;w=3600");
    /// # Ok(()) });
    /// ```
    pub const fn draft06() -> Self {
        Self::new(Form::Dialect(Dialect::Draft06))
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-07, such as `limit=5, remaining=4, reset=60` and
    /// `5;w=60`.
    ///
    /// `RateLimit` is a dictionary for the policy with the fewest remaining requests. As in [`draft06`](Self::draft06),
    /// only policies that count requests are included, quotas must differ, and the reset matches `Retry-After`. If an
    /// inner service has sent a dictionary, the tighter of both limits is kept. If an inner service has sent a list of
    /// another dialect, the list is kept and the limit of this layer is omitted.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::draft07(), 1).await?;
    /// assert_eq!(headers["ratelimit"], "limit=3, remaining=2, reset=40");
    /// assert_eq!(headers["ratelimit-policy"], "3;w=60, 60;w=3600");
    /// # Ok(()) });
    /// ```
    pub const fn draft07() -> Self {
        Self::new(Form::Dialect(Dialect::Draft07))
    }

    /// Creates `X-RateLimit-Limit`, `-Remaining` and `-Reset` for the policy with the fewest remaining requests.
    ///
    /// No specification defines these fields. This layer sends the quota, the remaining requests, and the time until
    /// more requests are available. Only policies that count requests are included. If an inner service has sent any of
    /// these fields, the layer changes none of them, because their meaning is unknown.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::legacy(LegacyReset::DeltaSeconds), 1).await?;
    /// assert_eq!(headers["x-ratelimit-limit"], "3");
    /// assert_eq!(headers["x-ratelimit-remaining"], "2");
    /// assert_eq!(headers["x-ratelimit-reset"], "40");
    /// # Ok(()) });
    /// ```
    pub const fn legacy(reset: LegacyReset) -> Self {
        Self::new(Form::Legacy(reset))
    }

    /// Creates settings without fields. [`Retry-After`](crate::Rejection::retry_after) is still sent.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// assert!(told(ResponseFields::none(), 1).await?.is_empty());
    /// // With 3 requests per minute, the fourth is rejected.
    /// let headers = told(ResponseFields::none(), 4).await?;
    /// assert!(!headers.contains_key("ratelimit") && headers.contains_key("retry-after"));
    /// # Ok(()) });
    /// ```
    pub const fn none() -> Self {
        Self::new(Form::None)
    }

    /// Adds `RateLimit-Limit`, `-Remaining` and `-Reset` of draft-06 to the fields of draft-11.
    ///
    /// Use this to support clients of both drafts. Both drafts define `RateLimit-Policy`; this field has the form of
    /// draft-11. `build()` rejects this setting with other dialects.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::draft11().with_draft06_limit(), 1).await?;
    /// assert_eq!(headers["ratelimit-remaining"], "2");
    /// assert_eq!(headers["ratelimit"], r#""minute";r=2;t=40, "hour";r=59;t=3540"#);
    /// assert_eq!(headers["ratelimit-policy"], r#""minute";q=3;w=60, "hour";q=60;w=3600"#);
    ///
    /// let error = told(ResponseFields::draft06().with_draft06_limit(), 1).await.unwrap_err();
    /// assert!(error.to_string().contains("only to draft-11"));
    /// # Ok(()) });
    /// ```
    pub const fn with_draft06_limit(mut self) -> Self {
        self.adds_draft06_limit = true;
        self
    }

    /// Reports the [burst capacity](crate::QuotaPolicy::with_burst_capacity) in `X-RateLimit-Limit`.
    ///
    /// The capacity is the maximum of `X-RateLimit-Remaining`; `tower_governor` also reports the capacity. Default: the
    /// quota. `build()` rejects this setting with other dialects.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_second("second", 1).with_burst_capacity(5))
    ///     .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds).with_capacity_as_limit())
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["x-ratelimit-limit"], "5");
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "4");
    /// # Ok(()) });
    /// ```
    pub const fn with_capacity_as_limit(mut self) -> Self {
        self.shows_capacity_as_limit = true;
        self
    }

    /// Reports only the policy with the fewest remaining units in `RateLimit`, for each quota unit.
    ///
    /// If two policies have equally many remaining units, the policy with the later reset is reported.
    /// `RateLimit-Policy` always lists all policies. Default: all policies.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // The first response, with 3 requests per minute and 60 per hour:
    /// let headers = told(ResponseFields::draft11().tightest_only(), 1).await?;
    /// assert_eq!(headers["ratelimit"], r#""minute";r=2;t=40"#);
    /// assert_eq!(headers["ratelimit-policy"], r#""minute";q=3;w=60, "hour";q=60;w=3600"#);
    /// # Ok(()) });
    /// ```
    pub const fn tightest_only(mut self) -> Self {
        self.tightest_only = true;
        self
    }

    /// Sets which responses have fields. Default: [`EmitWhen::Always`].
    pub const fn emit_when(mut self, emit_when: EmitWhen) -> Self {
        self.emit_when = emit_when;
        self
    }

    /// Omits `RateLimit`, or the three fields that replace it in older dialects.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let headers = told(ResponseFields::draft11().without_limits(), 1).await?;
    /// assert!(!headers.contains_key("ratelimit") && headers.contains_key("ratelimit-policy"));
    /// # Ok(()) });
    /// ```
    pub const fn without_limits(mut self) -> Self {
        self.without_limits = true;
        self
    }

    /// Omits `RateLimit-Policy`.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let headers = told(ResponseFields::draft11().without_policies(), 1).await?;
    /// assert!(headers.contains_key("ratelimit") && !headers.contains_key("ratelimit-policy"));
    /// # Ok(()) });
    /// ```
    pub const fn without_policies(mut self) -> Self {
        self.without_policies = true;
        self
    }

    /// Caps the rate of clients that spread the remaining units over the reported time, relative to the policy's rate.
    ///
    /// The cap applies to every response, including rejections. If the cap is exceeded, a policy that rejects the
    /// request reports fewer remaining units, and any other policy reports a longer time. Default: [`RateCap::Double`].
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // A window of 60 requests per minute ends in 10 seconds, and 59 remain.
    /// let told = async |fields| {
    ///     let clock = Clock::manual(Timestamp::from_micros(50_000_000));
    ///     let layer = RateLimitLayer::builder(MemoryStore::builder().clock(clock).build()?)
    ///         .scope("api")
    ///         .key(key::header("x-user-id"))
    ///         .policy(QuotaPolicy::per_minute("minute", 60).with_algorithm(Algorithm::FixedWindow))
    ///         .response_fields(fields)
    ///         .build()?;
    ///     # let inner = service_fn(async |_| Ok::<_, http::Error>(Response::new(String::new())));
    ///     let response = layer.layer(inner).oneshot(Request::new(())).await?;
    ///     Ok::<_, Box<dyn std::error::Error>>(response.headers()["ratelimit"].clone())
    /// };
    ///
    /// assert_eq!(told(ResponseFields::draft11()).await?, r#""minute";r=59;t=30"#);
    /// let capped = ResponseFields::draft11().with_rate_cap(RateCap::Nominal);
    /// assert_eq!(told(capped).await?, r#""minute";r=59;t=59"#);
    /// # Ok(()) });
    /// ```
    pub const fn with_rate_cap(mut self, cap: RateCap) -> Self {
        self.rate_cap = cap;
        self
    }

    /// Lowers the remaining units reported to clients to the value returned by `lower`. Larger values are ignored.
    ///
    /// Use this to slow clients down while the service is busy or under attack. `lower` must not block, and may be
    /// called several times per response.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    ///
    /// let is_busy = Arc::new(AtomicBool::new(true));
    /// let fields = ResponseFields::draft11().map_remaining(move |allowance| match is_busy.load(Ordering::Relaxed) {
    ///     true => allowance.remaining() / 4,
    ///     false => allowance.remaining(),
    /// });
    /// // 2 of 3 remain for the minute, and 59 of 60 for the hour.
    /// assert_eq!(told(fields, 1).await?["ratelimit"], r#""minute";r=0;t=40, "hour";r=14;t=3540"#);
    /// # Ok(()) });
    /// ```
    pub fn map_remaining<F>(mut self, lower: F) -> Self
    where
        F: Fn(&Allowance<'_>) -> u64 + Send + Sync + 'static,
    {
        self.map_remaining = Some(Arc::new(lower));
        self
    }

    /// Lengthens the times of each response by a random number of seconds from 0 to `most`.
    ///
    /// All times of a response are lengthened equally. Clients that would retry at the same time then retry at
    /// different times. `build()` rejects values above one hour and fractions of a second. Default: zero.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// use std::time::Duration;
    ///
    /// let fields = ResponseFields::legacy(LegacyReset::DeltaSeconds).with_jitter(Duration::from_secs(30));
    /// for _ in 0..50 {
    ///     let reset: u64 = told(fields.clone(), 1).await?["x-ratelimit-reset"].to_str()?.parse()?;
    ///     assert!((40..=70).contains(&reset));
    /// }
    /// let error = told(ResponseFields::draft11().with_jitter(Duration::from_secs(3_601)), 1).await.unwrap_err();
    /// assert_eq!(error.to_string(), "response fields: jitter 3601s exceeds 3600s");
    /// # Ok(()) });
    /// ```
    pub const fn with_jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Writes `Retry-After` as a date instead of seconds, by the system clock.
    ///
    /// Dates are only useful to clients whose clocks are correct.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// use tower_quota::fields::RetryAfter;
    ///
    /// // With 3 requests per minute, the fourth is rejected.
    /// let seconds = told(ResponseFields::draft11(), 4).await?;
    /// assert_eq!(RetryAfter::read(&seconds)?.and_then(RetryAfter::date), None);
    /// let date = told(ResponseFields::draft11().with_retry_after_as_date(), 4).await?;
    /// assert!(RetryAfter::read(&date)?.and_then(RetryAfter::date).is_some());
    /// # Ok(()) });
    /// ```
    pub const fn with_retry_after_as_date(mut self) -> Self {
        self.retry_after_as_date = true;
        self
    }

    /// Reports the unreduced policies in `RateLimit-Policy` while the [capacity](crate::Capacity) is reduced.
    ///
    /// Default: the reduced policies.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let half = Capacity::reduced_to(50)?;
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .capacity(move |_| half)
    ///     .response_fields(ResponseFields::draft11().with_unreduced_policies())
    ///     .build()?;
    /// # let inner = service_fn(async |_| Ok::<_, http::Error>(Response::new(String::new())));
    /// let response = layer.layer(inner).oneshot(Request::new(())).await?;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""hour";q=100;w=3600"#);
    /// assert_eq!(response.headers()["ratelimit"], r#""hour";r=49;t=3528"#);
    /// # Ok(()) });
    /// ```
    pub const fn with_unreduced_policies(mut self) -> Self {
        self.usual_policies = true;
        self
    }

    /// Removes the fields of an inner service instead of merging them.
    ///
    /// Use this only for a gateway that is part of the service, because clients no longer see the limits of the inner
    /// service. The fields are removed even if this layer adds none, because of [`emit_when`](Self::emit_when),
    /// [`none`](Self::none) or a missing decision. `Retry-After` of the inner service is kept. Default: fields are
    /// merged.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let told = async |fields| {
    ///     let layer = RateLimitLayer::builder(MemoryStore::new())
    ///         .scope("gateway")
    ///         .key(key::header("x-user-id"))
    ///         .policy(QuotaPolicy::per_hour("hour", 100))
    ///         .response_fields(fields)
    ///         .build()?;
    ///     // The service behind the gateway also has limits.
    ///     let inner = async |_| Response::builder().header("ratelimit", r#""inner";r=5;t=9"#).body(String::new());
    ///     let response = layer.layer(service_fn(inner)).oneshot(Request::new(())).await?;
    ///     let values = response.headers().get_all("ratelimit").iter().map(|value| value.to_str());
    ///     Ok::<_, Box<dyn std::error::Error>>(values.collect::<Result<Vec<_>, _>>()?.join(", "))
    /// };
    ///
    /// let joined = told(ResponseFields::draft11()).await?;
    /// assert!(joined.contains(r#""inner";r=5"#) && joined.contains(r#""hour";r=99"#));
    /// assert_eq!(told(ResponseFields::draft11().overwrite_upstream()).await?, r#""hour";r=99;t=3564"#);
    /// # Ok(()) });
    /// ```
    pub const fn overwrite_upstream(mut self) -> Self {
        self.overwrite_upstream = true;
        self
    }

    /// Adds custom fields to each response with a decision.
    ///
    /// `extra` is called even if [`emit_when`](Self::emit_when) or [`none`](Self::none) omits the fields of the layer.
    /// The closure must not block.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let fields = ResponseFields::draft06().with_extra_fields(|decision, headers| {
    ///     if let Some(hour) = decision.allowances().find(|allowance| allowance.policy().name() == "hour") {
    ///         headers.insert("acme-ratelimit-hourlimit", hour.policy().quota().into());
    ///     }
    /// });
    /// assert_eq!(told(fields, 1).await?["acme-ratelimit-hourlimit"], "60");
    /// # Ok(()) });
    /// ```
    pub fn with_extra_fields<F>(mut self, extra: F) -> Self
    where
        F: Fn(&Decision, &mut HeaderMap) + Send + Sync + 'static,
    {
        self.extra = Some(Arc::new(extra));
        self
    }

    pub(crate) fn shows_usual_policies(&self) -> bool {
        self.usual_policies
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (form, jitter, longest) = (self.form, self.jitter, Self::MAX_JITTER);
        let problem = if self.adds_draft06_limit && form != Form::Dialect(Dialect::Draft11) {
            format!("the draft-06 limit cannot be added to {form}, only to draft-11")
        } else if self.shows_capacity_as_limit && !matches!(form, Form::Legacy(_)) {
            format!("the burst capacity cannot be the limit in {form}, only in the legacy fields")
        } else if jitter > longest {
            format!("jitter {jitter:?} exceeds {longest:?}")
        } else if jitter.subsec_nanos() > 0 {
            format!("jitter {jitter:?} is not a whole number of seconds")
        } else if let EmitWhen::NearExhaustion(percent @ 101..) = self.emit_when {
            format!("percentage {percent} is outside 0..=100")
        } else {
            return Ok(());
        };
        let message = format!("response fields: {problem}");
        Err(ConfigError::new(ConfigErrorKind::ResponseFields, message))
    }
}

impl Default for ResponseFields {
    fn default() -> Self {
        Self::draft11()
    }
}

impl fmt::Debug for ResponseFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFields")
            .field("form", &self.form)
            .field("emit_when", &self.emit_when)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;
    use crate::{
        QuotaPolicy,
        clock::{Clock, Timestamp},
        decision::Plan,
        partition::{PartitionKey, Scope},
        policy::PolicySet,
        store::{Store, memory::MemoryStore},
    };

    fn told(decision: &Decision) -> Option<String> {
        let mut response = Response::new(());
        let fields = ResponseFields::default();
        fields.tell(decision, None, fields.times(decision), &mut response);
        let value = response.headers().get("ratelimit")?;
        Some(value.to_str().unwrap().to_owned())
    }

    fn policies_of(policies: Vec<QuotaPolicy>) -> String {
        let prepared = ResponseFields::default().prepare(&policies).unwrap().unwrap();
        let mut response = Response::new(());
        prepared.write(&mut response, &[][..]);
        response.headers()["ratelimit-policy"].to_str().unwrap().to_owned()
    }

    /// Charges `requests` units at once, waits, charges one more, and returns the field for that charge.
    fn limits_of(policies: Vec<QuotaPolicy>, requests: u64, wait: Duration) -> String {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let policies = PolicySet::new(policies).unwrap();
        let partition = Scope::new("test").partition(&PartitionKey::new("user", "alice"));
        let acquire = |cost| {
            let future = store.decide(Plan::new(policies.clone(), partition, cost));
            future.into_ready().ok().unwrap().unwrap()
        };
        acquire(requests);
        clock.advance(wait);
        told(&acquire(1)).unwrap()
    }

    /// A1, A2, A3, A9, A15
    #[test]
    fn policies_are_one_list_in_the_form_of_the_draft() {
        let policies = vec![
            QuotaPolicy::new("burst", 100, Duration::from_secs(60)),
            QuotaPolicy::per_day("daily", 1_000),
        ];
        assert_eq!(policies_of(policies), r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
        assert_eq!(
            policies_of(vec![QuotaPolicy::new("default", 100, Duration::from_secs(10))]),
            r#""default";q=100;w=10"#
        );
    }

    /// A24
    #[test]
    fn quotes_and_backslashes_in_names_are_escaped() {
        assert_eq!(
            policies_of(vec![QuotaPolicy::per_second(r#"a"b\c"#, 1)]),
            r#""a\"b\\c";q=1;w=1"#
        );
    }

    /// A1
    #[test]
    fn nothing_to_show_is_no_field() {
        assert_eq!(told(&Decision::unmeasured(crate::Outcome::FailedOpen)), None);
    }

    /// B1, B2, B4, B6: a charge of one from a full bucket of ten.
    #[test]
    fn limits_show_the_units_left_and_the_seconds_for_them_rounded_up() {
        let ten = || vec![QuotaPolicy::per_second("default", 10)];
        assert_eq!(limits_of(ten(), 0, Duration::ZERO), r#""default";r=9;t=1"#);
        // 3.9 units are reported as 3.
        assert_eq!(limits_of(ten(), 6, Duration::from_millis(90)), r#""default";r=3;t=1"#);
    }

    /// B14: the fields equal the examples of the draft, character by character.
    #[test]
    fn values_of_the_examples_are_written_letter_by_letter() {
        let per =
            |name: &'static str, quota, seconds| vec![QuotaPolicy::new(name, quota, Duration::from_secs(seconds))];
        let micros = Duration::from_micros;
        // A single unit remains, at a rate of one per seven seconds.
        let default = vec![QuotaPolicy::new("default", 1, Duration::from_secs(7)).with_burst_capacity(2)];
        assert_eq!(limits_of(default, 0, Duration::ZERO), r#""default";r=1;t=7"#);
        assert_eq!(
            limits_of(per("default", 1, 48), 0, Duration::ZERO),
            r#""default";r=0;t=48"#
        );
        assert_eq!(
            limits_of(per("fixedwindow", 100, 50), 0, micros(0)),
            r#""fixedwindow";r=99;t=50"#
        );
        assert_eq!(limits_of(per("dynamic", 10, 55), 0, micros(0)), r#""dynamic";r=9;t=50"#);
        assert_eq!(
            limits_of(per("day", 101, 36_360), 0, micros(0)),
            r#""day";r=100;t=36000"#
        );
    }

    /// X12: if no unit remains, `t` is the wait for the next unit, not for a full bucket.
    #[test]
    fn an_empty_bucket_shows_the_wait_for_its_next_unit() {
        let daily = || vec![QuotaPolicy::per_day("daily", 10)];
        assert_eq!(limits_of(daily(), 9, Duration::ZERO), r#""daily";r=0;t=8640"#);
        assert_eq!(
            limits_of(daily(), 10, Duration::from_secs(640)),
            r#""daily";r=0;t=8000"#
        );
    }
}

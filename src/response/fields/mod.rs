mod prepare;
mod told;
mod write;

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderMap;

pub(crate) use self::{told::Told, write::is_redirect};
pub use crate::fields::LegacyReset;
use crate::{
    decision::{Allowance, Decision},
    error::{ConfigError, ConfigErrorKind},
    fields::Dialect,
};

/// The header fields that a layer adds to responses.
///
/// Pass the settings to [`response_fields`](crate::RateLimitLayerBuilder::response_fields), or write the fields of a
/// response yourself with [`to_headers`](Self::to_headers). Default: [`draft11`](Self::draft11).
///
/// Every response with a decision has the fields, which list all policies that are not
/// [hidden](crate::QuotaPolicy::hidden). Every rejection also has a `Retry-After`, regardless of these settings.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{LegacyReset, Limiter, MemoryStore, QuotaPolicy, ResponseFields, fields::EmitWhen};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("api")
///     .policy(QuotaPolicy::per_minute("minute", 3))
///     .policy(QuotaPolicy::per_hour("hour", 60))
///     .build()?;
/// let decision = limiter.check("alice").await;
///
/// let headers = ResponseFields::draft11().to_headers(&decision);
/// assert_eq!(headers["ratelimit"], r#""minute";r=2;t=40, "hour";r=59;t=3540"#);
/// assert_eq!(headers["ratelimit-policy"], r#""minute";q=3;w=60, "hour";q=60;w=3600"#);
///
/// // Other dialects.
/// # let headers = ResponseFields::draft06().to_headers(&decision);
/// # assert_eq!((&headers["ratelimit-remaining"], &headers["ratelimit-reset"]), (&2.into(), &40.into()));
/// # assert_eq!(headers["ratelimit-limit"], "3");
/// # assert_eq!(headers["ratelimit-policy"], "3;w=60, 60;w=3600");
/// let headers = ResponseFields::in_between().to_headers(&decision);
/// assert_eq!(headers["ratelimit"], "minute;r=2;t=40, hour;r=59;t=3540");
/// # assert_eq!(headers["ratelimit-policy"], "minute;q=3;w=60, hour;q=60;w=3600");
/// let headers = ResponseFields::draft07().to_headers(&decision);
/// assert_eq!(headers["ratelimit"], "limit=3, remaining=2, reset=40");
/// assert_eq!(headers["ratelimit-policy"], "3;w=60, 60;w=3600");
/// let headers = ResponseFields::legacy(LegacyReset::DeltaSeconds).to_headers(&decision);
/// assert_eq!(headers["x-ratelimit-remaining"], "2");
/// # assert_eq!((&headers["x-ratelimit-limit"], &headers["x-ratelimit-reset"]), (&3.into(), &40.into()));
///
/// // Short fields, for clients of two drafts.
/// let headers = ResponseFields::draft11()
///     .with_draft06_limit()
///     .tightest_only()
///     .without_policies()
///     .to_headers(&decision);
/// assert_eq!(headers["ratelimit"], r#""minute";r=2;t=40"#);
/// assert_eq!(headers["ratelimit-remaining"], "2");
/// assert!(!headers.contains_key("ratelimit-policy"));
/// # assert_eq!((&headers["ratelimit-limit"], &headers["ratelimit-reset"]), (&3.into(), &40.into()));
///
/// // Half of the remaining units, and a custom field.
/// let headers = ResponseFields::draft11()
///     .map_remaining(|allowance| allowance.remaining() / 2)
///     .with_extra_fields(|decision, headers| {
///         let remaining = decision.allowances().map(|allowance| allowance.remaining()).min();
///         headers.insert("acme-remaining", remaining.unwrap_or_default().into());
///     })
///     .to_headers(&decision);
/// assert_eq!(headers["ratelimit"], r#""minute";r=1;t=40, "hour";r=29;t=3540"#);
/// assert_eq!(headers["acme-remaining"], "2");
///
/// // No fields until at most half of a quota remains. Times are up to 10 seconds longer.
/// let late = ResponseFields::draft11()
///     .emit_when(EmitWhen::NearExhaustion(50))
///     .with_jitter(Duration::from_secs(10));
/// assert!(late.to_headers(&decision).is_empty());
/// assert!(late.to_headers(&limiter.check("alice").await).contains_key("ratelimit"));
/// # limiter.check("alice").await;
/// # let rejected = limiter.check("alice").await;
/// # let wait: u64 = late.to_headers(&rejected)["retry-after"].to_str()?.parse()?;
/// # assert!((20..=30).contains(&wait), "{wait}");
/// # assert!(ResponseFields::none().to_headers(&rejected).keys().eq(["retry-after"]));
/// # Ok(()) });
/// ```
///
/// Settings only lower the remaining units and lengthen the waits. Fields of an inner service are
/// [merged](crate::fields::merge_into).
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
    within_rate: bool,
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

/// The responses with a decision that have fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitWhen {
    /// All responses. The default.
    #[default]
    Always,
    /// Rejections, and responses in which at most this percentage (0 to 100) of the quota of a visible policy remains.
    NearExhaustion(u8),
    /// Rejections only.
    Rejected,
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
            within_rate: false,
            map_remaining: None,
            jitter: Duration::ZERO,
            retry_after_as_date: false,
            usual_policies: false,
            overwrite_upstream: false,
            extra: None,
        }
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-11: `RateLimit` and `RateLimit-Policy`. The default. See
    /// [`fields::draft11`](crate::fields::draft11) for the syntax.
    pub const fn draft11() -> Self {
        Self::new(Form::Dialect(Dialect::Draft11))
    }

    /// Creates fields of the dialect between draft-07 and draft-08.
    ///
    /// Policy names are Tokens, without quotes, as in `minute;r=2;t=40`. `build()` rejects other names. In a response
    /// with `Retry-After`, the times of violated policies equal its value, or that of the tightest policy if none is
    /// violated.
    pub const fn in_between() -> Self {
        Self::new(Form::Dialect(Dialect::EditorsCopy))
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-06.
    ///
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` describe the policy with the fewest remaining requests.
    /// `RateLimit-Policy`, such as `3;w=60, 60;w=3600`, lists all policies. The dialect has no units, so only policies
    /// that count requests are included. `build()` rejects two policies with the same quota, because clients could not
    /// distinguish them.
    ///
    /// If the response has a `Retry-After`, set by this or another layer, `RateLimit-Reset` equals its value, as the
    /// draft recommends. If this time is before the actual reset, the remaining requests are reported as 0. While the
    /// [capacity](crate::Capacity) is exhausted, the limit is 0.
    pub const fn draft06() -> Self {
        Self::new(Form::Dialect(Dialect::Draft06))
    }

    /// Creates fields of draft-ietf-httpapi-ratelimit-headers-07, which express-rate-limit and hono-rate-limiter also
    /// use.
    ///
    /// `RateLimit`, such as `limit=5, remaining=4, reset=60`, describes the policy with the fewest remaining requests.
    /// `RateLimit-Policy`, such as `5;w=60`, lists all policies. As in [`draft06`](Self::draft06), only policies that
    /// count requests are included, quotas must differ, and the reset matches `Retry-After`.
    ///
    /// If an inner service has sent a dictionary, the tighter of both limits is kept. A list of another dialect is
    /// kept, and the limit of this layer is omitted.
    pub const fn draft07() -> Self {
        Self::new(Form::Dialect(Dialect::Draft07))
    }

    /// Creates `X-RateLimit-Limit`, `-Remaining` and `-Reset`, for clients that support nothing else.
    ///
    /// They describe the policy with the fewest remaining requests, among those that count requests. If an inner
    /// service has sent any of these fields, the layer changes none of them.
    pub const fn legacy(reset: LegacyReset) -> Self {
        Self::new(Form::Legacy(reset))
    }

    /// Creates settings without fields.
    pub const fn none() -> Self {
        Self::new(Form::None)
    }

    /// Adds `RateLimit-Limit`, `-Remaining` and `-Reset` of draft-06 to the fields of draft-11.
    ///
    /// `RateLimit-Policy` has the form of draft-11. `build()` rejects this setting with other dialects.
    pub const fn with_draft06_limit(mut self) -> Self {
        self.adds_draft06_limit = true;
        self
    }

    /// Reports the [burst capacity](crate::QuotaPolicy::with_burst_capacity) in `X-RateLimit-Limit`.
    ///
    /// It is the maximum of `X-RateLimit-Remaining`; `tower_governor` also reports it. Default: the quota. `build()`
    /// rejects this setting with other dialects.
    pub const fn with_capacity_as_limit(mut self) -> Self {
        self.shows_capacity_as_limit = true;
        self
    }

    /// Reports only the policy with the fewest remaining units of each quota unit; with equally many, the one with the
    /// later reset. `RateLimit-Policy` still lists all policies. Default: `RateLimit` also lists all.
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
    pub const fn without_limits(mut self) -> Self {
        self.without_limits = true;
        self
    }

    /// Omits `RateLimit-Policy`.
    pub const fn without_policies(mut self) -> Self {
        self.without_policies = true;
        self
    }

    /// Caps the rate of clients that spread the remaining units over the reported time at the rate of the policy.
    ///
    /// Default: twice this rate. The cap applies to every response. Above the cap, a policy that rejects the request
    /// reports fewer remaining units, and any other policy a longer time.
    ///
    /// ```
    /// use tower_quota::{
    ///     Algorithm, Limiter, MemoryStore, QuotaPolicy, ResponseFields, clock::{Clock, Timestamp},
    /// };
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// // The window of the minute ends in 10 seconds.
    /// let clock = Clock::manual(Timestamp::from_micros(50_000_000));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock).build()?)
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_minute("minute", 60).with_algorithm(Algorithm::FixedWindow))
    ///     .build()?;
    /// let decision = limiter.check("alice").await;
    ///
    /// let default = ResponseFields::draft11();
    /// assert_eq!(default.to_headers(&decision)["ratelimit"], r#""minute";r=59;t=30"#);
    /// let within_rate = ResponseFields::draft11().within_rate();
    /// assert_eq!(within_rate.to_headers(&decision)["ratelimit"], r#""minute";r=59;t=59"#);
    /// # Ok(()) });
    /// ```
    pub const fn within_rate(mut self) -> Self {
        self.within_rate = true;
        self
    }

    /// Lowers the remaining units reported to clients to the result of `lower`, to slow clients down while the service
    /// is busy or under attack.
    ///
    /// Results above the remaining units are ignored. `lower` must not block, and may be called several times per
    /// response.
    pub fn map_remaining<F>(mut self, lower: F) -> Self
    where
        F: Fn(&Allowance<'_>) -> u64 + Send + Sync + 'static,
    {
        self.map_remaining = Some(Arc::new(lower));
        self
    }

    /// Lengthens all times of each response by a random number of seconds, at most `most`, so that clients do not retry
    /// at the same time.
    ///
    /// `build()` rejects values above one hour and fractions of a second. Default: zero.
    pub const fn with_jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Writes `Retry-After` as a date, by the system clock, instead of seconds. Only useful to clients whose clocks are
    /// correct.
    pub const fn with_retry_after_as_date(mut self) -> Self {
        self.retry_after_as_date = true;
        self
    }

    /// Reports the unreduced policies in `RateLimit-Policy` while the [capacity](crate::Capacity) is reduced.
    /// `RateLimit` still reports the remaining units of the reduced policies. Default: both report the reduced
    /// policies.
    pub const fn with_unreduced_policies(mut self) -> Self {
        self.usual_policies = true;
        self
    }

    /// Removes the fields of an inner service, but not its `Retry-After`, even if this layer adds none. Clients no
    /// longer see the limits of the inner service. Default: fields are merged.
    pub const fn overwrite_upstream(mut self) -> Self {
        self.overwrite_upstream = true;
        self
    }

    /// Adds custom fields to each response with a decision, even if [`emit_when`](Self::emit_when) or
    /// [`none`](Self::none) omits the fields of the layer. `extra` must not block.
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

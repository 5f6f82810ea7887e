//! The `X-RateLimit-*` fields, for serialization only.
//!
//! These fields are not standardized; use them for clients that support nothing else. Because their meaning differs
//! between servers, [`Hints`](super::Hints) do not parse them; `tower-ratelimit-client` has profiles for them.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::HeaderMap;
//! use ratelimit_fields::legacy::{XRateLimitLimit, XRateLimitRemaining, XRateLimitReset};
//!
//! let mut headers = HeaderMap::new();
//! headers.insert(XRateLimitLimit::NAME, XRateLimitLimit::new(100).to_header_value());
//! headers.insert(XRateLimitRemaining::NAME, XRateLimitRemaining::new(60).to_header_value());
//! let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
//! headers.insert(XRateLimitReset::NAME, XRateLimitReset::at(noon).to_header_value());
//! assert_eq!(headers["x-ratelimit-reset"], "1700000000");
//! ```

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{Extensions, HeaderName, HeaderValue, Response};

use super::{closest::ClosestLimit, number::number_value, seconds::whole_seconds, syntax::insert};

/// The meaning of `X-RateLimit-Reset`: see [`Prepared::legacy`](super::Prepared::legacy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LegacyReset {
    /// Seconds from the creation of the response.
    DeltaSeconds,
    /// Unix time in seconds, by the clock used for the limits.
    UnixTime,
}

/// Marks a response, so that an outer layer knows the meaning of `X-RateLimit-Reset` and can merge.
#[derive(Clone)]
struct ResetsInSeconds;

/// Zero-sized extensions do not allocate.
#[derive(Clone)]
struct ResetsAtUnixTime;

number_value! {
    /// The `X-RateLimit-Limit` field: the quota of the limit closest to exhaustion.
    ///
    /// ```
    /// use ratelimit_fields::legacy::XRateLimitLimit;
    ///
    /// assert_eq!(XRateLimitLimit::new(100).to_header_value(), "100");
    /// ```
    XRateLimitLimit named "x-ratelimit-limit"
}

number_value! {
    /// The `X-RateLimit-Remaining` field: the remaining units of the limit closest to exhaustion.
    ///
    /// ```
    /// use ratelimit_fields::legacy::XRateLimitRemaining;
    ///
    /// assert_eq!(XRateLimitRemaining::new(60).to_header_value(), "60");
    /// ```
    XRateLimitRemaining named "x-ratelimit-remaining"
}

number_value! {
    /// The `X-RateLimit-Reset` field: when the limit closest to exhaustion resets, in seconds or as a Unix time.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use ratelimit_fields::legacy::XRateLimitReset;
    ///
    /// // Both are rounded up to whole seconds, so that clients do not return too early.
    /// assert_eq!(XRateLimitReset::after(Duration::from_millis(200)).to_header_value(), "1");
    /// assert_eq!(XRateLimitReset::at(UNIX_EPOCH + Duration::from_millis(200)).to_header_value(), "1");
    /// ```
    XRateLimitReset named "x-ratelimit-reset"
}

impl XRateLimitLimit {
    /// Creates the field.
    pub fn new(quota: u64) -> Self {
        Self(quota)
    }
}

impl XRateLimitRemaining {
    /// Creates the field.
    pub fn new(remaining: u64) -> Self {
        Self(remaining)
    }
}

impl XRateLimitReset {
    /// Creates the field with the seconds from the response, rounded up.
    pub fn after(wait: Duration) -> Self {
        Self(whole_seconds(wait))
    }

    /// Creates the field with a Unix time in seconds, rounded up. Times before 1970 become zero.
    pub fn at(moment: SystemTime) -> Self {
        Self(whole_seconds(moment.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

pub(super) fn merge_limit<B>(
    response: &mut Response<B>,
    mut own: ClosestLimit,
    reset: LegacyReset,
    now: Option<SystemTime>,
) {
    let names = [XRateLimitLimit::NAME, XRateLimitRemaining::NAME, XRateLimitReset::NAME];
    if reset == LegacyReset::UnixTime {
        let moment = since_1970(now).saturating_add(Duration::from_secs(own.reset));
        own.reset = whole_seconds(moment);
    }
    let read = || {
        let number = |name| response.headers().get(name)?.to_str().ok()?.parse().ok();
        let inner = number(&names[1]).zip(number(&names[2]));
        inner.filter(|_| reset.is_marked(response.extensions()))
    };
    let is_present = names.iter().any(|name| response.headers().contains_key(name));
    let Some(merged) = own.merged(is_present.then(read)) else {
        return;
    };
    match reset {
        LegacyReset::DeltaSeconds => drop(response.extensions_mut().insert(ResetsInSeconds)),
        LegacyReset::UnixTime => drop(response.extensions_mut().insert(ResetsAtUnixTime)),
    }
    for (name, value) in names.into_iter().zip(merged.to_header_values()) {
        insert(response.headers_mut(), name, value);
    }
}

impl LegacyReset {
    fn is_marked(self, extensions: &Extensions) -> bool {
        match self {
            Self::DeltaSeconds => extensions.get::<ResetsInSeconds>().is_some(),
            Self::UnixTime => extensions.get::<ResetsAtUnixTime>().is_some(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "callers with a clock pass its time")]
fn since_1970(now: Option<SystemTime>) -> Duration {
    let now = now.unwrap_or_else(SystemTime::now);
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

//! The `X-RateLimit-*` fields, for serialization only.
//!
//! These fields are not standardized. Here, `X-RateLimit-Limit` is the quota of the limit closest to exhaustion,
//! `X-RateLimit-Remaining` its remaining units, and `X-RateLimit-Reset` its reset: a number of seconds or a Unix time,
//! as your clients expect. Use them for clients that support nothing else. [`Hints`](super::Hints) do not parse them,
//! because their meaning differs between servers; `tower-ratelimit-client` has profiles for them.
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

use http::{HeaderName, HeaderValue};

use super::{number::number_value, seconds::whole_seconds};

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
    /// The `X-RateLimit-Reset` field: the time at which the limit closest to exhaustion resets.
    ///
    /// The value is a number of seconds or a Unix time. Clients cannot detect the form from the value.
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
    /// Creates the field. All values are valid.
    pub fn new(quota: u64) -> Self {
        Self(quota)
    }
}

impl XRateLimitRemaining {
    /// Creates the field. All values are valid.
    pub fn new(remaining: u64) -> Self {
        Self(remaining)
    }
}

impl XRateLimitReset {
    /// Creates the field with the seconds from the creation of the response, rounded up.
    pub fn after(wait: Duration) -> Self {
        Self(whole_seconds(wait))
    }

    /// Creates the field with a Unix time in seconds, rounded up. Times before 1970 become zero.
    pub fn at(moment: SystemTime) -> Self {
        Self(whole_seconds(moment.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

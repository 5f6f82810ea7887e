//! The fields `X-RateLimit-*`, to be written only.
//!
//! No document defines them, and servers differ in what they mean. Here `X-RateLimit-Limit` is the quota of the limit
//! that is closest to being reached, `X-RateLimit-Remaining` what is left of it, and `X-RateLimit-Reset` when it
//! resets: a number of seconds or a Unix time, as your clients expect. You want them for clients that know nothing
//! else. [`Hints`](super::Hints) do not read them, because servers differ in what they mean; a client reads them where a
//! `client::Profile` says what they mean.
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
    /// The field `X-RateLimit-Limit`: the quota of the limit that is closest to being reached.
    ///
    /// ```
    /// use ratelimit_fields::legacy::XRateLimitLimit;
    ///
    /// assert_eq!(XRateLimitLimit::new(100).to_header_value(), "100");
    /// ```
    XRateLimitLimit named "x-ratelimit-limit"
}

number_value! {
    /// The field `X-RateLimit-Remaining`: units left of that limit.
    ///
    /// ```
    /// use ratelimit_fields::legacy::XRateLimitRemaining;
    ///
    /// assert_eq!(XRateLimitRemaining::new(60).to_header_value(), "60");
    /// ```
    XRateLimitRemaining named "x-ratelimit-remaining"
}

number_value! {
    /// The field `X-RateLimit-Reset`: when that limit resets. Nothing in the field says which of its two forms it has.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use ratelimit_fields::legacy::XRateLimitReset;
    ///
    /// // Both are rounded up to a whole second: who waits that long has waited long enough.
    /// assert_eq!(XRateLimitReset::after(Duration::from_millis(200)).to_header_value(), "1");
    /// assert_eq!(XRateLimitReset::at(UNIX_EPOCH + Duration::from_millis(200)).to_header_value(), "1");
    /// ```
    XRateLimitReset named "x-ratelimit-reset"
}

impl XRateLimitLimit {
    /// A field with this quota. Any number will do: no document bounds it.
    pub fn new(quota: u64) -> Self {
        Self(quota)
    }
}

impl XRateLimitRemaining {
    /// A field with this number of units; any will do.
    pub fn new(remaining: u64) -> Self {
        Self(remaining)
    }
}

impl XRateLimitReset {
    /// Seconds from the moment when the response is made, rounded up.
    pub fn after(wait: Duration) -> Self {
        Self(whole_seconds(wait))
    }

    /// A Unix time: seconds since the beginning of 1970, rounded up, and zero for anything before.
    pub fn at(moment: SystemTime) -> Self {
        Self(whole_seconds(moment.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

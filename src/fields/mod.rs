//! What responses tell clients: the `RateLimit` and `RateLimit-Policy` fields, and `Retry-After`.

mod draft11;

use std::time::Duration;

use http::{HeaderName, HeaderValue};

pub(crate) use self::draft11::{limit_field, policy_field};

pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A wait in whole seconds, rounded up: who waits this long has waited long enough.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// `Retry-After` in seconds, at least one.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(whole_seconds(wait).max(1))
}

//! The URIs of the problem types that draft-ietf-httpapi-ratelimit-headers-11 registers.

pub(crate) const ABNORMAL_USAGE_DETECTED: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
pub(crate) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(crate) const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

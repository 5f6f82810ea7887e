//! The URIs of the problem types of draft-ietf-httpapi-ratelimit-headers-11.
//!
//! The `type` of a rejection's `application/problem+json` is one of these URIs. Compare the whole URI.
//!
//! ```
//! use ratelimit_fields::problem_types;
//!
//! /// Returns `true` if waiting for the quota helps.
//! fn is_exhausted_quota(problem_type: &str) -> bool {
//!     problem_type == problem_types::QUOTA_EXCEEDED
//! }
//!
//! assert!(is_exhausted_quota("https://iana.org/assignments/http-problem-types#quota-exceeded"));
//! assert!(!is_exhausted_quota(problem_types::TEMPORARY_REDUCED_CAPACITY));
//! assert!(!is_exhausted_quota(problem_types::ABNORMAL_USAGE_DETECTED));
//! ```

/// The server rejected the request because it detected abnormal usage.
pub const ABNORMAL_USAGE_DETECTED: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
/// The request exceeded a quota.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The capacity of the server is temporarily reduced.
pub const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

//! The dialect of draft-ietf-httpapi-ratelimit-headers-07, written as RFC 8941 says.
//!
//! `RateLimit` is a dictionary about the limit that is closest to being reached, and `RateLimit-Policy` is that of
//! [draft-06](super::draft06). It is what express-rate-limit (`standardHeaders: 'draft-7'`) and hono-rate-limiter send.
//! You want it for such servers, and for clients that were built for them. Names, units and partition keys have no place
//! here.
//!
//! ```
//! use std::time::Duration;
//! use ratelimit_fields::draft07::{PolicyItem, RateLimit, RateLimitPolicy};
//!
//! let limit = RateLimit::parse(["limit=5, remaining=4, reset=60"])?;
//! assert_eq!((limit.limit(), limit.remaining()), (5, Some(4)));
//! assert_eq!(limit.reset(), Duration::from_secs(60));
//!
//! let policies = RateLimitPolicy::new([PolicyItem::new(5, Duration::from_secs(60))?])?;
//! assert_eq!(policies.to_header_value(), "5;w=60");
//!
//! // The lists of later drafts are malformed here.
//! assert!(RateLimit::parse([r#""default";r=4;t=60"#]).is_err());
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::KeyRef;

pub use super::draft06::{PolicyItem, RateLimitPolicy};
use super::{
    error::{FieldError, Problem},
    names::RATELIMIT,
    seconds,
    syntax::{integers, read, writable},
};

const LIMIT: &KeyRef = KeyRef::constant("limit");
const REMAINING: &KeyRef = KeyRef::constant("remaining");
const RESET: &KeyRef = KeyRef::constant("reset");

/// The field `RateLimit` as a dictionary: what is left of the limit that is closest to being reached.
///
/// It promises nothing: a request may be rejected although units are left. A server without counters leaves `remaining`
/// out; `limit` and `reset` are required. Other keys, and all parameters, have no meaning: they are not kept.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft07::RateLimit;
///
/// let field = RateLimit::new(100, Duration::from_millis(49_200))?.with_remaining(20)?;
/// assert_eq!(field.to_header_value(), "limit=100, remaining=20, reset=50");
///
/// // Of a key that appears twice, the last value counts.
/// let field = RateLimit::parse(["limit=10, reset=1, acme=?0", "reset=7"])?;
/// assert_eq!(field.to_string(), "limit=10, reset=7");
/// assert_eq!(field.remaining(), None);
///
/// let error = RateLimit::parse(["limit=10, remaining=9"]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: reset is missing");
/// let error = RateLimit::parse(["limit=10, remaining=-1, reset=7"]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: remaining is -1, outside 0..=999999999999999");
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(RateLimit::read(&headers)?, None);
/// headers.insert(RateLimit::NAME, field.to_header_value());
/// assert_eq!(RateLimit::read(&headers)?, Some(field));
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    limit: u64,
    remaining: Option<u64>,
    reset: u64,
}

impl RateLimit {
    /// The name of the field.
    pub const NAME: HeaderName = RATELIMIT;

    const FIELD: &'static str = "RateLimit";

    /// A quota, and the time until it resets, from the moment when the response is made: rounded up to whole seconds of
    /// at most 15 digits.
    ///
    /// Fails if the quota has more than 15 digits.
    pub fn new(limit: u64, reset: Duration) -> Result<Self, FieldError> {
        Ok(Self {
            limit: writable(Self::FIELD, LIMIT.as_str(), limit, 0)?,
            remaining: None,
            reset: seconds::rounded_up(reset),
        })
    }

    /// Units left.
    ///
    /// Fails if the number has more than 15 digits.
    pub fn with_remaining(mut self, remaining: u64) -> Result<Self, FieldError> {
        self.remaining = Some(writable(Self::FIELD, REMAINING.as_str(), remaining, 0)?);
        Ok(self)
    }

    /// Reads the lines of one field, in the order in which they came.
    ///
    /// If anything in them is malformed, the whole field is: ignore it then.
    pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
        let [limit, remaining, reset] = integers(Self::FIELD, [LIMIT, REMAINING, RESET], lines)?;
        let required = |key: &'static KeyRef, number: Option<u64>| {
            number.ok_or_else(|| Problem::Missing(key.as_str()).of(Self::FIELD))
        };
        Ok(Self {
            limit: required(LIMIT, limit)?,
            remaining,
            reset: required(RESET, reset)?,
        })
    }

    /// Reads the field of a response; `None` if it is absent.
    ///
    /// Give it the header section only, never trailers: the fields must not appear there. Fails as
    /// [`parse`](Self::parse) does.
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        read(headers, Self::NAME, Self::parse)
    }

    /// The quota of the limit, at most 15 digits.
    pub fn limit(self) -> u64 {
        self.limit
    }

    /// Units left, if the server says so, at most 15 digits.
    pub fn remaining(self) -> Option<u64> {
        self.remaining
    }

    /// The time until the quota resets, in whole seconds from the moment when the response was made.
    pub fn reset(self) -> Duration {
        Duration::from_secs(self.reset)
    }

    /// The value of one field line.
    pub fn to_header_value(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("structured fields are printable ASCII")
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit={}", self.limit)?;
        if let Some(remaining) = self.remaining {
            write!(f, ", remaining={remaining}")?;
        }
        write!(f, ", reset={}", self.reset)
    }
}

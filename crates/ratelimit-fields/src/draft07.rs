//! The dialect of draft-ietf-httpapi-ratelimit-headers-07, in the syntax of RFC 8941.
//!
//! `RateLimit` is a dictionary for the limit closest to exhaustion, and `RateLimit-Policy` is the same as in
//! [draft-06](super::draft06). Servers with express-rate-limit (`standardHeaders: 'draft-7'`) and hono-rate-limiter
//! send this dialect.
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
    bounds::MAX_INTEGER,
    closest::ClosestLimit,
    draft06,
    error::{FieldError, Problem},
    hint_items::LimitHint,
    names::RATELIMIT,
    seconds,
    syntax::{insert, integers, read, writable},
    typed::typed_headers,
    wire::{Form, Wire},
};

const LIMIT: &KeyRef = KeyRef::constant("limit");
const REMAINING: &KeyRef = KeyRef::constant("remaining");
const RESET: &KeyRef = KeyRef::constant("reset");

pub(super) const WIRE: Wire = Wire {
    begins: begins_with_a_key,
    limits: Some(|lines| RateLimit::parse(lines).map(|field| vec![field.into()])),
    policies: None,
    numbers: None,
    prepare: draft06::prepare,
    form: Form::Closest {
        merge_limit,
        merge_policies: draft06::merge_policies,
    },
};

typed_headers!(RateLimit);

/// The `RateLimit` field as a dictionary, for the limit closest to exhaustion.
///
/// `limit` and `reset` are required; servers without counters omit `remaining`. Other keys and all parameters are
/// dropped.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft07::RateLimit;
///
/// let field = RateLimit::new(100, Duration::from_millis(49_200))?.with_remaining(20)?;
/// assert_eq!(field.to_header_value(), "limit=100, remaining=20, reset=50");
///
/// // If a key appears twice, the last value is used.
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

    /// Creates the field from a quota and the time until it resets, rounded up to whole seconds of at most 15 digits.
    ///
    /// Fails if the quota has more than 15 digits.
    pub fn new(limit: u64, reset: Duration) -> Result<Self, FieldError> {
        Ok(Self {
            limit: writable(Self::FIELD, LIMIT.as_str(), limit, 0)?,
            remaining: None,
            reset: seconds::rounded_up(reset),
        })
    }

    /// Sets the remaining units. Fails if the number has more than 15 digits.
    pub fn with_remaining(mut self, remaining: u64) -> Result<Self, FieldError> {
        self.remaining = Some(writable(Self::FIELD, REMAINING.as_str(), remaining, 0)?);
        Ok(self)
    }

    /// Parses the lines of a field. Fails if any part is malformed.
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

    /// Parses the field of a response, if present. Fails like [`parse`](Self::parse).
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        read(headers, Self::NAME, Self::parse)
    }

    /// Returns the quota.
    pub fn limit(self) -> u64 {
        self.limit
    }

    /// Returns the remaining units.
    pub fn remaining(self) -> Option<u64> {
        self.remaining
    }

    /// Returns the time until the quota resets, from the creation of the response.
    pub fn reset(self) -> Duration {
        Duration::from_secs(self.reset)
    }

    /// Serializes the field as the value of one line.
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

impl From<RateLimit> for LimitHint {
    fn from(field: RateLimit) -> Self {
        Self {
            quota: Some(field.limit()),
            remaining: field.remaining(),
            reset: Some(field.reset()),
            ..Self::default()
        }
    }
}

/// Only a key can be followed by an equals sign, not the name of an item.
fn begins_with_a_key(line: &[u8]) -> bool {
    let is_of_a_key = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
    let length = line.iter().take_while(|byte| is_of_a_key(byte)).count();
    length > 0 && line.get(length) == Some(&b'=')
}

fn merge_limit(headers: &mut HeaderMap, own: ClosestLimit) {
    // A list of another dialect is not changed.
    let inner = match RateLimit::read(headers) {
        Ok(inner) => inner.map(|inner| inner.remaining.map(|remaining| (remaining, inner.reset))),
        Err(_) => Some(None),
    };
    let field = own.merged(inner).and_then(|limit| {
        let field = RateLimit::new(limit.quota.min(MAX_INTEGER), Duration::from_secs(limit.reset)).ok()?;
        field.with_remaining(limit.remaining.min(MAX_INTEGER)).ok()
    });
    if let Some(field) = field {
        insert(headers, RateLimit::NAME, field.to_header_value());
    }
}

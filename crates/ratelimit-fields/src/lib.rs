//! The rate limit fields of HTTP responses: `RateLimit`, `RateLimit-Policy` and `Retry-After`.
//!
//! The layer of `tower-quota` writes these fields. Use this crate without that layer: in a client, in a gateway that merges its
//! own fields with those of an upstream service, in a test, or in another limiter. Its functions take and return [`http`] types.
//!
//! | you have | take |
//! |---|---|
//! | a response of any server | [`Hints::read`]: tells the dialect, and reads all fields |
//! | the fields of one dialect, to read or to write | [`draft11`], [`in_between`], [`draft07`], [`draft06`], [`RetryAfter`] |
//! | the content of a rejection | [`problem_types`]: its registered types |
//! | clients that know `X-RateLimit-*` only | [`legacy`]: to be written; `tower-ratelimit-client` reads them by profiles |
//! | a response that has fields already, and more to say | [`merge_into`]: never makes it look more permissive |
//! | limits of your own, whose fields every response has | [`Prepared`]: serializes the policies once |
//!
//! ```
//! use std::time::Duration;
//! use http::HeaderMap;
//! use ratelimit_fields::{Hints, draft11::{LimitItem, RateLimit}};
//!
//! // One side writes …
//! let limit = LimitItem::new("daily", 4_999)?.with_reset(Duration::from_secs(86_383));
//! let mut headers = HeaderMap::new();
//! headers.insert(RateLimit::NAME, RateLimit::new([limit])?.to_header_value());
//! assert_eq!(headers["ratelimit"], r#""daily";r=4999;t=86383"#);
//!
//! // … and the other reads.
//! let hints = Hints::read(&headers);
//! assert_eq!(hints.limits()[0].remaining(), Some(4_999));
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```
//!
//! # As typed headers
//!
//! With the feature `headers`, the fields of these dialects and [`RetryAfter`] implement `headers::Header`: a handler of
//! axum can return them in a `TypedHeader`, and `HeaderMapExt::typed_get` reads them.
//!
//! ```
//! # #[cfg(feature = "headers")] {
//! use headers::HeaderMapExt;
//! use ratelimit_fields::draft11::{LimitItem, RateLimit};
//!
//! let limit = RateLimit::new([LimitItem::new("daily", 4_999)?])?;
//! let mut headers = http::HeaderMap::new();
//! headers.typed_insert(limit.clone());
//! assert_eq!(headers["ratelimit"], r#""daily";r=4999"#);
//! assert_eq!(headers.typed_get(), Some(limit));
//! # }
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```
//!
//! # What is malformed
//!
//! Everything is read within bounds: [`MAX_LENGTH`] bytes and [`MAX_ITEMS`] items in one field, [15
//! digits](MAX_INTEGER) in a number. A field with anything wrong in it gives a [`FieldError`] that says what, and is to
//! be ignored as a whole, as if all its lines were absent; the other fields of the response are still good. Parameters
//! that a dialect does not know are comments, and never wrong. No text, however hostile, makes a function of this
//! module panic.
//!
//! # What it does not do
//!
//! It does not wait, and it does not say what to do: a client has to put bounds of its own on what it reads, since `r`
//! and `t` promise nothing and any server can send any number. It does not know what is in the trailer section, where
//! these fields must not appear: give it header sections only. And the names of policies stand for
//! the policies: what is checked is whether a value can be written, not whether it makes sense.
//!
//! # What fields give away
//!
//! Fields tell every client the capacity of a service. An intermediary that sends a request again uses
//! quota that its client has not used, so that a client which counts can tell that there is one; nothing else is said
//! about it. And the pace of a client that obeys the fields can be a mark by which it is known again under another name
//! or address: one that minds should vary it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod closest;
pub mod draft06;
pub mod draft07;
pub mod draft11;
mod error;
mod extension;
mod hints;
pub mod in_between;
pub mod legacy;
mod list;
mod merge;
mod named;
mod number;
mod parameters;
mod prepared;
pub mod problem_types;
mod retry_after;
mod scratch;
mod seconds;
mod syntax;
#[cfg(feature = "headers")]
mod typed;
mod unit;
mod upstream;

use std::time::Duration;

use http::HeaderName;

use self::named::Named;
pub use self::{
    error::{FieldError, FieldErrorKind},
    extension::ExtensionValue,
    hints::{Dialect, Hints, LimitHint, PolicyHint},
    list::List,
    merge::{LayerFields, merge_into},
    named::{LimitItem, PolicyItem},
    prepared::{LegacyReset, LimitReport, Prepared, PreparedPolicy, ReportedLimit},
    retry_after::RetryAfter,
    unit::{OtherUnit, Unit},
};

/// The length of a field that is read, in bytes: all its lines, with two bytes between each two of them.
///
/// A longer field is malformed, and cannot be made. It is enough for what [RFC
/// 9651](https://www.rfc-editor.org/rfc/rfc9651#section-3) has readers support: a list of 1 024 items with short names, say, or a
/// byte sequence of 16 384 octets (21 850 bytes in a field) beside 256 parameters.
///
/// ```
/// use ratelimit_fields::{FieldErrorKind, MAX_LENGTH, draft11::RateLimit};
///
/// let item = r#""a";r=1"#;
/// let spaces = " ".repeat(MAX_LENGTH - item.len());
/// assert!(RateLimit::parse([format!("{item}{spaces}")]).is_ok());
/// let error = RateLimit::parse([format!("{item}{spaces} ")]).unwrap_err();
/// assert_eq!(error.kind(), FieldErrorKind::Size);
/// assert_eq!(error.to_string(), "RateLimit: it is longer than 131072 bytes");
/// ```
pub const MAX_LENGTH: usize = 128 * 1024;

/// The number of items of a field that are read, the one that RFC 9651 has readers support. A field with more is malformed,
/// and cannot be made.
///
/// ```
/// use ratelimit_fields::{MAX_ITEMS, draft11::{LimitItem, RateLimit}};
///
/// let item = LimitItem::new("a", 1)?;
/// assert!(RateLimit::new(vec![item.clone(); MAX_ITEMS]).is_ok());
/// let error = RateLimit::new(vec![item; MAX_ITEMS + 1]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: it has more than 1024 items");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub const MAX_ITEMS: usize = 1024;

/// The greatest number that a structured field can hold, in 15 digits.
///
/// ```
/// use ratelimit_fields::{MAX_INTEGER, draft11::LimitItem};
///
/// assert!(LimitItem::new("a", MAX_INTEGER).is_ok());
/// let error = LimitItem::new("a", MAX_INTEGER + 1).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: r is 1000000000000000, outside 0..=999999999999999");
/// ```
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A wait in whole seconds, rounded up: who waits this long has waited long enough.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// The names of all fields that this crate writes, for `Access-Control-Expose-Headers`: scripts of other origins cannot
/// read a field that the server does not expose.
///
/// ```
/// use ratelimit_fields::EXPOSED;
/// use tower_http::cors::CorsLayer;
///
/// let cors = CorsLayer::permissive().expose_headers(EXPOSED);
/// assert_eq!(EXPOSED[0], "ratelimit");
/// ```
///
/// Put the CORS layer *outside* of the limit, so that rejections carry its fields too.
pub const EXPOSED: [HeaderName; 9] = [
    RATELIMIT,
    RATELIMIT_POLICY,
    http::header::RETRY_AFTER,
    draft06::RateLimitLimit::NAME,
    draft06::RateLimitRemaining::NAME,
    draft06::RateLimitReset::NAME,
    legacy::XRateLimitLimit::NAME,
    legacy::XRateLimitRemaining::NAME,
    legacy::XRateLimitReset::NAME,
];

/// The programs of the README have to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Parses, serializes and merges the rate-limit header fields of HTTP responses.
//!
//! Use this crate in a client, a gateway, a test or a limiter. The layer of `tower-quota` sends the fields
//! automatically.
//!
//! ```
//! use std::time::Duration;
//! use http::HeaderMap;
//! use ratelimit_fields::{Hints, draft11::{LimitItem, RateLimit}};
//!
//! // A server sends a field …
//! let limit = LimitItem::new("daily", 4_999)?.with_reset(Duration::from_secs(86_383));
//! let mut headers = HeaderMap::new();
//! headers.insert(RateLimit::NAME, RateLimit::new([limit])?.to_header_value());
//! assert_eq!(headers["ratelimit"], r#""daily";r=4999;t=86383"#);
//!
//! // … and a client parses it.
//! let hints = Hints::read(&headers);
//! assert_eq!(hints.limits()[0].remaining(), Some(4_999));
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```
//!
//! | task | API |
//! |---|---|
//! | parse the response of any server | [`Hints::read`] |
//! | parse or serialize the fields of one dialect | [`draft11`], [`in_between`], [`draft07`], [`draft06`], [`RetryAfter`] |
//! | parse the body of a rejection | [`problem_types`] |
//! | support clients that only know `X-RateLimit-*` | [`legacy`] |
//! | add limits to a response that already has fields | [`merge_into`] |
//! | report a server's limits in every response | [`Prepared`] |
//!
//! # As typed headers
//!
//! With the feature `headers`, the fields of these dialects and [`RetryAfter`] implement `headers::Header`.
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
//! A field is malformed if any part of it is, or if it exceeds [`MAX_LENGTH`] bytes, [`MAX_ITEMS`] items or [15
//! digits](MAX_INTEGER) in a number. Parsing it returns a [`FieldError`]. Ignore all its lines; the other fields of the
//! response remain valid. Unknown parameters are comments. No input causes a panic.
//!
//! # Limitations
//!
//! A server can send any number, so clients must bound all values. Remaining units are not guaranteed: a request may be
//! rejected although units remain, or served although none do. Do not pass trailers to the functions, because these
//! fields must not appear in them. Serialization does not check whether values make sense.
//!
//! # Privacy
//!
//! The fields reveal the capacity of a service to every client. If an intermediary retries requests, a client that
//! counts its requests can detect the intermediary by the additional quota used. The timing of a client that obeys the
//! fields can identify the client under another name or address; add jitter if that matters.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bounds;
mod closest;
mod dialect;
pub mod draft06;
pub mod draft07;
pub mod draft11;
mod error;
mod extension;
mod hint_items;
mod hints;
pub mod in_between;
pub mod legacy;
mod list;
mod merge;
mod named;
mod names;
mod number;
mod parameters;
mod prepared;
pub mod problem_types;
mod retry_after;
mod seconds;
mod syntax;
mod text;
mod typed;
mod unit;
mod upstream;
mod wire;

use http::HeaderName;

use self::names::{RATELIMIT, RATELIMIT_POLICY};
pub use self::{
    bounds::{MAX_INTEGER, MAX_ITEMS, MAX_LENGTH},
    dialect::Dialect,
    error::{FieldError, FieldErrorKind},
    extension::ExtensionValue,
    hint_items::{LimitHint, PolicyHint},
    hints::Hints,
    legacy::LegacyReset,
    list::List,
    merge::{LayerFields, merge_into},
    named::{LimitItem, PolicyItem},
    prepared::{LimitNumbers, Prepared, PreparedPolicy, Report},
    retry_after::RetryAfter,
    unit::{OtherUnit, Unit},
};

/// The names of all serialized fields, for `Access-Control-Expose-Headers`.
///
/// ```
/// use ratelimit_fields::EXPOSED;
/// use tower_http::cors::CorsLayer;
///
/// let cors = CorsLayer::permissive().expose_headers(EXPOSED);
/// # assert_eq!(EXPOSED[0], "ratelimit");
/// ```
///
/// Place the CORS layer *outside* the limit, so that rejections have the CORS fields, too.
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

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

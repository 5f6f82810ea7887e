//! The rate limit fields of HTTP responses: `RateLimit`, `RateLimit-Policy` and `Retry-After`.
//!
//! The layer of `tower-quota` writes these fields. Use this crate without that layer: in a client, in a gateway that merges an
//! upstream service's fields into its own, in a test, or in another limiter. Its functions take and return [`http`] types.
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

mod bounds;
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
mod names;
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

use http::HeaderName;

use self::names::{RATELIMIT, RATELIMIT_POLICY};
pub use self::{
    bounds::{MAX_INTEGER, MAX_ITEMS, MAX_LENGTH},
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

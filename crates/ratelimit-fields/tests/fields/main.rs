//! Reading, writing and merging rate limit fields.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod draft06;
mod draft07;
mod draft11;
mod examples;
mod hints;
mod in_between;
mod merge;
mod prepared;
mod properties;
#[cfg(feature = "headers")]
mod typed_headers;
mod values;

use http::{HeaderMap, HeaderName, HeaderValue};

/// A header section with these lines, in order.
fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| {
        (
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::try_from(*value).unwrap(),
        )
    };
    lines.iter().map(line).collect()
}

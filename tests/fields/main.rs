//! The fields of a layer's responses: `RateLimit`, `RateLimit-Policy` and `Retry-After`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod reading;
mod response_fields;
mod typed_headers;

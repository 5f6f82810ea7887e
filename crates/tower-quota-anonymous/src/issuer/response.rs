use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;

use tower_quota::fields::RetryAfter;

/// RFC 9457.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response<Bytes> {
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response = typed("application/problem+json", problem.to_string());
    *response.status_mut() = status;
    response
}

pub(super) fn problem_for_now(status: StatusCode, detail: &str, wait: Duration) -> Response<Bytes> {
    let mut response = problem(status, detail);
    let value = RetryAfter::after(wait).to_header_value();
    response.headers_mut().insert(RETRY_AFTER, value);
    response
}

pub(super) fn method_not_allowed(allowed: &'static str) -> Response<Bytes> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "The method is not allowed.");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Not cacheable, except for the directory.
pub(super) fn typed(media_type: &'static str, content: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(content.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

//! gRPC clients do not interpret HTTP statuses.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(super) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Without parameters.
pub(super) fn media_type(request: &HeaderMap) -> Option<HeaderValue> {
    let content_type = request.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = content_type.split(';').next()?.trim_end().to_ascii_lowercase();
    let kind = media_type.strip_prefix("application/grpc")?;
    let mut web = ["-web-text", "-web"].iter();
    let format = web.find_map(|web| kind.strip_prefix(web)).unwrap_or(kind);
    // RFC 6838. The value is echoed, so it must be a media type name.
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
    let is_format = |name: &str| name.bytes().all(is_of_name);
    let is_grpc = format.is_empty() || format.strip_prefix('+').is_some_and(is_format);
    HeaderValue::try_from(media_type).ok().filter(|_| is_grpc)
}

pub(super) fn http_status<B>(response: &Response<B>) -> StatusCode {
    match response.headers().get(STATUS).map(HeaderValue::as_bytes) {
        Some(b"8" | b"9") => StatusCode::TOO_MANY_REQUESTS,
        Some(b"16") => StatusCode::UNAUTHORIZED,
        _ => response.status(),
    }
}

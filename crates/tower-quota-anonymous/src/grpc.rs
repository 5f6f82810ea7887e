//! Statuses of gRPC in header fields: its clients know nothing of those of HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// A status: a value of google.rpc.Code, and what it says.
pub(super) struct Status<'a> {
    pub(super) code: u16,
    /// Printable ASCII.
    pub(super) message: String,
    pub(super) wait: Option<Duration>,
    pub(super) exhausted: Option<Exhausted<'a>>,
}

/// A policy whose quota is used up.
#[derive(Clone, Copy)]
pub(super) struct Exhausted<'a> {
    pub(super) policy: &'a str,
    pub(super) limit: u32,
}

impl Status<'_> {
    /// The response, in the media type of the request. HTTP has no part in it: its status is 200.
    pub(super) fn response(&self, media_type: HeaderValue) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, media_type);
        headers.insert(STATUS, HeaderValue::from(self.code));
        // Of printable ASCII, only the percent sign is escaped.
        let message = HeaderValue::try_from(self.message.replace('%', "%25"));
        headers.insert(MESSAGE, message.expect("printable ASCII"));
        if let Some(details) = self.details() {
            headers.insert(DETAILS, details);
        }
        response
    }

    #[cfg(not(feature = "tonic"))]
    fn details(&self) -> Option<HeaderValue> {
        let _ = (self.wait, self.exhausted.map(|exhausted| exhausted.limit));
        None
    }

    /// When to try again, and which quota is used up, as in google.rpc.
    #[cfg(feature = "tonic")]
    fn details(&self) -> Option<HeaderValue> {
        use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
        use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

        if self.wait.is_none() && self.exhausted.is_none() {
            return None;
        }
        let mut details = ErrorDetails::new();
        if let Some(wait) = self.wait {
            details.set_retry_info(Some(wait));
        }
        if let Some(Exhausted { policy, limit }) = self.exhausted {
            let description = "the quota of this policy is exceeded";
            let mut violation = QuotaViolation::new(format!("scope:{policy}"), description);
            violation.quota_id = policy.to_owned();
            violation.quota_metric = "requests".to_owned();
            violation.quota_value = limit.into();
            details.set_quota_failure(vec![violation]);
        }
        let code = tonic::Code::from(i32::from(self.code));
        let status = tonic::Status::with_error_details(code, &self.message, details);
        HeaderValue::try_from(STANDARD_NO_PAD.encode(status.details())).ok()
    }
}

/// The content type of a request, without parameters, if it is gRPC or gRPC-Web.
pub(super) fn media_type(request: &HeaderMap) -> Option<HeaderValue> {
    let content_type = request.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = content_type.split(';').next()?.trim_end().to_ascii_lowercase();
    let kind = media_type.strip_prefix("application/grpc")?;
    let mut web = ["-web-text", "-web"].iter();
    let format = web.find_map(|web| kind.strip_prefix(web)).unwrap_or(kind);
    // RFC 6838: what is sent back is nothing else than the name of a media type.
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
    let is_format = |name: &str| name.bytes().all(is_of_name);
    let is_grpc = format.is_empty() || format.strip_prefix('+').is_some_and(is_format);
    HeaderValue::try_from(media_type).ok().filter(|_| is_grpc)
}

/// The status of a response as HTTP would say it, where gRPC says that a token or a quota is missing.
pub(super) fn http_status<B>(response: &Response<B>) -> StatusCode {
    match response.headers().get(STATUS).map(HeaderValue::as_bytes) {
        Some(b"8" | b"9") => StatusCode::TOO_MANY_REQUESTS,
        Some(b"16") => StatusCode::UNAUTHORIZED,
        _ => response.status(),
    }
}

//! gRPC clients do not read problem details. Without a `grpc-status`, they derive a status from the HTTP status, and
//! most report an exhausted quota as "unavailable".

#[cfg(feature = "tonic")]
mod details;
mod pushback;
#[cfg(test)]
mod tests;
mod timeout;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::notice::{Notice, ProblemType};

/// The content type without parameters, if it is gRPC or gRPC-Web.
pub(super) fn media_type(request: &HeaderMap) -> Option<HeaderValue> {
    let content_type = request.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = content_type.split(';').next()?.trim_end().to_ascii_lowercase();
    let kind = media_type.strip_prefix("application/grpc")?;
    let mut web = ["-web-text", "-web"].iter();
    let format = web.find_map(|web| kind.strip_prefix(web)).unwrap_or(kind);
    let is_format = |name: &str| name.bytes().all(is_name_byte);
    let is_grpc = format.is_empty() || format.strip_prefix('+').is_some_and(is_format);
    HeaderValue::try_from(media_type).ok().filter(|_| is_grpc)
}

/// Returns `true` for characters that RFC 6838 allows. Other content types are not copied to the response.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte)
}

/// A gRPC response always has HTTP status 200. `request` contains the header fields of the request.
pub(super) fn response(notice: &Notice<'_>, media_type: HeaderValue, request: &HeaderMap) -> Response<Bytes> {
    let status = Status::of(notice);
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(STATUS, HeaderValue::from(status.code));
    headers.insert(MESSAGE, percent_encoded(&status.message));
    if let Some(details) = details(notice, status.code, &status.message) {
        headers.insert(DETAILS, details);
    }
    if let Some(millis) = pushback::millis(notice, request) {
        headers.insert(PUSHBACK, HeaderValue::from(millis));
    }
    response
}

struct Status {
    code: u16,
    message: String,
}

impl Status {
    fn of(notice: &Notice<'_>) -> Self {
        let (code, message): (_, String) = match notice.problem {
            ProblemType::AbnormalUsageDetected => (RESOURCE_EXHAUSTED, "abnormal usage detected".into()),
            ProblemType::Blocked => (PERMISSION_DENIED, "the client is blocked".into()),
            ProblemType::Forbidden => (PERMISSION_DENIED, "the request cannot be attributed to a caller".into()),
            ProblemType::QuotaExceeded if notice.is_closed => {
                (RESOURCE_EXHAUSTED, with_names("the limit is closed", notice))
            }
            ProblemType::QuotaExceeded if notice.is_final() => {
                let reason = "the request cost exceeds the capacity of the quota";
                (FAILED_PRECONDITION, with_names(reason, notice))
            }
            ProblemType::QuotaExceeded => (RESOURCE_EXHAUSTED, with_names("quota exceeded", notice)),
            ProblemType::TemporaryReducedCapacity => (UNAVAILABLE, "capacity is temporarily reduced".into()),
            ProblemType::TooManyRequests => (RESOURCE_EXHAUSTED, "too many requests".into()),
        };
        Self { code, message }
    }
}

/// Names are quoted as in the `RateLimit` field, because names may contain commas.
fn with_names(reason: &str, notice: &Notice<'_>) -> String {
    let names: Vec<_> = notice.names().map(|name| format!("{name:?}")).collect();
    match &*names {
        [] => reason.to_owned(),
        names => format!("{reason}: {}", names.join(", ")),
    }
}

fn percent_encoded(message: &str) -> HeaderValue {
    let encoded = utf8_percent_encode(message, ENCODED).to_string();
    HeaderValue::try_from(encoded).expect("percent-encoded text is printable ASCII")
}

#[cfg(feature = "tonic")]
fn details(notice: &Notice<'_>, code: u16, message: &str) -> Option<HeaderValue> {
    details::header_value(notice, code, message)
}

#[cfg(not(feature = "tonic"))]
fn details(_: &Notice<'_>, _: u16, _: &str) -> Option<HeaderValue> {
    None
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

// Values of google.rpc.Code.
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
// Tells clients not to retry: the quota must be raised, or the request must be made smaller.
const FAILED_PRECONDITION: u16 = 9;
const UNAVAILABLE: u16 = 14;

const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

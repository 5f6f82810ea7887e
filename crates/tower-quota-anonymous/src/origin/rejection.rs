//! Problem details (RFC 9457), or for gRPC a status in header fields.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::json;

use super::outcome::TokenOutcome;
use crate::grpc;
use tower_quota::fields::problem_types;

#[derive(Clone, Copy)]
pub(super) struct Exhausted<'a> {
    pub(super) policy: &'a str,
    pub(super) limit: u32,
}

pub(super) struct Rejection<'a> {
    pub(super) status: StatusCode,
    /// Type and title.
    problem: [&'static str; 2],
    detail: Option<&'static str>,
    /// A value of `google.rpc.Code`.
    code: u16,
    message: &'static str,
    exhausted: Option<Exhausted<'a>>,
    wait: Option<Duration>,
}

impl<'a> Rejection<'a> {
    const UNTYPED: &'static str = "about:blank";
    const QUOTA: [&'static str; 2] = [
        problem_types::QUOTA_EXCEEDED,
        "Request cannot be satisfied as assigned quota has been exceeded",
    ];
    const CAPACITY: [&'static str; 2] = [
        problem_types::TEMPORARY_REDUCED_CAPACITY,
        "Request cannot be satisfied due to temporary server capacity constraints",
    ];

    pub(super) fn new(outcome: TokenOutcome, policy: Exhausted<'a>, wait: Option<Duration>) -> Self {
        let rejection = |status, problem, code, message| Self {
            status,
            problem,
            detail: None,
            code,
            message,
            exhausted: None,
            wait,
        };
        match outcome {
            TokenOutcome::Spent => Self {
                exhausted: Some(policy),
                ..rejection(StatusCode::TOO_MANY_REQUESTS, Self::QUOTA, 8, "quota exceeded")
            },
            TokenOutcome::TooManyFailures(_) => {
                let problem = [Self::UNTYPED, "Too Many Requests"];
                rejection(StatusCode::TOO_MANY_REQUESTS, problem, 8, "too many requests")
            }
            TokenOutcome::Unavailable => {
                let message = "capacity is temporarily reduced";
                rejection(StatusCode::SERVICE_UNAVAILABLE, Self::CAPACITY, 14, message)
            }
            TokenOutcome::Accepted | TokenOutcome::Invalid | TokenOutcome::NoToken => Self {
                detail: Some("A valid token is required."),
                ..rejection(
                    StatusCode::UNAUTHORIZED,
                    [Self::UNTYPED, "Unauthorized"],
                    16,
                    "a valid token is required",
                )
            },
        }
    }

    pub(super) fn response(&self, request: &HeaderMap) -> Response<Bytes> {
        match grpc::media_type(request) {
            Some(media_type) => self.grpc(media_type),
            None => self.problem(),
        }
    }

    fn problem(&self) -> Response<Bytes> {
        let [problem, title] = self.problem;
        let mut content = json!({ "type": problem, "title": title, "status": self.status.as_u16() });
        if let Some(detail) = self.detail {
            content["detail"] = detail.into();
        }
        if problem != Self::UNTYPED {
            content["violated-policies"] = self.exhausted.iter().map(|exhausted| exhausted.policy).collect();
        }
        let mut response = Response::new(content.to_string().into());
        *response.status_mut() = self.status;
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }

    fn grpc(&self, media_type: HeaderValue) -> Response<Bytes> {
        let message = match self.exhausted {
            Some(Exhausted { policy, .. }) => format!("{}: {policy:?}", self.message),
            None => self.message.to_owned(),
        };
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, media_type);
        headers.insert(grpc::STATUS, HeaderValue::from(self.code));
        if let Some(details) = self.grpc_details(&message) {
            headers.insert(grpc::DETAILS, details);
        }
        // A retry policy would send the same token, which is not accepted in the next window either.
        if self.exhausted.is_some() {
            headers.insert(grpc::PUSHBACK, HeaderValue::from_static("-1"));
        }
        // Only the percent sign needs escaping in printable ASCII.
        let message = HeaderValue::try_from(message.replace('%', "%25"));
        headers.insert(grpc::MESSAGE, message.expect("printable ASCII"));
        response
    }

    #[cfg(not(feature = "tonic"))]
    fn grpc_details(&self, _: &str) -> Option<HeaderValue> {
        let _ = (self.wait, self.exhausted.map(|exhausted| exhausted.limit));
        None
    }

    /// As `google.rpc` messages.
    #[cfg(feature = "tonic")]
    fn grpc_details(&self, message: &str) -> Option<HeaderValue> {
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
        let status = tonic::Status::with_error_details(code, message, details);
        HeaderValue::try_from(STANDARD_NO_PAD.encode(status.details())).ok()
    }
}

//! Rejections of an origin: a problem as in RFC 9457, or for gRPC a status in header fields and no body.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::json;

use super::outcome::TokenOutcome;
use crate::grpc::{self, Exhausted, Status};

pub(super) struct Rejection<'a> {
    pub(super) status: StatusCode,
    /// The type and the title of the problem.
    problem: [&'static str; 2],
    detail: Option<&'static str>,
    /// A value of google.rpc.Code.
    code: u16,
    message: &'static str,
    exhausted: Option<Exhausted<'a>>,
    wait: Option<Duration>,
}

impl<'a> Rejection<'a> {
    const UNTYPED: &'static str = "about:blank";
    const QUOTA: [&'static str; 2] = [
        "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "Request cannot be satisfied as assigned quota has been exceeded",
    ];
    const CAPACITY: [&'static str; 2] = [
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
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
                detail: Some("A valid token is needed."),
                ..rejection(
                    StatusCode::UNAUTHORIZED,
                    [Self::UNTYPED, "Unauthorized"],
                    16,
                    "a valid token is needed",
                )
            },
        }
    }

    /// The response to a request with these fields.
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
        let status = Status {
            code: self.code,
            message: match self.exhausted {
                Some(Exhausted { policy, .. }) => format!("{}: {policy:?}", self.message),
                None => self.message.to_owned(),
            },
            wait: self.wait,
            exhausted: self.exhausted,
        };
        status.response(media_type)
    }
}

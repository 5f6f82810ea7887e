//! What a refused request is answered with.

mod problem;

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, request::Parts};

use self::problem::ProblemType;
use crate::decision::{Decision, Outcome};

/// A request that is refused: what a custom response is made from.
///
/// See [`RateLimitLayerBuilder::respond_with`](crate::RateLimitLayerBuilder::respond_with).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    decision: &'a Decision,
    request: &'a Parts,
    /// The status of a refusal because a quota is used up.
    status: StatusCode,
}

impl<'a> Rejection<'a> {
    pub(crate) fn new(decision: &'a Decision, request: &'a Parts, status: StatusCode) -> Self {
        Self {
            decision,
            request,
            status,
        }
    }

    /// Why the request is refused, and what is left of each policy.
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request, without its body.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// The status that the layer would answer with:
    ///
    /// - 429, or what [`refusal_status`](crate::RateLimitLayerBuilder::refusal_status) says, if a quota is used up;
    /// - 429 if the application has found the usage [abnormal](crate::AbnormalUsage);
    /// - 503 if the [capacity](crate::Capacity) is reduced or exhausted, or if there was no decision and the layer
    ///   [fails closed](crate::FailureMode::Closed);
    /// - 403 if the caller is unknown and the layer [refuses](crate::NoKey::Refuse) such requests.
    pub fn status(&self) -> StatusCode {
        match self.problem_type() {
            ProblemType::AbnormalUsageDetected => StatusCode::TOO_MANY_REQUESTS,
            ProblemType::Forbidden => StatusCode::FORBIDDEN,
            ProblemType::QuotaExceeded => self.status,
            ProblemType::TemporaryReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn problem_type(&self) -> ProblemType {
        match self.decision.outcome() {
            Outcome::Abnormal => ProblemType::AbnormalUsageDetected,
            Outcome::Unattributed => ProblemType::Forbidden,
            Outcome::FailedClosed | Outcome::Overloaded => ProblemType::TemporaryReducedCapacity,
            _ if self.decision.is_capacity_reduced() => ProblemType::TemporaryReducedCapacity,
            _ => ProblemType::QuotaExceeded,
        }
    }

    /// When to try again, before it is rounded up to whole seconds for the `Retry-After` field, which may also say a later
    /// moment; `None` if the same request never passes.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    /// The response that the layer gives by default: a problem as in RFC 9457.
    ///
    /// Change it as you like; the layer adds `RateLimit`, `RateLimit-Policy` and `Retry-After` afterwards.
    pub fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(problem::body(self));
        *response.status_mut() = self.status();
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

/// Makes the response to a refused request.
pub(crate) struct Responder(Box<RespondWith>);

type RespondWith = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

impl Responder {
    pub(crate) fn new(respond: impl Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self(Box::new(respond))
    }

    pub(crate) fn respond(&self, rejection: &Rejection<'_>) -> Response<Bytes> {
        (self.0)(rejection)
    }
}

impl Default for Responder {
    fn default() -> Self {
        Self::new(|rejection| rejection.to_response())
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

//! What a refused request is answered with.

mod problem;

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, request::Parts};

use crate::{
    decision::{Decision, Outcome},
    fields,
};

/// A request that is refused: what a custom response is made from.
///
/// See [`RateLimitLayerBuilder::respond_with`](crate::RateLimitLayerBuilder::respond_with).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    decision: &'a Decision,
    request: &'a Parts,
}

impl<'a> Rejection<'a> {
    pub(crate) fn new(decision: &'a Decision, request: &'a Parts) -> Self {
        Self { decision, request }
    }

    /// Why the request is refused, and what is left of each policy.
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request, without its body.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// The status that the layer would answer with: 429 if a quota is used up, 503 if there was no decision and the
    /// layer
    /// [fails closed](crate::FailureMode::Closed), 403 if the caller is unknown and the layer
    /// [refuses](crate::NoKey::Refuse) such requests.
    pub fn status(&self) -> StatusCode {
        match self.decision.outcome() {
            Outcome::FailedClosed => StatusCode::SERVICE_UNAVAILABLE,
            Outcome::Unattributed => StatusCode::FORBIDDEN,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// When to try again, as the `Retry-After` field says it before it is rounded up to whole seconds; `None` if the
    /// same request never passes.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.decision.outcome() {
            // By then the circuit breaker has tried the store again.
            Outcome::FailedClosed => Some(Duration::from_secs(1)),
            _ => self.decision.retry_after(),
        }
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

    /// The application's response with the wait that belongs to it, whatever the application has made of the rest.
    pub(crate) fn respond(&self, rejection: &Rejection<'_>) -> Response<Bytes> {
        let mut response = (self.0)(rejection);
        if let Some(wait) = rejection.retry_after() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, fields::retry_after(wait));
        }
        response
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

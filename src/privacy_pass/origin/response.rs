//! What clients are told: challenges, rejections, and which policy there is.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};

use super::{Origin, judgement::Judgement};
use crate::{
    exchange::{Decision, Outcome},
    fields::{RetryAfter, merge_into},
    layer::RateLimitBody,
    privacy_pass::Challenge,
    rejection::problem::{ProblemType, problem},
};

/// What a client is told to wait when a proof finds no place, or a store is unavailable.
const WHEN_UNAVAILABLE: Duration = Duration::from_secs(1);

impl Origin {
    /// The response to a request that does not pass.
    pub(super) fn reject(&self, judgement: Judgement) -> Response<Bytes> {
        self.log.judged(&self.policy, judgement.name());
        let now = self.clock.now();
        let (status, problem_type, wait) = match judgement {
            Judgement::Spent => (
                StatusCode::TOO_MANY_REQUESTS,
                ProblemType::QuotaExceeded,
                Some(self.windows.left(now)),
            ),
            Judgement::TooManyFailures(wait) => (StatusCode::TOO_MANY_REQUESTS, ProblemType::TooManyRequests, wait),
            Judgement::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                ProblemType::TemporaryReducedCapacity,
                Some(WHEN_UNAVAILABLE),
            ),
            Judgement::Accepted | Judgement::Invalid | Judgement::NoToken => {
                (StatusCode::UNAUTHORIZED, ProblemType::Unauthorized, None)
            }
        };
        let violated = (judgement == Judgement::Spent).then_some(&*self.policy);
        let mut response = Response::new(problem(problem_type, status, violated));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, RetryAfter::after(wait).to_header_value());
        }
        if status == StatusCode::UNAUTHORIZED {
            self.challenge(headers);
        } else {
            self.show_policy(headers);
        }
        response
    }

    /// Adds a challenge for each profile, and what belongs to it.
    fn challenge(&self, headers: &mut HeaderMap) {
        let now = self.clock.now();
        let window = self.windows.current(now);
        for profile in self.windows.profiles() {
            let key = self.keys.iter().find(|key| key.profile() == profile);
            if let Some((challenge, key)) = self.windows.challenge(profile, window).zip(key) {
                let challenge = Challenge::new(&challenge)
                    .with_token_key(key.public_key().as_bytes())
                    .with_rate_limit(self.limit)
                    .with_max_age(self.windows.max_age(now));
                let _ = headers.try_append(WWW_AUTHENTICATE, challenge.to_header_value());
            }
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.show_policy(headers);
    }

    /// The inner service has answered a request that was accepted.
    pub(super) fn answer_accepted<B>(&self, mut response: Response<B>) -> Response<RateLimitBody<B>> {
        self.show_policy(response.headers_mut());
        response.map(|body| RateLimitBody::passed(body, None))
    }

    /// The inner service has answered a request that had no token. If a limit has rejected it, the client may come back
    /// with a token.
    pub(super) fn answer_without_token<B>(&self, mut response: Response<B>) -> Response<RateLimitBody<B>> {
        let decision = response.extensions().get::<Decision>();
        let is_rejected = decision.is_some_and(|decision| decision.outcome() == Outcome::Rejected);
        if self.challenges_rejected && is_rejected && response.status() == StatusCode::TOO_MANY_REQUESTS {
            self.challenge(response.headers_mut());
        }
        response.map(|body| RateLimitBody::passed(body, None))
    }

    fn show_policy(&self, headers: &mut HeaderMap) {
        // There is no `Retry-After` in it, so the time does not matter.
        merge_into(headers, &self.policy_field, UNIX_EPOCH);
    }
}

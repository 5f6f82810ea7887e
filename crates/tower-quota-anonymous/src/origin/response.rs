use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE},
};

use super::{
    Origin, OriginBody,
    outcome::TokenOutcome,
    rejection::{Exhausted, Rejection},
};
use crate::{Challenge, grpc::http_status};
use tower_quota::{
    Decision, Outcome,
    fields::{RetryAfter, merge_into},
};

const WHEN_UNAVAILABLE: Duration = Duration::from_secs(1);
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

impl Origin {
    pub(super) fn reject(&self, outcome: TokenOutcome, request: &HeaderMap) -> Response<Bytes> {
        self.log.judged(&self.policy, outcome.name());
        let wait = match outcome {
            TokenOutcome::Spent => Some(self.windows.left(self.clock.now())),
            TokenOutcome::TooManyFailures(wait) => wait,
            TokenOutcome::Unavailable => Some(WHEN_UNAVAILABLE),
            TokenOutcome::Accepted | TokenOutcome::Invalid | TokenOutcome::NoToken => None,
        };
        let policy = Exhausted {
            policy: &self.policy,
            limit: self.limit,
        };
        let rejection = Rejection::new(outcome, policy, wait);
        let mut response = rejection.response(request);
        let headers = response.headers_mut();
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, RetryAfter::after(wait).to_header_value());
        }
        if rejection.status == StatusCode::UNAUTHORIZED {
            self.challenge(headers);
        }
        // gRPC rejections have status 200, which caches would store.
        headers.insert(CACHE_CONTROL, NO_STORE);
        self.show_policy(headers);
        response
    }

    /// One per profile that has a key.
    fn challenge(&self, headers: &mut HeaderMap) {
        let now = self.clock.now();
        let window = self.windows.current(now);
        for key in self.keys.load().shown(self.windows.start(window)) {
            let challenge = Challenge::new(&self.windows.challenge(key.profile(), window))
                .with_token_key(key.public_key().as_bytes())
                .with_rate_limit(self.limit)
                .with_max_age(self.windows.max_age(now));
            let _ = headers.try_append(WWW_AUTHENTICATE, challenge.to_header_value());
        }
    }

    pub(super) fn answer_accepted<B>(&self, mut response: Response<B>) -> Response<OriginBody<B>> {
        self.show_policy(response.headers_mut());
        response.map(OriginBody::from)
    }

    pub(super) fn answer_without_token<B>(&self, mut response: Response<B>) -> Response<OriginBody<B>> {
        let decision = response.extensions().get::<Decision>();
        let is_rejected = decision.is_some_and(|decision| decision.outcome() == Outcome::Rejected);
        if self.is_optional && is_rejected && http_status(&response) == StatusCode::TOO_MANY_REQUESTS {
            let headers = response.headers_mut();
            self.challenge(headers);
            headers.insert(CACHE_CONTROL, NO_STORE);
            self.show_policy(headers);
        }
        response.map(OriginBody::from)
    }

    fn show_policy(&self, headers: &mut HeaderMap) {
        // The time is not used, because the field contains no `Retry-After`.
        merge_into(headers, &self.policy_field, UNIX_EPOCH);
    }
}

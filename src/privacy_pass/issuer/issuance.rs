//! A request for a credential: what is cheap first, then the decision, then the arithmetic.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};

use super::{
    IssuanceRequest, Issuer, Issuing,
    policy::Verdict,
    response::{problem, retry_after, typed},
};
use crate::privacy_pass::{IssuanceError, IssuerKey, Profile};

impl Issuing {
    /// The longest request: token type, truncated key id, and a request of P-384.
    pub(super) const MAX_REQUEST: usize = 3 + Profile::P384.request_len();

    /// Answers a request; its content is missing if it was too long or broke off.
    pub(super) async fn issue(&self, head: Parts, content: Option<Bytes>) -> Response<Bytes> {
        let (outcome, response) = self.answer(head, content).await;
        self.log.answered(outcome);
        response
    }

    /// The response, and its name for operators.
    async fn answer(&self, head: Parts, content: Option<Bytes>) -> (&'static str, Response<Bytes>) {
        let Some((key, request)) = content.and_then(|content| self.read(&content)) else {
            return invalid();
        };
        // A request that has a place is served: so nothing is charged for one that is not.
        let Ok(place) = self.workers.place() else {
            self.log.overloaded(self.clock.now());
            return overloaded();
        };
        let asked = IssuanceRequest::new(head, key.profile(), key.key_id());
        let grant = match self.policy.decide(asked).await.0 {
            Verdict::Issue(grant) => grant,
            Verdict::Respond(response) if response.status().is_server_error() => return (UNAVAILABLE, response),
            Verdict::Respond(response) => return ("rejected", response),
        };
        let issued = place.run(move || key.issue(&request)).await;
        let (outcome, mut response) = match issued {
            Ok(Ok(response)) => ("issued", typed(Issuer::RESPONSE_TYPE, response)),
            Ok(Err(IssuanceError::Invalid)) => invalid(),
            Ok(Err(IssuanceError::Randomness(_))) | Err(_) => overloaded(),
        };
        for (name, value) in &grant.headers {
            response.headers_mut().append(name, value.clone());
        }
        drop(grant.held);
        (outcome, response)
    }

    /// The key that is asked for, and the request for it, if both have their form.
    fn read(&self, content: &[u8]) -> Option<(IssuerKey, Vec<u8>)> {
        let (&[first, second, truncated], request) = content.split_first_chunk()?;
        let profile = Profile::from_token_type(u16::from_be_bytes([first, second]))?;
        if request.len() != profile.request_len() {
            return None;
        }
        let keys = self.keys.load();
        let key = keys.usable(profile, truncated, self.clock.now())?;
        Some((key.clone(), request.to_vec()))
    }
}

const UNAVAILABLE: &str = "unavailable";

fn invalid() -> (&'static str, Response<Bytes>) {
    let detail = "The content is no valid request for a credential of a key of this issuer.";
    ("invalid", problem(StatusCode::UNPROCESSABLE_ENTITY, detail))
}

fn overloaded() -> (&'static str, Response<Bytes>) {
    let detail = "The issuer makes as many credentials as it can.";
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    retry_after(&mut response, Duration::from_secs(1));
    (UNAVAILABLE, response)
}

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};

use super::{
    IssuanceRequest, Issuer, Issuing,
    policy::Verdict,
    response::{problem, problem_for_now, typed},
};
use crate::{CredentialError, IssuerKey, Profile, workers::Overloaded};

impl Issuing {
    /// Token type and truncated key ID.
    const HEAD: usize = 3;

    pub(super) const MAX_REQUEST: usize = Self::HEAD + Profile::P384.request_len();

    /// `content` is `None` if it was too long or incomplete.
    pub(super) async fn issue(&self, head: Parts, content: Option<Bytes>) -> Response<Bytes> {
        let (outcome, response) = self.answer(head, content).await;
        self.log.answered(outcome);
        response
    }

    async fn answer(&self, head: Parts, content: Option<Bytes>) -> (&'static str, Response<Bytes>) {
        let Some((key, content)) = content.and_then(|content| Some((self.key_of(&content)?, content))) else {
            return invalid();
        };
        let asked = IssuanceRequest::new(head, key.profile(), key.key_id(), &content);
        let grant = match self.policy.decide(asked).await.0 {
            Verdict::Issue(grant) => grant,
            Verdict::Respond(response) if response.status().is_server_error() => return (UNAVAILABLE, response),
            Verdict::Respond(response) => return ("rejected", response),
        };
        // After the decision, so that rejected callers do not occupy the queue.
        let issued = match self.workers.turn(None, false).await {
            Ok(turn) => turn.run(move || key.issue(&content[Self::HEAD..])).await,
            Err(overloaded) => {
                self.log.overloaded(self.clock.now());
                Err(overloaded)
            }
        };
        let (outcome, mut response) = match issued {
            Ok(Ok(response)) => ("issued", typed(Issuer::RESPONSE_TYPE, response)),
            Ok(Err(CredentialError::InvalidRequest)) => invalid(),
            Ok(Err(_)) | Err(Overloaded) => {
                if let Some(repeat) = grant.repeat {
                    repeat.refund();
                }
                // Without the fields of the layer, which would make the client wait longer than a repeat requires.
                return overloaded();
            }
        };
        for (name, value) in &grant.headers {
            response.headers_mut().append(name, value.clone());
        }
        drop(grant.held);
        (outcome, response)
    }

    fn key_of(&self, content: &[u8]) -> Option<IssuerKey> {
        let (&[first, second, truncated], request) = content.split_first_chunk::<{ Self::HEAD }>()?;
        let profile = Profile::from_token_type(u16::from_be_bytes([first, second]))?;
        if request.len() != profile.request_len() {
            return None;
        }
        self.keys.load().usable(profile, truncated, self.clock.now()).cloned()
    }
}

const UNAVAILABLE: &str = "unavailable";

fn invalid() -> (&'static str, Response<Bytes>) {
    let detail = "The content is not a valid credential request for a key of this issuer.";
    ("invalid", problem(StatusCode::UNPROCESSABLE_ENTITY, detail))
}

fn overloaded() -> (&'static str, Response<Bytes>) {
    let detail = "The issuer is at capacity.";
    let response = problem_for_now(StatusCode::SERVICE_UNAVAILABLE, detail, Duration::from_secs(1));
    (UNAVAILABLE, response)
}

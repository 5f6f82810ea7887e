//! Issuance policies, which decide about each request for a credential. No issuer is without one.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, Ready, ready},
    panic::resume_unwind,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use sha2::{Digest, Sha256};
use tower_service::Service;

use super::{
    IssuerBody,
    response::{problem, problem_for_now},
};
use crate::{
    decision::{Decision, Outcome},
    layer::{Once, RateLimitBody, RateLimitLayer, Repeat},
    privacy_pass::{KeyId, Profile, content::collect},
    telemetry::in_current_span,
};

/// Decides who may have a credential, and how many.
///
/// The limit of an origin holds for each credential. A client that can get any number of them has no limit, so this decision *is*
/// the limit: identify the caller, by a login, a payment, an attestation; or ration what cannot be identified.
///
/// - A [`RateLimitLayer`] is one: it issues as many credentials as its policies allow, in the partition that its key
///   finds. With a key by account, two accounts behind one address have one each. With a key by address, an address has
///   *credentials × N* tokens in each window. A request that the layer passes uncounted because its store is unavailable
///   gets no credential, but 503: a credential lasts longer than an outage.
/// - So is a function from an [`IssuanceRequest`] to the future of an [`IssuanceDecision`].
///
/// The decision is made after the message was found to be well-formed, and before the request takes one of the
/// [places](super::IssuerBuilder::max_queued): callers that are rejected take none. The issuer does not limit the number of
/// decisions in progress. A `RateLimitLayer` has [`max_waiting`](crate::LimiterBuilder::max_waiting) and a
/// [`deadline`](crate::LimiterBuilder::deadline) for that; give a function that calls a database the same.
///
/// # Repeats
///
/// A charge stays if no place is free (503), the proof of the request fails (422), or the response is lost. So a
/// `RateLimitLayer` grants a request that it has charged again, without a charge, up to three times within the longest window
/// of the caller's policies, counted from the charge. The window is 1 minute at least and 31 days at most.
///
/// - The request must have the same bytes, for the same key, and be counted in the same partitions. Another account that
///   sends the same bytes is charged, and so is a fifth request.
/// - The layer's store keeps a note with the digest of the request, which all instances with this store share. The note is
///   written after the charge, also if the client disconnects in between. If the store fails in between, or the process
///   ends, the next request is charged. While the store is unavailable, repeats get 503, too.
/// - The access list, the kill switch, exemptions and hooks apply to repeats. A blocked caller gets no repeat, and neither
///   does a caller with a policy of quota 0. Exhausted quotas, lockouts and reduced capacity do not stop a repeat, because
///   its credential was charged before.
/// - A repeat takes a place of the issuer, but no slot of a policy for
///   [concurrent requests](crate::QuotaPolicy::concurrent). If it gets 503 for want of a place, it does not count as one of
///   the three. Its response has no `RateLimit` fields.
/// - Policies for concurrent requests alone are no ration: nothing is noted.
///
/// A second response contains no additional tokens: see [lost answers](crate::docs::anonymous#lost-answers). A function can
/// do the same by [`digest`](IssuanceRequest::digest).
pub trait IssuancePolicy: Send + Sync + 'static {
    /// Decides about one request.
    fn decide(&self, request: IssuanceRequest) -> IssuanceDecisionFuture;
}

/// The future of a policy's decision.
pub type IssuanceDecisionFuture = Pin<Box<dyn Future<Output = IssuanceDecision> + Send>>;

impl<F, D> IssuancePolicy for F
where
    F: Fn(IssuanceRequest) -> D + Send + Sync + 'static,
    D: Future<Output = IssuanceDecision> + Send + 'static,
{
    fn decide(&self, request: IssuanceRequest) -> IssuanceDecisionFuture {
        Box::pin(self(request))
    }
}

/// A request for a credential, as a policy sees it: the head of the HTTP request, with the extensions that outer layers have
/// put into it, and the key that is to issue.
///
/// The extensions contain the [`KeyId`], too, so that the key of a [`RateLimitLayer`] can be by account *and* key: an
/// account needs a new credential when the key changes.
#[derive(Clone)]
pub struct IssuanceRequest {
    parts: Parts,
    profile: Profile,
    key_id: KeyId,
    digest: [u8; 32],
}

impl IssuanceRequest {
    pub(super) fn new(mut parts: Parts, profile: Profile, key_id: KeyId, content: &[u8]) -> Self {
        parts.extensions.insert(key_id);
        let digest = Sha256::new().chain_update(key_id.as_bytes()).chain_update(content);
        Self {
            parts,
            profile,
            key_id,
            digest: digest.finalize().into(),
        }
    }

    /// The head of the HTTP request.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The profile of the key.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The key that is to issue.
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the SHA-256 digest of the key id and the content of the request.
    ///
    /// Two requests with the same digest get the same tokens, so a function can issue again what it has charged to an
    /// account: store the digest with the charge, and bound the repeats, because each takes milliseconds of a core.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

impl fmt::Debug for IssuanceRequest {
    /// Shows no head, whose fields say who the caller is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuanceRequest")
            .field("profile", &self.profile)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// The decision of a policy about a request for a credential.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::privacy_pass::{IssuanceDecision, IssuanceRequest};
///
/// /// The value that authentication leaves in a request.
/// #[derive(Clone)]
/// struct Account { is_blocked: bool }
///
/// async fn decide(request: IssuanceRequest) -> IssuanceDecision {
///     match request.parts().extensions.get::<Account>() {
///         // Here a database is asked whether the account has a credential of this key.
///         Some(account) if !account.is_blocked => IssuanceDecision::issue(),
///         Some(_) => IssuanceDecision::retry_after(Duration::from_secs(86_400)),
///         None => IssuanceDecision::reject(),
///     }
/// }
/// ```
pub struct IssuanceDecision(pub(super) Verdict);

pub(super) enum Verdict {
    Issue(Grant),
    Respond(Response<Bytes>),
}

/// The additions to a granted request.
#[derive(Default)]
pub(super) struct Grant {
    /// Fields of the response: what is left of a quota.
    pub(super) headers: HeaderMap,
    /// Held until the credential is issued: a slot of concurrent requests.
    pub(super) held: Option<RateLimitBody<IssuerBody>>,
    pub(super) repeat: Option<Repeat>,
}

impl IssuanceDecision {
    /// The caller gets a credential if its request is valid.
    pub fn issue() -> Self {
        Self(Verdict::Issue(Grant::default()))
    }

    /// The caller gets none: 403.
    pub fn reject() -> Self {
        let detail = "This issuer has no credential for the caller.";
        Self::respond_with(problem(StatusCode::FORBIDDEN, detail))
    }

    /// The caller gets one later: 429 with `Retry-After`, in whole seconds, rounded up.
    pub fn retry_after(wait: Duration) -> Self {
        let detail = "The caller has had all credentials that it may have for now.";
        Self::respond_with(problem_for_now(StatusCode::TOO_MANY_REQUESTS, detail, wait))
    }

    /// The caller gets this response and no credential.
    pub fn respond_with(response: Response<Bytes>) -> Self {
        Self(Verdict::Respond(response))
    }
}

impl fmt::Debug for IssuanceDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Verdict::Issue(_) => f.write_str("IssuanceDecision::Issue"),
            Verdict::Respond(response) => write!(f, "IssuanceDecision::Respond({})", response.status()),
        }
    }
}

impl IssuancePolicy for RateLimitLayer {
    fn decide(&self, request: IssuanceRequest) -> IssuanceDecisionFuture {
        let deciding = self.clone().call_once(Granted, request.parts, request.digest);
        Box::pin(async {
            // In a task, so that a client that disconnects after the charge can send its request again.
            match tokio::spawn(in_current_span(deciding)).await {
                Ok(Ok(Once::First(response))) => decided(response).await,
                Ok(Ok(Once::Repeated(repeat))) => IssuanceDecision(Verdict::Issue(Grant {
                    repeat: Some(repeat),
                    ..Grant::default()
                })),
                Ok(Err(never)) => match never {},
                Err(error) => resume_unwind(error.into_panic()),
            }
        })
    }
}

/// Passed on means granted, if it was counted or explicitly is not. The response of a request that was passed on without
/// being counted has its decision.
async fn decided(response: Response<RateLimitBody<IssuerBody>>) -> IssuanceDecision {
    let outcome = response.extensions().get().map(Decision::outcome);
    let (mut parts, body) = response.into_parts();
    match outcome {
        None | Some(Outcome::Allowed | Outcome::Unlimited) => IssuanceDecision(Verdict::Issue(Grant {
            headers: parts.headers,
            held: Some(body),
            repeat: None,
        })),
        Some(outcome) if !outcome.is_admitted() => {
            // The layer's own body, which is there as a whole.
            let content = collect(body, usize::MAX).await.unwrap_or_default();
            parts.headers.remove(http::header::CONTENT_LENGTH);
            IssuanceDecision::respond_with(Response::from_parts(parts, content))
        }
        _ => {
            let detail = "The issuer cannot decide at the moment.";
            let wait = Duration::from_secs(1);
            IssuanceDecision::respond_with(problem_for_now(StatusCode::SERVICE_UNAVAILABLE, detail, wait))
        }
    }
}

/// The service that a layer calls for a request that it allows.
#[derive(Clone, Debug)]
struct Granted;

impl Service<Request<()>> for Granted {
    type Response = Response<IssuerBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

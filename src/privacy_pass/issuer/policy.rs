//! Issuance policies, which decide about each request for a credential. No issuer is without one.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    IssuerBody,
    response::{problem, retry_after},
};
use crate::{
    exchange::{Decision, Outcome},
    layer::{RateLimitBody, RateLimitLayer},
    privacy_pass::{KeyId, Profile, content::collect},
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
/// The decision is made after the message was found to be well-formed and before any arithmetic, so what is
/// charged stays charged if the proof of the request then fails, or its client goes away. A request takes one of the
/// [places](super::IssuerBuilder::max_queued) meanwhile: give a decision that can take long a deadline of its own.
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
#[derive(Clone, Debug)]
pub struct IssuanceRequest {
    parts: Parts,
    profile: Profile,
    key_id: KeyId,
}

impl IssuanceRequest {
    pub(super) fn new(mut parts: Parts, profile: Profile, key_id: KeyId) -> Self {
        parts.extensions.insert(key_id);
        Self { parts, profile, key_id }
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
        let mut response = problem(StatusCode::TOO_MANY_REQUESTS, detail);
        retry_after(&mut response, wait);
        Self::respond_with(response)
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
        let deciding = self.layer(Granted).call(Request::from_parts(request.parts, ()));
        Box::pin(async {
            match deciding.await {
                Ok(response) => decided(response).await,
                Err(never) => match never {},
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
        })),
        Some(outcome) if !outcome.is_pass() => {
            // The layer's own body, which is there as a whole.
            let content = collect(body, usize::MAX).await.unwrap_or_default();
            parts.headers.remove(http::header::CONTENT_LENGTH);
            IssuanceDecision::respond_with(Response::from_parts(parts, content))
        }
        _ => {
            let detail = "The issuer cannot decide at the moment.";
            let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
            retry_after(&mut response, Duration::from_secs(1));
            IssuanceDecision::respond_with(response)
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

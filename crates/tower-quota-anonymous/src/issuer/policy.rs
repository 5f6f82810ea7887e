use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request::Parts};
use sha2::{Digest, Sha256};

use super::response::{problem, problem_for_now};
use crate::{KeyId, Profile};
use tower_quota::Permit;

/// Decides who gets a credential, and how many.
///
/// An origin's limit applies per credential, so this decision *is* the limit: identify the caller by a login, a payment
/// or an attestation, or limit the credentials by address.
///
/// A function from an [`IssuanceRequest`] to a future of an [`IssuanceDecision`] is a policy. So is a
/// [`RateLimitLayer`](tower_quota::RateLimitLayer), as for [`Issuer`](super::Issuer).
///
/// ```
/// use std::time::Duration;
/// use tower_quota_anonymous::{IssuanceDecision, IssuanceRequest, Issuer, KeySet, Profile};
///
/// /// Inserted into the request extensions by authentication.
/// #[derive(Clone)]
/// struct Account { is_blocked: bool }
///
/// async fn decide(request: IssuanceRequest) -> IssuanceDecision {
///     match request.parts().extensions.get::<Account>() {
///         // Query a database for a credential of this account and key.
///         Some(account) if !account.is_blocked => IssuanceDecision::issue(),
///         Some(_) => IssuanceDecision::retry_after(Duration::from_secs(86_400)),
///         None => IssuanceDecision::reject(),
///     }
/// }
///
/// let mut keys = KeySet::new();
/// keys.insert(keys.generate(Profile::P256)?, ..);
/// let issuer = Issuer::builder(decide).keys(keys.clone()).build()?;
/// # tokio_test::block_on(async {
/// #     use http::{Request, header::CONTENT_TYPE};
/// #     use tower::ServiceExt;
/// #     let key = keys.iter().next().unwrap().public_key();
/// #     let message = tower_quota_anonymous::CredentialRequest::new(key, b"request context").unwrap().to_message();
/// #     let request = || Request::post(issuer.request_path()).header(CONTENT_TYPE, Issuer::REQUEST_TYPE);
/// #     let status = async |request: http::request::Builder| {
/// #         let body = http_body_util::Full::new(bytes::Bytes::from(message.clone()));
/// #         issuer.clone().oneshot(request.body(body).unwrap()).await.unwrap().status()
/// #     };
/// #     assert_eq!(status(request()).await, 403);
/// #     assert_eq!(status(request().extension(Account { is_blocked: true })).await, 429);
/// #     assert_eq!(status(request().extension(Account { is_blocked: false })).await, 200);
/// # });
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Only well-formed requests reach the policy, before the [queue](super::IssuerBuilder::max_queued). A function should
/// limit its concurrent calls of a database.
///
/// # A `RateLimitLayer` as a policy
///
/// Its quotas limit the credentials per partition. Requests that pass uncounted get 503, because a credential would
/// outlast the outage. Concurrency limits alone do not limit credentials.
///
/// # Repeats
///
/// A charge is not refunded if the queue is full (503), the proof is invalid (422), or the response is lost. A
/// `RateLimitLayer` [grants a charged request again](crate::guide#repeats-of-a-credential-request), up to three times.
/// A function can use [`digest`](IssuanceRequest::digest).
pub trait IssuancePolicy: Send + Sync + 'static {
    /// Decides about a request.
    fn decide(&self, request: IssuanceRequest) -> IssuanceDecisionFuture;
}

/// The future of an [`IssuancePolicy`].
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

/// A credential request as a policy sees it.
///
/// The extensions of its head include those from outer layers, and the [`KeyId`], to count by account *and* key.
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

    /// Returns the head of the HTTP request.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(super) fn into_parts(self) -> Parts {
        self.parts
    }

    /// Returns the profile of the key.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the ID of the key.
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the SHA-256 digest of the key ID and the content.
    ///
    /// Requests with equal digests get the same tokens. Store the digest with the charge, and limit the repeats.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

impl fmt::Debug for IssuanceRequest {
    /// Omits the head, which may identify the caller.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuanceRequest")
            .field("profile", &self.profile)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// The decision of an [`IssuancePolicy`].
pub struct IssuanceDecision(pub(super) Verdict);

pub(super) enum Verdict {
    Issue(Grant),
    Respond(Response<Bytes>),
}

#[derive(Default)]
pub(super) struct Grant {
    pub(super) headers: HeaderMap,
    /// Held until the credential is issued.
    pub(super) held: Option<Permit>,
    /// Refunded if no credential is issued.
    pub(super) repeat: Option<Permit>,
}

impl Grant {
    pub(super) fn again(repeat: Permit) -> Self {
        Self {
            repeat: Some(repeat),
            ..Self::default()
        }
    }
}

impl IssuanceDecision {
    /// Grants a credential if the request is valid.
    pub fn issue() -> Self {
        Self(Verdict::Issue(Grant::default()))
    }

    /// Rejects the request with 403.
    pub fn reject() -> Self {
        let detail = "This issuer issues no credential to the caller.";
        Self::respond_with(problem(StatusCode::FORBIDDEN, detail))
    }

    /// Rejects the request with 429 and `Retry-After`, rounded up to whole seconds.
    pub fn retry_after(wait: Duration) -> Self {
        let detail = "The caller has reached its limit of credentials for now.";
        Self::respond_with(problem_for_now(StatusCode::TOO_MANY_REQUESTS, detail, wait))
    }

    /// Rejects the request with a custom response.
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

//! Issuance policies, which decide about each request for a credential. No issuer is without one.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request::Parts};
use sha2::{Digest, Sha256};

use super::response::{problem, problem_for_now};
use crate::{KeyId, Profile};
use tower_quota::Permit;

/// Decides who may have a credential, and how many.
///
/// The limit of an origin holds for each credential. A client that can get any number of them has no limit, so this decision *is*
/// the limit: identify the caller, by a login, a payment, an attestation; or ration what cannot be identified.
///
/// - A [`RateLimitLayer`](tower_quota::RateLimitLayer) is one: it issues as many credentials as its policies allow, in the
///   partition that its key finds. With a key by account, two accounts behind one address have one each. With a key by address, an address has
///   *credentials × N* tokens in each window. A request that the layer passes uncounted because its store is unavailable
///   gets no credential, but 503: a credential lasts longer than an outage.
/// - So is a function from an [`IssuanceRequest`] to the future of an [`IssuanceDecision`].
///
/// The decision is made after the message was found to be well-formed, and before the request takes one of the
/// [places](super::IssuerBuilder::max_queued): callers that are rejected take none. The issuer does not limit the number of
/// decisions in progress. A `RateLimitLayer` has [`max_waiting`](tower_quota::LimiterBuilder::max_waiting) and a
/// [`deadline`](tower_quota::LimiterBuilder::deadline) for that; give a function that calls a database the same.
///
/// # Repeats
///
/// A charge stands if no place is free (503), the proof of the request fails (422), or the response is lost. Therefore, a
/// `RateLimitLayer` grants a request that it has charged again, without a further charge, up to three times within the longest
/// window of the caller's policies, counted from the charge. The window is at least 1 minute and at most 31 days.
///
/// - The request must have the same bytes, for the same key, and be counted in the same partitions. Another account that
///   sends the same bytes is charged, and so is a fifth request.
/// - The layer's store keeps a note with the digest of the request, which all instances with this store share. The note is
///   written after the charge, also if the client disconnects in between. If the store fails in between, or the process
///   ends, the next request is charged. While the store is unavailable, repeats get 503, too.
/// - A repeat is decided like any request. If it is admitted, its charge is refunded; if it is rejected because a
///   quota is exhausted, it is granted in spite of that, but a policy with a [lockout](tower_quota::QuotaPolicy::with_lockout) locks
///   out the account. Until the refund, which takes two calls of the store, another request of
///   the account can be rejected because of the repeat. If the process ends before the refund, the repeat stays charged.
/// - A repeat that is admitted stays charged in policies that count
///   [bytes](tower_quota::QuotaPolicy::with_content_bytes), and keeps its place in a
///   [leaky bucket](tower_quota::Algorithm::LeakyBucketQueue): these are no policies for a ration.
/// - New rules with another longest window end the repeats of what was charged before.
/// - The access list, the kill switch, exemptions and hooks apply to repeats. A blocked caller gets no repeat, and neither
///   does a caller with a policy of quota 0. Exhausted quotas, lockouts and reduced capacity do not stop a repeat, because
///   its credential was charged before.
/// - A repeat takes a place of the issuer. It needs no slot of a policy for
///   [concurrent requests](tower_quota::QuotaPolicy::concurrent), and releases the one that it got before its credential is made. If it
///   gets 503 for want of a place, it does not count as one of the three. Its response has no `RateLimit` fields.
/// - Policies for concurrent requests alone are no ration: nothing is noted.
///
/// A second response contains no additional tokens: see [lost answers](crate::guide#lost-answers). A function can
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
/// The extensions contain the [`KeyId`], too, so that the key of a [`RateLimitLayer`](tower_quota::RateLimitLayer) can be
/// by account *and* key: an account needs a new credential when the key changes.
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

    pub(super) fn into_parts(self) -> Parts {
        self.parts
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
/// use tower_quota_anonymous::{IssuanceDecision, IssuanceRequest};
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
    pub(super) held: Option<Permit>,
    /// The charge of a repeat, which is refunded if no credential is issued.
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

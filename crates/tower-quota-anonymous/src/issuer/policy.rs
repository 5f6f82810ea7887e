use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request::Parts};
use sha2::{Digest, Sha256};

use super::response::{problem, problem_for_now};
use crate::{KeyId, Profile};
use tower_quota::Permit;

/// Decides who gets a credential, and how many.
///
/// An origin's limit applies per credential, so a client that can get any number of credentials has no limit. This
/// decision *is* the limit: identify the caller by a login, a payment or an attestation, or limit the credentials by
/// address if callers cannot be identified.
///
/// - A [`RateLimitLayer`](tower_quota::RateLimitLayer) is a policy: its quotas limit the credentials per partition. With
///   a key by account, two accounts behind one address have one credential each. With a key by address, an address has
///   *credentials × N* tokens in each window. Requests that pass uncounted because the store is unavailable get 503,
///   because a credential would outlast the outage.
/// - A function from an [`IssuanceRequest`] to a future of an [`IssuanceDecision`] is a policy, too.
///
/// The policy is called for well-formed requests only, before they enter the [queue](super::IssuerBuilder::max_queued).
/// The issuer does not limit concurrent decisions. A `RateLimitLayer` does so by
/// [`max_waiting`](tower_quota::LimiterBuilder::max_waiting) and [`deadline`](tower_quota::LimiterBuilder::deadline); a
/// function that calls a database should have similar limits.
///
/// # Repeats
///
/// A charge is not refunded if the queue is full (503), the proof of the request is invalid (422), or the response is
/// lost. Therefore, a `RateLimitLayer` grants a charged request again without another charge, up to three times.
/// Repeats must arrive within the longest window of the caller's policies (at least 1 minute, at most 31 days) after
/// the charge.
///
/// - A repeat must have the same bytes and key, and be counted in the same partitions. Another account that sends the
///   same bytes is charged, and so is a fifth request.
/// - The layer's store keeps a note with the digest of the request, which all instances with this store share. The note
///   is written after the charge, even if the client disconnects in between. If the store fails or the process ends in
///   between, the next request is charged. While the store is unavailable, repeats get 503, too.
/// - A repeat is decided like any other request. If it is admitted, its charge is refunded. If it is rejected because a
///   quota is exhausted, it is granted nevertheless, but a policy with a
///   [lockout](tower_quota::QuotaPolicy::with_lockout) locks out the account. Before the refund, which takes two store
///   calls, the repeat can cause another request of the account to be rejected. If the process ends before the refund,
///   the repeat stays charged.
/// - In policies that count [bytes](tower_quota::QuotaPolicy::with_content_bytes), an admitted repeat stays charged,
///   and in a [leaky bucket](tower_quota::Algorithm::LeakyBucketQueue), it keeps its place. Do not use these policies
///   to limit credentials.
/// - If new rules change the longest window, earlier charges can no longer be repeated.
/// - The access list, the kill switch, exemptions and hooks apply to repeats. Blocked callers and callers with a policy
///   of quota 0 get no repeats. Exhausted quotas, lockouts and reduced capacity do not prevent repeats, because the
///   credential was charged before.
/// - A repeat occupies a place in the issuer's queue. A repeat needs no slot of a [concurrency
///   limit](tower_quota::QuotaPolicy::concurrent), and releases an acquired one before the credential is computed. A
///   repeat that gets 503 because the queue is full does not count as one of the three repeats. Responses to repeats
///   have no `RateLimit` fields.
/// - Concurrency limits alone do not limit the number of credentials. No note is written for a request that is counted
///   only against concurrency limits.
///
/// A second response contains no additional tokens: see [lost answers](crate::guide#lost-answers). A function can
/// implement repeats with [`digest`](IssuanceRequest::digest).
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

/// A credential request as a policy sees it: the head of the HTTP request, including extensions from outer layers, and
/// the key.
///
/// The extensions also contain the [`KeyId`], so that a [`RateLimitLayer`](tower_quota::RateLimitLayer) can count by
/// account *and* key, because accounts need a new credential when the key changes.
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

    /// Returns the ID of the key for the credential.
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the SHA-256 digest of the key ID and the content of the request.
    ///
    /// Requests with equal digests get the same tokens, so a function can repeat an issuance that it has charged to an
    /// account. Store the digest with the charge, and limit the repeats, because each takes milliseconds of CPU time.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

impl fmt::Debug for IssuanceRequest {
    /// Omits the head, whose fields may identify the caller.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuanceRequest")
            .field("profile", &self.profile)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// The decision of a policy about a credential request.
///
/// ```
/// use std::time::Duration;
/// use tower_quota_anonymous::{IssuanceDecision, IssuanceRequest};
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
/// ```
pub struct IssuanceDecision(pub(super) Verdict);

pub(super) enum Verdict {
    Issue(Grant),
    Respond(Response<Bytes>),
}

#[derive(Default)]
pub(super) struct Grant {
    /// Response fields about the remaining quota.
    pub(super) headers: HeaderMap,
    /// A concurrency slot, held until the credential is issued.
    pub(super) held: Option<Permit>,
    /// The charge of a repeat, refunded if no credential is issued.
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

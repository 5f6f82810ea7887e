//! The accepted token, as the inner service sees it.

use std::sync::Arc;

use tower_quota::{PartitionKey, ToPartitionKey};

/// A request came with a valid, unspent token: [`OriginLayer`](super::OriginLayer) puts it into the extensions of the
/// request.
///
/// You want it to tell callers who are counted by their tokens from all others, in a handler or in a limit inside of the
/// origin. It says which issuer and policy the token was for, and nothing that would identify a client. As a
/// [key](tower_quota::key::extension) it is the same for all callers with tokens of a policy, to limit all of them together.
///
/// ```
/// use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer};
/// use tower_quota::{key::{self, KeyExtractor}};
/// use tower_quota_anonymous::AcceptedToken;
///
/// // A client with a token is not counted by address.
/// let by_address = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .exempt(Exemption::when(|request| request.extensions.get::<AcceptedToken>().is_some()))
///     .build()?;
///
/// // All who have one, together: 5 000 requests a second, and all others by address.
/// let together = RateLimitLayer::builder(MemoryStore::new())
///     .scope("anonymous")
///     .key(key::extension::<AcceptedToken>().or_else(key::client_ip()))
///     .policy(QuotaPolicy::per_second("second", 5_000))
///     .build()?;
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedToken {
    issuer: Arc<str>,
    policy: Arc<str>,
}

impl AcceptedToken {
    pub(super) fn new(issuer: &Arc<str>, policy: &Arc<str>) -> Self {
        Self {
            issuer: Arc::clone(issuer),
            policy: Arc::clone(policy),
        }
    }

    /// The name of the issuer.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The name of the policy that counts the token.
    pub fn policy(&self) -> &str {
        &self.policy
    }
}

impl ToPartitionKey for AcceptedToken {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("accepted token", &*self.issuer).and(PartitionKey::new("policy", &*self.policy))
    }
}

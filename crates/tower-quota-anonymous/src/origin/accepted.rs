use std::sync::Arc;

use tower_quota::{PartitionKey, ToPartitionKey};

/// Request extension for a valid, unspent token, inserted by [`OriginLayer`](super::OriginLayer).
///
/// Identifies no client: as a [key](tower_quota::key::extension), all callers with tokens of a policy share one limit.
///
/// ```
/// use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer};
/// use tower_quota::{key::{self, KeyExtractor}};
/// use tower_quota_anonymous::AcceptedToken;
///
/// // Callers with a token are not counted by address.
/// let by_address = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .exempt(Exemption::when(|request| request.extensions.get::<AcceptedToken>().is_some()))
///     .build()?;
///
/// // All callers with a token share 5,000 requests per second; others are counted by address.
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

    /// Returns the name of the issuer.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the name of the policy that counts the token.
    pub fn policy(&self) -> &str {
        &self.policy
    }
}

impl ToPartitionKey for AcceptedToken {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("accepted token", &*self.issuer).and(PartitionKey::new("policy", &*self.policy))
    }
}

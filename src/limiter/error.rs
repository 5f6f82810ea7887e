use std::{error::Error, fmt};

use crate::error::StoreError;

/// The error of a [`Caller`](crate::Caller).
///
/// ```
/// # use tower_quota::{MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
/// use tower_quota::LimiterError;
///
/// # tokio_test::block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .named_key("team", key::header("x-team"))
///     .policy(QuotaPolicy::per_hour("team", 100).keyed_by("team"))
///     .build()?;
///
/// let red = PartitionKey::new("x-team", "red");
/// let error = layer.limiter().keyed_by("taem", &red).reset().await.unwrap_err();
/// assert!(matches!(error, LimiterError::UnknownKey { .. }));
/// assert_eq!(error.to_string(), r#"key "taem": unknown to the limiter, which has ["team"]"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LimiterError {
    /// The store failed.
    Store(StoreError),
    /// The limiter has no key of this name.
    UnknownKey {
        /// The requested name.
        name: String,
        /// The names of the limiter's keys.
        known: Vec<String>,
    },
    /// The limiter has tiers, but none of this name.
    UnknownTier {
        /// The requested name.
        name: String,
        /// The names of the limiter's tiers.
        known: Vec<String>,
    },
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::UnknownKey { name, known } => {
                write!(f, "key {name:?}: unknown to the limiter, which has {known:?}")
            }
            Self::UnknownTier { name, known } => {
                write!(f, "tier {name:?}: unknown to the limiter, which has {known:?}")
            }
        }
    }
}

impl Error for LimiterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::UnknownKey { .. } | Self::UnknownTier { .. } => None,
        }
    }
}

impl From<StoreError> for LimiterError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

use std::{error::Error, fmt};

use crate::error::StoreError;

/// The error of a [`Caller`](crate::Caller).
///
/// ```
/// use tower_quota::{Limiter, LimiterError, MemoryStore, QuotaPolicy};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("api")
///     .policy(QuotaPolicy::per_hour("team", 100).keyed_by("team"))
///     .named_key("team")
///     .build()?;
///
/// let error = limiter.keyed_by("taem", "red").reset().await.unwrap_err();
/// assert!(matches!(error, LimiterError::UnknownKey { .. }));
/// assert_eq!(error.to_string(), r#"key "taem": unknown to the limiter, which has ["team"]"#);
/// # Ok(()) });
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

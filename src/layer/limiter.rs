//! The limiter of a layer, for all that is no request of it: work outside of HTTP, support staff, probes, the shutdown.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{admission::Limits, caller::Caller};
use crate::{breaker::CircuitState, decision::Decision, error::StoreError, partition::ToPartitionKey};

/// The limits of a [`RateLimitLayer`](crate::RateLimitLayer), for work that does not pass through it: jobs, messages of a
/// WebSocket, and support staff. [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter) returns it.
///
/// [`check`](Self::check) has the safeguards of the layer: its deadline, circuit breaker, rejection cache and fallback, and its
/// decisions are in the same metrics. What support staff ask and change goes to the store directly, without safeguards: put a
/// timeout around it, and protect the route that uses it. Clones share everything.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::extension::<UserId>())
///     .policy(QuotaPolicy::per_hour("hour", 2))
///     .build()?;
/// send(&layer, Request::get("/").extension(UserId(7))).await;
///
/// // A message of the same user that comes another way counts against the same quota.
/// let limiter = layer.limiter();
/// assert!(limiter.check(&UserId(7)).await.outcome().is_admitted());
/// assert!(!limiter.check(&UserId(7)).await.outcome().is_admitted());
///
/// // Support resets it.
/// limiter.caller(&UserId(7)).reset().await?;
/// assert!(limiter.check(&UserId(7)).await.outcome().is_admitted());
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Limiter(pub(super) Arc<Limits>);

impl Limiter {
    /// A caller, known by the layer's main key: the value that [`key`](crate::RateLimitLayerBuilder::key) extracts from its
    /// requests.
    pub fn caller<K: ToPartitionKey + ?Sized>(&self, key: &K) -> Caller {
        Caller::new(Arc::clone(&self.0), Some(key.to_partition_key()))
    }

    /// A caller that is known by a [named key](crate::RateLimitLayerBuilder::named_key) only, so that support staff can look at a
    /// team or an address.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .named_key("team", key::header("x-team"))
    ///     .policy(QuotaPolicy::per_hour("user", 10))
    ///     .policy(QuotaPolicy::per_hour("team", 1).keyed_by("team"))
    ///     .build()?;
    /// let request = || Request::get("/").header("x-team", "red");
    ///
    /// send(&layer, request()).await;
    /// assert_eq!(send(&layer, request()).await.status(), 429);
    ///
    /// let red = layer.limiter().keyed_by("team", &PartitionKey::new("x-team", "red"));
    /// let team = red.peek().await?.expect("teams are limited");
    /// let left: Vec<_> = team.allowances().map(|team| (team.policy().name(), team.remaining())).collect();
    /// assert_eq!(left, [("team", 0)]);
    /// red.reset().await?;
    /// assert_eq!(send(&layer, request()).await.status(), 200);
    /// # Ok(()) });
    /// ```
    pub fn keyed_by<K: ToPartitionKey + ?Sized>(&self, name: &str, key: &K) -> Caller {
        Caller::new(Arc::clone(&self.0), None).keyed_by(name, key)
    }

    /// Charges one unit to a caller, if all policies admit it. It is [`caller(key).check()`](Caller::check).
    pub async fn check<K: ToPartitionKey + ?Sized>(&self, key: &K) -> Decision {
        self.caller(key).check().await
    }

    /// The state of the circuit breaker between the layer and its store, on this instance.
    ///
    /// You want it for a page or a probe that says whether limits are enforced here, and why not. It asks nothing: while no
    /// request comes, nothing tries the store, and the circuit stays as it was. `None` for a Redis Cluster, each node of which
    /// has a circuit of its own: see `tower_quota_lost_nodes` in [`telemetry`](crate::telemetry).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::CircuitState;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// assert!(matches!(layer.limiter().circuit(), Some(CircuitState::Closed)));
    /// # Ok(()) });
    /// ```
    pub fn circuit(&self) -> Option<CircuitState> {
        self.0.guard.circuit()
    }

    /// Returns prefetched units and waits until the store has all settlements, at most for `timeout`.
    ///
    /// Call it last, after the server has stopped and before the runtime ends: the guide has the
    /// [whole shutdown](crate::guide#shutdown). Without it, refunds and released slots that are on their way to Redis when
    /// the process exits are lost: callers stay overcharged, and slots stay taken until their lease ends.
    ///
    /// Requests may still finish meanwhile: their settlements are waited for, and they are charged one by one, without
    /// prefetching. A request that has not finished keeps its charge and its slots. The layer works on afterwards, and
    /// the call may be repeated. With a [`fallback`](crate::RateLimitLayerBuilder::fallback), both stores are flushed. A
    /// program with several layers calls it for each, at the same time.
    ///
    /// # Errors
    ///
    /// Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) if anything is still under way after `timeout`, and
    /// [`Unavailable`](crate::StoreErrorKind::Unavailable) if settlements were lost since the last flush. The message
    /// says how many.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// // … the server has stopped
    /// if let Err(error) = layer.limiter().flush(Duration::from_secs(5)).await {
    ///     eprintln!("{error}");
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        self.0.guard.flush(timeout).await
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("scope", &self.0.scope_name())
            .finish_non_exhaustive()
    }
}

/// The error of a [`Caller`].
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
/// assert_eq!(error.to_string(), r#"key "taem": the limiter has no such key, only ["team"]"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LimiterError {
    /// The store did not answer.
    Store(StoreError),
    /// The layer has no key of this name.
    UnknownKey {
        /// The name that was given.
        name: String,
        /// The names of the keys that the layer has.
        known: Vec<String>,
    },
    /// The layer has tiers, and none of this name.
    UnknownTier {
        /// The name that was given.
        name: String,
        /// The names of the tiers that the layer has.
        known: Vec<String>,
    },
}

impl fmt::Display for LimiterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::UnknownKey { name, known } => {
                write!(f, "key {name:?}: the limiter has no such key, only {known:?}")
            }
            Self::UnknownTier { name, known } => {
                write!(f, "tier {name:?}: the limiter has no such tier, only {known:?}")
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

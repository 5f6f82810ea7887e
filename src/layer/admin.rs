//! Questions and actions of support staff.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{admission::Limits, attribution::Holder};
use crate::{
    breaker::CircuitState,
    decision::{Decision, Plan},
    error::{ConfigError, StoreError},
    partition::ToPartitionKey,
    rules::{Grant, Policies, QuotaSet},
};

/// Looks at what callers of a layer have left, gives it back, and grants more: see
/// [`RateLimitLayer::admin`](crate::RateLimitLayer::admin).
///
/// It asks the store of the layer directly, without its deadline, circuit breaker and fallback: put a timeout around it.
/// A reset holds for all instances that share the store; a [grant](Self::grant) holds in this process only. The handle
/// does not check permissions: protect the route that uses it.
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// # tokio_test::block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::extension::<UserId>())
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .build()?;
/// let admin = layer.admin();
/// let service = layer.layer(service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }));
/// service.oneshot(Request::builder().extension(UserId(7)).body(())?).await?;
///
/// let left = |decision: tower_quota::Decision| decision.allowances().next().unwrap().remaining();
/// assert_eq!(admin.peek(&UserId(7), None).await?.map(left), Some(99));
/// admin.reset(&UserId(7)).await?;
/// assert_eq!(admin.peek(&UserId(7), None).await?.map(left), Some(100));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AdminHandle(pub(super) Arc<Limits>);

impl AdminHandle {
    /// Reads a caller's remaining quota without a charge, by the policies of a tier that count by the layer's main key.
    /// Without a tier: by those of the first one, or by the policies of all callers.
    ///
    /// While new rules are [tried](crate::RulesHandle::roll_out), they are those by which this caller is limited.
    ///
    /// `None` if no policy limits the caller. The decision's outcome says whether any policy is overdrawn.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .tiers(
    ///         Tiers::from_fn(|request| request.headers.get("x-plan")?.to_str().ok())
    ///             .tier("free", [QuotaPolicy::per_hour("hour", 10)])
    ///             .tier("premium", [QuotaPolicy::per_hour("hour", 100)])
    ///             .unlimited("admin"),
    ///     )
    ///     .build()?;
    /// send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    ///
    /// let alice = PartitionKey::new("x-user-id", "alice");
    /// for (tier, left) in [(None, Some(9)), (Some("premium"), Some(99)), (Some("admin"), None)] {
    ///     let decision = layer.admin().peek(&alice, tier).await?;
    ///     let hour = decision.as_ref().and_then(|decision| decision.allowances().next());
    ///     assert_eq!(hour.map(|hour| hour.remaining()), left);
    /// }
    /// let error = layer.admin().peek(&alice, Some("premuim")).await.unwrap_err();
    /// assert_eq!(error.to_string(), r#"tier "premuim": the layer has no such tier, only ["free", "premium", "admin"]"#);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If the layer has no such tier, or the store does not answer.
    pub async fn peek(
        &self,
        caller: &(impl ToPartitionKey + ?Sized),
        tier: Option<&str>,
    ) -> Result<Option<Decision>, AdminError> {
        self.peek_part(None, self.holder(caller), tier).await
    }

    /// The same by the policies that count by a [named key](crate::RateLimitLayerBuilder::named_key).
    ///
    /// Rules that are tried do not count here: the main key says who tries them.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .named_key("team", key::header("x-team"))
    ///     .policy(QuotaPolicy::per_hour("user", 10))
    ///     .policy(QuotaPolicy::per_hour("team", 100).keyed_by("team"))
    ///     .build()?;
    /// send(&layer, Request::get("/").header("x-team", "red")).await;
    ///
    /// let red = PartitionKey::new("x-team", "red");
    /// let of_red = layer.admin().peek_by("team", &red, None).await?.expect("teams are limited");
    /// let left: Vec<_> = of_red.allowances().map(|team| (team.policy().name(), team.remaining())).collect();
    /// assert_eq!(left, [("team", 99)]);
    /// assert!(layer.admin().peek_by("taem", &red, None).await.is_err());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If the layer has no such key or tier, or the store does not answer.
    pub async fn peek_by(
        &self,
        key: &str,
        caller: &(impl ToPartitionKey + ?Sized),
        tier: Option<&str>,
    ) -> Result<Option<Decision>, AdminError> {
        self.peek_part(Some(self.key(key)?), self.holder(caller), tier).await
    }

    /// Forgets what a caller has used by the main key, in all tiers; slots of requests in progress stay taken.
    ///
    /// # Errors
    ///
    /// If the store does not answer. Some of it may be forgotten then.
    pub async fn reset(&self, caller: &(impl ToPartitionKey + ?Sized)) -> Result<(), AdminError> {
        self.reset_part(None, self.holder(caller)).await
    }

    /// The same by a [named key](crate::RateLimitLayerBuilder::named_key).
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
    /// layer.admin().reset_by("team", &PartitionKey::new("x-team", "red")).await?;
    /// assert_eq!(send(&layer, request()).await.status(), 200);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If the layer has no such key; or if the store does not answer. Some of it may be forgotten then.
    pub async fn reset_by(&self, key: &str, caller: &(impl ToPartitionKey + ?Sized)) -> Result<(), AdminError> {
        self.reset_part(Some(self.key(key)?), self.holder(caller)).await
    }

    /// Gives a caller so many units more than the rules say, for as long as this: in each window of those policies that
    /// count requests by the main key.
    ///
    /// Used units stay used, before and afterwards. A policy with quota 0 stays closed. A grant replaces an earlier one of the same caller, so
    /// that one of 0 units ends it, and up to 10 000 callers may have one. It ends by the layer's
    /// [clock](crate::RateLimitLayerBuilder::clock). It belongs to this process and is not kept when that ends: give it
    /// in each instance, as you do with [rules](crate::RulesHandle).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// layer.admin().grant(&PartitionKey::new("x-user-id", "alice"), 500, Duration::from_secs(3_600))?;
    ///
    /// let alice = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(alice.headers()["ratelimit"], r#""hour";r=599;t=3594"#);
    /// let bob = send(&layer, Request::get("/").header("x-user-id", "bob")).await;
    /// assert_eq!(bob.headers()["ratelimit"], r#""hour";r=99;t=3564"#);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If 10 000 callers have a grant already.
    pub fn grant(
        &self,
        caller: &(impl ToPartitionKey + ?Sized),
        units: u64,
        time: Duration,
    ) -> Result<(), ConfigError> {
        let now = self.0.guard.now();
        let partition = self.holder(caller).partition;
        let grant = Grant::new(units, now.saturating_add(time));
        self.0.policies.grant(partition, grant, now)
    }

    /// The state of the circuit breaker between the layer and its store, on this instance.
    ///
    /// You want it for a page or a probe that says whether limits hold here, and why not. It asks nothing: while no request
    /// comes, nothing tries the store, and the circuit stays as it was. `None` for a Redis Cluster, each node of which has a
    /// circuit of its own: see `tower_quota_lost_nodes` in [`telemetry`](crate::telemetry).
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
    /// assert!(matches!(layer.admin().circuit(), Some(CircuitState::Closed)));
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
    /// if let Err(error) = layer.admin().flush(Duration::from_secs(5)).await {
    ///     eprintln!("{error}");
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        self.0.guard.flush(timeout).await
    }

    pub(super) fn key(&self, name: &str) -> Result<usize, AdminError> {
        let known = self.0.policies.keys();
        let position = known.iter().position(|key| key == name);
        position.ok_or_else(|| AdminError::UnknownKey {
            name: name.to_owned(),
            known: known.to_vec(),
        })
    }

    pub(super) fn holder(&self, caller: &(impl ToPartitionKey + ?Sized)) -> Holder {
        self.0.attribution.holder(&caller.to_partition_key())
    }

    async fn peek_part(
        &self,
        key: Option<usize>,
        holder: Holder,
        tier: Option<&str>,
    ) -> Result<Option<Decision>, AdminError> {
        match self.plan(key, &holder, tier, 1)? {
            Some(plan) => Ok(Some(self.0.guard.store().peek(plan).await?)),
            None => Ok(None),
        }
    }

    /// A plan of the policies that limit a caller in a tier, if any do.
    pub(super) fn plan(
        &self,
        key: Option<usize>,
        holder: &Holder,
        tier: Option<&str>,
        cost: u64,
    ) -> Result<Option<Plan>, AdminError> {
        let (policies, active) = (&self.0.policies, self.0.policies.active());
        // The main key decides who tries rules, so a caller that is known by another key only does not.
        let caller = key.is_none().then_some(holder.partition);
        let set = Policies::of_tier(&active, tier, caller).map_err(|known| AdminError::UnknownTier {
            name: tier.unwrap_or_default().to_owned(),
            known,
        })?;
        let set = set.map(|set| policies.granted(&active, set, holder.partition, || self.0.guard.now()));
        Ok(set.and_then(|set| plan(&set, key, holder, cost)))
    }

    async fn reset_part(&self, key: Option<usize>, holder: Holder) -> Result<(), AdminError> {
        for set in self.0.policies.all_sets() {
            if let Some(plan) = plan(&set, key, &holder, 1) {
                self.0.guard.reset(plan).await?;
            }
        }
        Ok(())
    }
}

/// A plan of those policies of a set that count by this key, if there are any.
fn plan(set: &QuotaSet, key: Option<usize>, holder: &Holder, cost: u64) -> Option<Plan> {
    let part = set.parts.iter().find(|part| part.key == key)?;
    Some(Plan::new(part.policies.clone(), holder.partition, cost).labelled(holder.partition, holder.label.as_ref()))
}

impl fmt::Debug for AdminHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminHandle")
            .field("scope", &self.0.scope_name())
            .finish_non_exhaustive()
    }
}

/// The error of an [`AdminHandle`].
///
/// ```
/// # use tower_quota::{MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
/// use tower_quota::AdminError;
///
/// # tokio_test::block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .named_key("team", key::header("x-team"))
///     .policy(QuotaPolicy::per_hour("team", 100).keyed_by("team"))
///     .build()?;
///
/// let error = layer.admin().reset_by("taem", &PartitionKey::new("x-team", "red")).await.unwrap_err();
/// assert!(matches!(error, AdminError::UnknownKey { .. }));
/// assert_eq!(error.to_string(), r#"key "taem": the layer has no such key, only ["team"]"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AdminError {
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

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::UnknownKey { name, known } => {
                write!(f, "key {name:?}: the layer has no such key, only {known:?}")
            }
            Self::UnknownTier { name, known } => {
                write!(f, "tier {name:?}: the layer has no such tier, only {known:?}")
            }
        }
    }
}

impl Error for AdminError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::UnknownKey { .. } | Self::UnknownTier { .. } => None,
        }
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

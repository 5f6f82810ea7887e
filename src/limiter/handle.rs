use std::{fmt, sync::Arc, time::Duration};

use super::{caller::Caller, inner::Inner, permit::Permit};
use crate::{
    breaker::CircuitState,
    decision::{Decision, Plan},
    error::StoreError,
    partition::ToPartitionKey,
    rules::RulesHandle,
    store::StoreReport,
};

/// A rate limiter for the callers of one scope.
///
/// A limiter serves a [`RateLimitLayer`](crate::RateLimitLayer), and limits any other work directly: jobs, WebSocket
/// messages, calls to a partner API. Create layers of a limiter with
/// [`with_limiter`](crate::RateLimitLayer::with_limiter), or get the limiter of a layer from
/// [`limiter`](crate::RateLimitLayer::limiter). Clones share all state.
///
/// [`check`](Self::check) is protected by the deadline, circuit breaker, rejection cache and fallback. Administrative
/// methods of [`Caller`](crate::Caller), such as [`peek`](crate::Caller::peek) and [`reset`](crate::Caller::reset),
/// call the store directly: wrap them in a timeout, and protect routes that expose them.
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("api")
///     .policy(QuotaPolicy::per_hour("hour", 2))
///     .build()?;
/// let layer = RateLimitLayer::with_limiter(limiter.clone()).key(key::extension::<u64>()).build()?;
/// # assert!(set_up::is_counted(&layer, http::Request::get("/").extension(7_u64)).await);
///
/// // A job of user 7 counts against the same quota as the user's requests.
/// let user: u64 = 7;
/// if limiter.check(&user).await.outcome().is_admitted() {
///     // Run the job.
/// }
/// # assert!(!limiter.check(&user).await.outcome().is_admitted());
///
/// // Support resets the quota.
/// limiter.caller(&user).reset().await?;
/// # assert!(limiter.check(&user).await.outcome().is_admitted());
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Limiter(pub(crate) Arc<Inner>);

impl Limiter {
    /// Returns a handle for the caller with this main key, which must equal the one that a layer
    /// [extracts](crate::RateLimitLayerBuilder::key) if they share a quota.
    pub fn caller<K: ToPartitionKey + ?Sized>(&self, key: &K) -> Caller {
        Caller::new(Arc::clone(&self.0), Some(key.to_partition_key()))
    }

    /// Returns a handle for a caller identified only by a [named key](crate::LimiterBuilder::named_key), for example to
    /// inspect or reset the quota of a team. `caller("red")` does not reach team `red`: see
    /// [`QuotaPolicy::keyed_by`](crate::QuotaPolicy::keyed_by).
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("user", 10))
    ///     .policy(QuotaPolicy::per_hour("team", 3).keyed_by("team"))
    ///     .named_key("team")
    ///     .build()?;
    /// limiter.caller("alice").keyed_by("team", "red").check().await;
    ///
    /// let red = limiter.keyed_by("team", "red");
    /// let decision = red.peek().await?.expect("teams are limited");
    /// let remaining: Vec<_> = decision.allowances().map(|team| (team.policy().name(), team.remaining())).collect();
    /// assert_eq!(remaining, [("team", 2)]);
    /// red.reset().await?;
    /// # let decision = red.peek().await?.expect("teams are limited");
    /// # assert!(decision.allowances().map(|team| team.remaining()).eq([3]));
    /// # Ok(()) });
    /// ```
    pub fn keyed_by<K: ToPartitionKey + ?Sized>(&self, name: &str, key: &K) -> Caller {
        Caller::new(Arc::clone(&self.0), None).keyed_by(name, key)
    }

    /// Charges one unit to a caller if all policies admit it. Short for [`caller(key).check()`](Caller::check).
    pub async fn check<K: ToPartitionKey + ?Sized>(&self, key: &K) -> Decision {
        self.caller(key).check().await
    }

    /// Charges a custom plan, using the store and the fault tolerance of this limiter.
    ///
    /// Use this for limits that are not in the rules, such as a quota from a contract, to detect duplicates, or to
    /// charge [several callers](Caller::plan) in one decision. Derive the partition from a [`Scope`](crate::Scope) with
    /// another name than the limiter's, so that it cannot clash with a caller.
    ///
    /// Rules, the kill switch and the access list do not apply, and no metric counts the decision. The permit works as
    /// described in [`Caller::hold`].
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("exports")
    ///     .policy(QuotaPolicy::per_day("day", 10))
    ///     .build()?;
    ///
    /// let exports_per_day = 2; // from the contract of this customer
    /// let contract = PolicySet::new([QuotaPolicy::per_day("contract", exports_per_day)])?;
    /// let acme = Scope::new("contracts").partition(&PartitionKey::new("customer", "acme"));
    /// let plan = Plan::new(contract, acme, 1);
    ///
    /// let failed = limiter.hold_plan(plan.clone()).await.expect("two exports remain");
    /// failed.refund();
    /// for remaining in [1, 0] {
    ///     let export = limiter.hold_plan(plan.clone()).await.expect("an export remains");
    ///     assert!(export.decision().allowances().map(|contract| contract.remaining()).eq([remaining]));
    /// }
    /// assert!(limiter.hold_plan(plan).await.is_err());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the decision if the plan is rejected. If the store does not decide, the plan is admitted uncounted, or
    /// rejected with [`FailureMode::Closed`](crate::FailureMode::Closed).
    pub async fn hold_plan(&self, plan: Plan) -> Result<Permit, Decision> {
        self.0.permit(self.0.guard.decide(plan).made().await).await
    }

    /// Returns a handle that replaces the rules of this limiter and its layers at run time.
    pub fn rules(&self) -> RulesHandle {
        RulesHandle(Arc::clone(&self.0.policies))
    }

    /// Returns the state of the circuit breaker between this limiter and its store, on this instance.
    ///
    /// The call does not contact the store: without requests, nothing probes the store, and the state does not change.
    /// Returns `None` for a Redis Cluster, where each node has its own circuit: see `tower_quota_lost_nodes` in
    /// [`telemetry`](crate::telemetry).
    pub fn circuit(&self) -> Option<CircuitState> {
        self.0.guard.circuit()
    }

    /// Checks that the store can make decisions, and that its settings do not endanger limits. Call this when the
    /// process starts.
    ///
    /// The report contains warnings, for example if a decision takes longer than the
    /// [deadline](crate::LimiterBuilder::deadline). The check ignores the [fallback](crate::LimiterBuilder::fallback),
    /// and affects neither circuit breakers nor caches.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// match limiter.ready(Duration::from_secs(1)).await {
    ///     Ok(report) => report.warnings().for_each(|warning| eprintln!("limits: {warning}")),
    ///     Err(error) => eprintln!("requests may pass unlimited: {error}"),
    /// }
    /// # assert_eq!(limiter.ready(Duration::from_secs(1)).await?.warnings().count(), 0);
    /// # assert!(matches!(limiter.circuit(), Some(tower_quota::CircuitState::Closed)));
    /// # Ok(()) });
    /// ```
    ///
    /// # Redis
    ///
    /// The check covers the Sentinel primary or all cluster nodes. It reads the version, role and eviction policy, runs
    /// each command that scripts use, and makes eight decisions of each kind for a test caller, whose keys it then
    /// deletes. Each decision must see the previous one.
    ///
    /// # Errors
    ///
    /// Returns the error that decisions would fail with: the server is unreachable, too old, a replica or an
    /// active-active database, the store's user lacks permission for a command (named in the message), or several
    /// servers behind one address count separately. Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) after
    /// `timeout`.
    pub async fn ready(&self, timeout: Duration) -> Result<StoreReport, StoreError> {
        let report = self.0.guard.store().ready(timeout).await?;
        let deadline = self.0.guard.deadline();
        Ok(match report.decision_time().filter(|time| *time > deadline) {
            Some(time) => report.with_warning(format!(
                "a decision takes {time:?}, longer than the deadline of {deadline:?}: most requests will be undecided"
            )),
            None => report,
        })
    }

    /// Refunds prefetched units, and waits until all settlements have reached the store.
    ///
    /// Call this last, after the server has stopped and before the runtime ends: see
    /// [shutdown](crate::guide::operation#shutdown).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// // … the server has stopped
    /// if let Err(error) = limiter.flush(Duration::from_secs(5)).await {
    ///     eprintln!("{error}");
    /// }
    /// # assert!(limiter.flush(Duration::from_secs(5)).await.is_ok(), "it can be called again");
    /// # Ok(()) });
    /// ```
    ///
    /// # Requests during the flush
    ///
    /// Requests may still finish during the flush, which waits for their settlements. Unfinished requests keep their
    /// charges and slots. Prefetching is paused, so requests are charged individually. The
    /// [`fallback`](crate::LimiterBuilder::fallback) is flushed, too.
    ///
    /// # Errors
    ///
    /// Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) if calls are still in progress after `timeout`, and
    /// [`Unavailable`](crate::StoreErrorKind::Unavailable) if settlements were lost. The message contains their
    /// number.
    pub async fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        self.0.guard.flush(timeout).await
    }

    pub(crate) fn scope(&self) -> &str {
        self.0.scope()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("scope", &self.scope())
            .field("policies", &self.0.policies)
            .field("circuit", &self.0.guard.circuit())
            .finish_non_exhaustive()
    }
}

//! The limiter: one scope, its rules, and the safeguards around its store. A layer extracts keys and writes responses around it.

mod builder;
mod caller;
mod charge;
mod error;
mod guard;
mod inner;
mod keys;
mod permit;
mod refund;
mod usage;

use std::{sync::Arc, time::Duration};

use self::inner::Inner;
pub use self::{
    builder::LimiterBuilder,
    caller::Caller,
    error::LimiterError,
    guard::FailureMode,
    inner::Limiter,
    keys::MissingKey,
    permit::{Permit, WeakPermit, WithPermit},
    refund::{Refund, RefundOutcome},
};
pub(crate) use self::{
    charge::OpenCharge,
    guard::{DecisionState, Guard, PendingDecision},
    keys::{Attributed, Keys},
};
use crate::{
    breaker::CircuitState,
    decision::{Decision, Plan},
    error::StoreError,
    partition::ToPartitionKey,
    rules::RulesHandle,
    store::StoreReport,
};

impl Limiter {
    /// A caller, known by its main key: what [`key`](crate::RateLimitLayerBuilder::key) extracts from requests, if a layer counts
    /// them, too.
    pub fn caller<K: ToPartitionKey + ?Sized>(&self, key: &K) -> Caller {
        Caller::new(Arc::clone(&self.0), Some(key.to_partition_key()))
    }

    /// A caller that is known by a [named key](LimiterBuilder::named_key) only, so that support staff can look at a
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

    /// Charges a plan of the program's own, with the store and the safeguards of this limiter.
    ///
    /// Use this for a limit that no rules list: a quota from a contract or a database, or a record of what was done before. The
    /// [`Plan`] specifies the policies, the partition and the cost, as for a [`Store`](crate::Store). Take the partition from a
    /// [`Scope`](crate::Scope) of another name than the limiter's, so that no caller has it.
    ///
    /// Rules, the kill switch and the access list do not apply, and no metric counts the decision. The permit works like that of
    /// [`Caller::hold`]: the charge stands unless it is settled or refunded. A cost of 0 reads and charges nothing.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # use tower_quota::Limiter;
    /// # run(async {
    /// # let limiter = Limiter::builder(MemoryStore::new())
    /// #     .scope("exports")
    /// #     .policy(QuotaPolicy::per_day("day", 10))
    /// #     .build()?;
    /// # let exports_of_contract = 2;
    /// // The contract of this customer includes two more.
    /// let contract = PolicySet::new([QuotaPolicy::per_day("contract", exports_of_contract)])?;
    /// let acme = Scope::new("contracts").partition(&PartitionKey::new("customer", "acme"));
    /// let plan = Plan::new(contract, acme, 1);
    ///
    /// let failed = limiter.hold_plan(plan.clone()).await.expect("two are left");
    /// failed.refund();
    /// for left in [1, 0] {
    ///     let export = limiter.hold_plan(plan.clone()).await.expect("one is left");
    ///     assert!(export.decision().allowances().all(|day| day.remaining() == left));
    /// }
    /// let rejected = limiter.hold_plan(plan).await.unwrap_err();
    /// assert_eq!(rejected.outcome(), Outcome::Rejected);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// The decision by which the plan is rejected. A store that gives no decision admits it uncounted, or with
    /// [`FailureMode::Closed`] rejects it.
    pub async fn hold_plan(&self, plan: Plan) -> Result<Permit, Decision> {
        self.0.permit(self.0.guard.decide(plan).made().await).await
    }

    /// A handle that replaces the rules while callers use them, in this limiter and its layers; see [`RulesHandle`].
    pub fn rules(&self) -> RulesHandle {
        RulesHandle(Arc::clone(&self.0.policies))
    }

    /// The state of the circuit breaker between the limiter and its store, on this instance.
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

    /// Finds out within `timeout` whether the store can decide, and what about its servers may cost limits later. Call it when
    /// the process starts: without it, a store that cannot decide is found out by the first requests, which pass unlimited
    /// unless the limiter [fails closed](FailureMode::Closed).
    ///
    /// A Redis is asked on each of its servers, the primary of Sentinel and all nodes of a cluster: for its version, role and
    /// eviction policy, by each command that scripts use, and for eight decisions of every kind about a caller of the call's own,
    /// each of which has to see the one before it. Decisions that take longer than the [deadline](LimiterBuilder::deadline) are a
    /// warning. The caller's keys are deleted. A [`MemoryStore`](crate::MemoryStore) is ready.
    /// The [fallback](LimiterBuilder::fallback) is not asked, and neither circuit nor cache takes notice.
    ///
    /// # Errors
    ///
    /// Returns the error that decisions would have: the server is not reachable, a command is forbidden to the store's user (the
    /// message names it), the server is too old, is a replica or an active-active one, or several servers behind one address
    /// count apart. [`TimedOut`](crate::StoreErrorKind::TimedOut) if there is no result within `timeout`.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .build()?;
    /// match limiter.ready(Duration::from_secs(1)).await {
    ///     Ok(report) => report.warnings().for_each(|warning| eprintln!("limits: {warning}")),
    ///     Err(error) => eprintln!("requests may pass unlimited: {error}"),
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn ready(&self, timeout: Duration) -> Result<StoreReport, StoreError> {
        let report = self.0.guard.store().ready(timeout).await?;
        let deadline = self.0.guard.deadline();
        Ok(match report.decision_time().filter(|time| *time > deadline) {
            Some(time) => report.with_warning(format!(
                "a decision takes {time:?}, and the deadline is {deadline:?}: most requests will not be decided"
            )),
            None => report,
        })
    }

    /// Returns prefetched units and waits until the store has all settlements, at most for `timeout`.
    ///
    /// Call it last, after the server has stopped and before the runtime ends: the guide has the
    /// [whole shutdown](crate::guide#shutdown). Without it, refunds and released slots that are on their way to Redis when
    /// the process exits are lost: callers stay overcharged, and slots stay taken until their lease ends.
    ///
    /// Requests may still finish meanwhile: their settlements are waited for, and they are charged one by one, without
    /// prefetching. A request that has not finished keeps its charge and its slots. The limiter works on afterwards, and
    /// the call may be repeated. With a [`fallback`](LimiterBuilder::fallback), both stores are flushed. A program with several
    /// limiters calls it for each, at the same time.
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

use std::{fmt, sync::Arc};

use super::{
    guard::Guard,
    keys::{Attributed, Keys},
};
use crate::{
    access::AccessList,
    decision::{Decision, Outcome, Plan},
    rules::{Policies, QuotaSet, Selection},
    telemetry::{self, LayerTelemetry},
};

/// A rate limiter for the callers of one scope.
///
/// A limiter limits the requests of a service through a [`RateLimitLayer`](crate::RateLimitLayer), and any other work
/// directly: jobs, WebSocket messages, calls to a partner API. Create a limiter with [`builder`](Self::builder) and
/// layers with [`with_limiter`](crate::RateLimitLayer::with_limiter), or get the limiter of a layer from
/// [`limiter`](crate::RateLimitLayer::limiter). Clones share all state.
///
/// [`check`](Self::check) is protected by the deadline, circuit breaker, rejection cache and fallback, and metrics
/// count its decisions. Administrative methods of [`Caller`](crate::Caller), such as [`peek`](crate::Caller::peek) and
/// [`reset`](crate::Caller::reset), call the store directly: wrap them in a timeout, and protect routes that expose
/// them.
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

pub(crate) struct Inner {
    pub(crate) keys: Keys,
    pub(crate) policies: Arc<Policies>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) access_list: Option<AccessList>,
    pub(super) log: LayerTelemetry,
}

impl Limiter {
    pub(crate) fn scope(&self) -> &str {
        self.0.scope()
    }
}

impl Inner {
    #[inline]
    pub(crate) fn scope(&self) -> &str {
        &self.keys.scope_name
    }

    /// Contains no custom units.
    #[inline]
    pub(crate) fn plan(
        &self,
        set: &QuotaSet,
        cost: u64,
        mut holder: impl FnMut(Option<usize>) -> Attributed,
    ) -> Result<Plan, Outcome> {
        let mut plan = None;
        for part in &set.parts {
            if let Some(holder) = holder(part.key)? {
                plan = Some(holder.extend(plan, &part.policies, cost));
            }
        }
        plan.ok_or(Outcome::Unlimited)
    }

    #[inline]
    pub(crate) fn log_decision(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        log.decided(self.scope(), selection.tier(), decision);
        let tells_more = selection.set.as_ref().is_some_and(|set| set.has_shadows_or_overages);
        if tells_more && decision.outcome().is_admitted() {
            self.log_shadows_and_overages(log, decision, selection);
        }
    }

    fn log_shadows_and_overages(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        for over in decision.over_quota() {
            let (now, policy) = (telemetry::now(), over.policy().name());
            log.over_quota(now, self.scope(), selection.tier(), policy);
        }
        for would_reject in decision.shadow_violated() {
            let (now, policy) = (telemetry::now(), would_reject.policy().name());
            log.would_reject(now, self.scope(), selection.tier(), policy);
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("scope", &self.scope())
            .field("policies", &self.0.policies)
            .field("guard", &self.0.guard)
            .finish_non_exhaustive()
    }
}

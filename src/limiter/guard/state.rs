use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    config::GuardConfig,
    fallback::{Fallback, Local},
    guarded::GuardedStore,
    prefetch::Prefetch,
    rejection_cache::RejectionCache,
    waiters::WaiterLimit,
};
use crate::{
    breaker::{Breaker, CircuitState},
    clock::{Clock, Timestamp},
    decision::{Charged, Decision, Plan, PlanRef, Settlement},
    store::{Store, StoreFuture, memory::MemoryStore},
    telemetry::{OneMore, StoreTelemetry},
};

/// A store call can fail, but a decision is always made.
pub(crate) struct Guard {
    pub(super) fallback: Fallback,
    pub(super) waiters: Arc<WaiterLimit>,
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) cache: Arc<RejectionCache>,
    /// Has one receiver per decision that outlives its cancelled request.
    pub(super) cancelled: watch::Sender<()>,
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
    pub(super) log: Arc<StoreTelemetry>,
    /// `None` if something else, such as a fallback, decides in its place.
    memory: Option<MemoryStore>,
}

impl Guard {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        fallback: Option<Arc<dyn Store>>,
        config: GuardConfig,
        clock: Clock,
        scope: &str,
    ) -> Self {
        let memory = store.as_memory().filter(|_| fallback.is_none()).cloned();
        let log = Arc::new(StoreTelemetry::new(scope, store.traits().identity()));
        let guarded = GuardedStore::new(store, clock.clone(), Arc::clone(&log));
        let cache = RejectionCache::new(guarded, config.rejection_cache, clock.clone(), Arc::clone(&log));
        let (cache, waiters) = (Arc::new(cache), Arc::new(WaiterLimit::new(config.max_waiting)));
        Self {
            fallback: Fallback {
                store: fallback,
                mode: config.failure_mode,
                time: config.deadline,
                waiters: Arc::clone(&waiters),
                clock: clock.clone(),
                log: Arc::clone(&log),
                local: Local::default(),
            },
            waiters,
            prefetch: Arc::new(Prefetch::new(Arc::clone(&cache), config.deadline, clock.clone())),
            cache,
            cancelled: watch::Sender::default(),
            deadline: config.deadline,
            clock,
            log,
            memory,
        }
    }

    /// A store in memory cannot fail, so no safeguard is needed. Charges nothing if it returns `None`, because a plan
    /// is needed.
    #[inline]
    pub(crate) fn charge(&self, plan: &PlanRef<'_>) -> Option<Charged> {
        let charged = self.memory.as_ref()?.charge(plan)?;
        self.log.answered_at_once();
        Some(charged)
    }

    /// Settles with the store that made the charge, in the background.
    pub(crate) fn settle(&self, decision: &Decision, settlement: Settlement) {
        if settlement.is_empty() {
            return;
        }
        drop(match self.fallback.store_of(decision) {
            Some(fallback) => fallback.settle(settlement),
            None => match decision.plan() {
                Some(plan) => self.settle_plan(plan, settlement),
                None => self.cache.settle(settlement),
            },
        });
    }

    /// Also refunds or charges units without a decision.
    pub(crate) fn settle_plan(&self, plan: &Plan, settlement: Settlement) -> StoreFuture<()> {
        if plan.batch_terms().is_some() {
            self.prefetch.charged_late(plan, settlement.late_units());
        }
        self.cache.settle(settlement)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn circuit(&self) -> Option<CircuitState> {
        self.cache.store.breaker.as_ref().map(Breaker::state)
    }

    /// The main store, without fault tolerance.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.cache.store.bare
    }

    pub(crate) fn used(&self, unit: &str, expected: u64, used: u64) {
        self.log.units(unit, expected, used);
    }

    /// Counts the request until the returned value is dropped.
    pub(crate) fn slots_held(&self, decision: &Decision) -> Option<OneMore> {
        decision.holds_slots().then(|| self.log.slots_held())
    }
}

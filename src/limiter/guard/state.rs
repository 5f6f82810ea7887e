//! The parts of a guard, which decisions in progress share.

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
    decision::{Decision, Settlement},
    store::{Store, StoreFuture},
    telemetry::{HeldSlots, StoreTelemetry},
};

/// Turns a store, which may fail, into decisions, which may not.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(super) fallback: Fallback,
    pub(super) waiters: Arc<WaiterLimit>,
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) cache: Arc<RejectionCache>,
    /// Has a receiver for each decision that is under way and whose request was cancelled.
    pub(super) cancelled: watch::Sender<()>,
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
    pub(super) log: Arc<StoreTelemetry>,
}

impl Guard {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        fallback: Option<Arc<dyn Store>>,
        config: GuardConfig,
        clock: Clock,
        scope: &str,
    ) -> Self {
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
        }
    }

    /// Has the store that decided settle what it has charged. No request waits for it.
    pub(crate) fn settle(&self, decision: &Decision, settlement: Settlement) {
        if settlement.is_empty() {
            return;
        }
        drop(match self.fallback.store_of(decision) {
            Some(fallback) => fallback.settle(settlement),
            None => self.cache.settle(settlement),
        });
    }

    /// Gives units back that no decision of this instance has charged.
    pub(crate) fn give_back(&self, refund: Settlement) -> StoreFuture<()> {
        self.cache.settle(refund)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The time by the layer's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The state of the circuit breaker; `None` for a store of several servers, each of which has its own.
    pub(crate) fn circuit(&self) -> Option<CircuitState> {
        self.cache.store.breaker.as_ref().map(Breaker::state)
    }

    /// The store that decides, without its safeguards.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.cache.store.bare
    }

    /// Counts what a request was expected to use of a unit of the program's own, and what it has used.
    pub(crate) fn used(&self, unit: &str, expected: u64, used: u64) {
        self.log.units(unit, expected, used);
    }

    /// Counts a request that holds slots for as long as it keeps what is returned.
    pub(crate) fn slots_held(&self, decision: &Decision) -> Option<HeldSlots> {
        decision.holds_slots().then(|| self.log.slots_held())
    }
}

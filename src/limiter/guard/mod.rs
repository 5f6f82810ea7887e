//! The safeguards around any store. Each is around the next one, from the outside to the inside:
//!
//! | safeguard | module | answers in |
//! |---|---|---|
//! | fallback, and the failure mode | `fallback` | decisions, always |
//! | prefetched units | `prefetch` | decisions, or an error of the store |
//! | rejection cache | `rejection_cache` | the same |
//! | circuit breaker and deadline | `guarded` | measurements, or an error of the store |
//!
//! A safeguard asks in two steps, `begin` and `finish`: a store that answers at once costs neither an allocation nor a task.
//! A request that waits has a permit (`waiters`), and its decision is made also when it is cancelled (`pending`).

mod config;
mod fallback;
mod guarded;
mod pending;
mod prefetch;
mod rejection_cache;
#[cfg(test)]
mod tests;
mod waiters;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

pub use self::fallback::FailureMode;
pub(crate) use self::{config::GuardConfig, pending::PendingDecision};
use self::{
    fallback::{Fallback, Local},
    guarded::GuardedStore,
    prefetch::Prefetch,
    rejection_cache::RejectionCache,
    waiters::WaiterLimit,
};
use crate::{
    breaker::{Breaker, CircuitState},
    clock::{Clock, Timestamp},
    decision::{Cached, Decision, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
    store::{Store, StoreFuture},
    sync::last_turn,
    telemetry::{HeldSlots, StoreTelemetry},
};

/// Turns a store, which may fail, into decisions, which may not.
#[derive(Debug)]
pub(crate) struct Guard {
    fallback: Fallback,
    waiters: Arc<WaiterLimit>,
    prefetch: Arc<Prefetch>,
    cache: Arc<RejectionCache>,
    /// Has a receiver for each decision that is under way and whose request was cancelled.
    cancelled: watch::Sender<()>,
    deadline: Duration,
    clock: Clock,
    log: Arc<StoreTelemetry>,
}

/// A decision, now or later.
pub(crate) enum DecisionState {
    Decided(Decision),
    Pending(PendingDecision),
}

impl DecisionState {
    pub(crate) async fn made(self) -> Decision {
        match self {
            Self::Decided(decision) => decision,
            Self::Pending(decision) => decision.await,
        }
    }
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

    /// Decides a plan, at once if no call is needed. A decision that has to be waited for is there by the deadline, which
    /// begins when the request begins to wait.
    pub(crate) fn decide(self: &Arc<Self>, plan: Plan) -> DecisionState {
        if plan.is_closed() {
            return DecisionState::Decided(Decision::of_cache(Cached::closed(plan, self.clock.now())));
        }
        let prefetch = plan.batch_terms();
        let at_once = match prefetch {
            Some(terms) => self.prefetch.spend(&plan, terms).ok_or(plan),
            None => self.cache.reject(plan),
        };
        let plan = match at_once {
            Ok(decision) => return DecisionState::Decided(decision),
            Err(plan) => plan,
        };
        let spare = self.fallback.spare(&plan);
        if self.waiters.is_full() {
            return self.decide_without_store(spare, &self.waiters.overloaded());
        }
        if let Some(terms) = prefetch {
            let guard = Arc::clone(self);
            let decision = async move {
                let deadline = Instant::now() + guard.deadline;
                let decided = guard.prefetch.decide(plan, terms, deadline).await;
                guard.or_without_store(decided, spare).await
            };
            return PendingDecision::begin(self, decision);
        }
        match self.cache.begin(plan, self.deadline) {
            Ok(Ok(decision)) => DecisionState::Decided(decision),
            Ok(Err(error)) => self.decide_without_store(spare, &error),
            Err(call) => {
                let guard = Arc::clone(self);
                let decision = async move {
                    let deadline = Instant::now() + guard.deadline;
                    let decided = guard.cache.finish(call, deadline).await;
                    guard.or_without_store(decided, spare).await
                };
                DecisionState::Pending(PendingDecision::new(self, decision))
            }
        }
    }

    /// A request without a place waits for the fallback only if a place is free.
    fn decide_without_store(self: &Arc<Self>, spare: Option<Plan>, error: &StoreError) -> DecisionState {
        match self.fallback.begin(spare, error) {
            Ok(decision) => DecisionState::Decided(decision),
            Err(_) if self.waiters.is_full() => DecisionState::Decided(self.fallback.failed(error)),
            Err(answer) => {
                let (guard, error) = (Arc::clone(self), error.clone());
                let decision = async move { guard.fallback.finish(answer, &error).await };
                DecisionState::Pending(PendingDecision::new(self, decision))
            }
        }
    }

    async fn or_without_store(&self, decided: Result<Decision, StoreError>, spare: Option<Plan>) -> Decision {
        let error = match decided {
            Ok(decision) => return decision,
            Err(error) => error,
        };
        match self.fallback.begin(spare, &error) {
            Ok(decision) => decision,
            Err(answer) => Box::pin(self.fallback.finish(answer, &error)).await,
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

    /// Forgets what a plan's partitions have used, and what this instance has prefetched and cached of them.
    pub(crate) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        self.prefetch.reset(plan).await
    }

    /// Gives prefetched units back, and waits until the stores have what was settled.
    pub(crate) async fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        let begun = Instant::now();
        let _flushing = self.prefetch.pause();
        // Slots that a cancelled decision has taken become free when it is made.
        let own = async {
            self.prefetch.flush().await;
            self.cancelled.closed().await;
        };
        let is_over = last_turn::ends_within(timeout, own).await;
        let calls = self.prefetch.fetches() + self.cancelled.receiver_count();
        let own = match is_over {
            true => Ok(()),
            false => Err(StoreError::new(
                StoreErrorKind::TimedOut,
                format!("decisions under way: {calls}"),
            )),
        };
        let left = timeout.saturating_sub(begun.elapsed());
        let store = self.cache.store.bare.flush(left);
        let fallback = self.fallback.flush(left);
        let [store, fallback] = both([store, fallback]).await;
        let errors = [own, store, fallback].into_iter().filter_map(Result::err);
        errors.reduce(StoreError::beside).map_or(Ok(()), Err)
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

/// Waits for both, neither of which waits for the other.
async fn both(mut futures: [StoreFuture<()>; 2]) -> [Result<(), StoreError>; 2] {
    let mut results = [None, None];
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = Pin::new(future).poll(cx)
            {
                *result = Some(ready);
            }
        }
        match &mut results {
            [Some(_), Some(_)] => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    results.map(|result| result.unwrap_or(Ok(())))
}

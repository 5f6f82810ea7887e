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
mod state;
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

use tokio::time::Instant;

pub use self::fallback::FailureMode;
pub(crate) use self::{
    config::GuardConfig,
    pending::{DecisionState, PendingDecision},
    state::Guard,
};
use crate::{
    decision::{Cached, Decision, Plan},
    error::{StoreError, StoreErrorKind},
    store::StoreFuture,
    sync::last_turn,
};

impl Guard {
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

//! The safeguards of `docs/DESIGN.md`, from the outermost to the innermost: fallback and failure mode, prefetching,
//! rejection cache, circuit breaker and deadline.
//!
//! Store calls are split into a synchronous `begin` and an asynchronous `finish`, so that a store that completes
//! immediately needs neither an allocation nor a task.

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

use std::{sync::Arc, time::Duration};

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
    sync::{deadline, join::all_of},
};

impl Guard {
    /// The deadline begins when the request starts to wait, and that of a slow fallback when the main store has failed.
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

    /// At the waiter limit, the failure mode applies instead of an asynchronous fallback.
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

    /// Also discards this instance's prefetched batches and cached rejections.
    pub(crate) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        self.prefetch.reset(plan).await
    }

    pub(crate) async fn flush(&self, timeout: Duration) -> Result<(), StoreError> {
        let begun = Instant::now();
        let _flushing = self.prefetch.pause();
        // Slots acquired by cancelled requests are released when their decisions complete.
        let own = async {
            self.prefetch.flush().await;
            self.cancelled.closed().await;
        };
        let is_over = deadline::ends_within(timeout, own).await;
        let calls = self.prefetch.fetches() + self.cancelled.receiver_count();
        let own = match is_over {
            true => Ok(()),
            false => Err(StoreError::new(
                StoreErrorKind::TimedOut,
                format!("decisions in progress: {calls}"),
            )),
        };
        let left = timeout.saturating_sub(begun.elapsed());
        let store = self.cache.store.bare.flush(left);
        let fallback = self.fallback.flush(left);
        let results = std::iter::once(own).chain(all_of([store, fallback]).await);
        let errors = results.filter_map(Result::err);
        errors.reduce(StoreError::beside).map_or(Ok(()), Err)
    }
}

//! What stands around any store: circuit breaker → deadline → store → fallback, and what happens when all of that fails.

mod breaker;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use self::breaker::{Admission, Breaker};
use crate::{
    clock::Clock,
    decision::{Decision, Outcome},
    error::{StoreError, StoreErrorKind},
    plan::Plan,
    store::{AcquireFuture, Store},
    telemetry::UndecidedLog,
};

/// What happens to a request when the store gives no decision: it is down, too slow, or answers with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Refuse it with status 503 and the problem type `temporary-reduced-capacity`. For routes where an uncounted request is worse
    /// than a failed one: logins, payments.
    Closed,
    /// Pass it on, uncounted and without `RateLimit` fields. The default: an outage of the limiter is not one of the service.
    #[default]
    Open,
}

/// Turns a store, which may fail, into decisions, which may not.
#[derive(Debug)]
pub(crate) struct Guard {
    store: Arc<dyn Store>,
    fallback: Option<Arc<dyn Store>>,
    failure_mode: FailureMode,
    deadline: Duration,
    breaker: Breaker,
    clock: Clock,
    log: UndecidedLog,
}

/// A decision, now or later.
pub(crate) enum Deciding {
    Decided(Decision),
    Waiting(Pin<Box<dyn Future<Output = Decision> + Send>>),
}

impl Guard {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        fallback: Option<Arc<dyn Store>>,
        failure_mode: FailureMode,
        deadline: Duration,
        clock: Clock,
    ) -> Self {
        let (breaker, log) = (Breaker::new(clock.clone()), UndecidedLog::default());
        Self {
            store,
            fallback,
            failure_mode,
            deadline,
            breaker,
            clock,
            log,
        }
    }

    /// Decides a plan within the deadline, and at once while the circuit is open.
    pub(crate) fn decide(self: &Arc<Self>, plan: Plan) -> Deciding {
        let admission = self.breaker.admit();
        if matches!(admission, Admission::Refused) {
            let error = StoreError::new(StoreErrorKind::CircuitOpen, "the store was not asked");
            return self.without_store(Some(plan), &error);
        }
        let spare = self.fallback.is_some().then(|| plan.clone());
        match self.store.acquire(plan).into_ready() {
            Ok(result) => {
                self.breaker.record(admission, &result);
                match result {
                    Ok(decision) => Deciding::Decided(decision),
                    Err(error) => self.without_store(spare, &error),
                }
            }
            Err(pending) => {
                let guard = Arc::clone(self);
                Deciding::Waiting(Box::pin(async move { guard.wait(pending, admission, spare).await }))
            }
        }
    }

    async fn wait(self: Arc<Self>, pending: AcquireFuture, admission: Admission, spare: Option<Plan>) -> Decision {
        let result = tokio::time::timeout(self.deadline, pending).await.unwrap_or_else(|_| {
            let message = format!("no decision within {:?}", self.deadline);
            Err(StoreError::new(StoreErrorKind::TimedOut, message))
        });
        self.breaker.record(admission, &result);
        match result {
            Ok(decision) => decision,
            Err(error) => match self.without_store(spare, &error) {
                Deciding::Decided(decision) => decision,
                Deciding::Waiting(fallback) => fallback.await,
            },
        }
    }

    fn without_store(&self, plan: Option<Plan>, error: &StoreError) -> Deciding {
        self.log.record(self.clock.now(), error);
        let failed = Decision::unmeasured(match self.failure_mode {
            FailureMode::Closed => Outcome::FailedClosed,
            FailureMode::Open => Outcome::FailedOpen,
        });
        let (Some(fallback), Some(plan)) = (&self.fallback, plan) else {
            return Deciding::Decided(failed);
        };
        match fallback.acquire(plan).into_ready() {
            Ok(result) => Deciding::Decided(result.unwrap_or(failed)),
            Err(pending) => {
                let deadline = self.deadline;
                Deciding::Waiting(Box::pin(async move {
                    match tokio::time::timeout(deadline, pending).await {
                        Ok(Ok(decision)) => decision,
                        Ok(Err(_)) | Err(_) => failed,
                    }
                }))
            }
        }
    }
}

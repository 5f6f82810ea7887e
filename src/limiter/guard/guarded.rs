use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    breaker::{Admission, Breaker, CircuitTelemetry},
    clock::{Clock, Timestamp},
    decision::{Measurement, Plan},
    error::{StoreError, StoreErrorKind},
    store::{BoxedAnswer, Store},
    sync::deadline::{self, Late},
    telemetry::{self, StoreTelemetry},
};

pub(super) struct GuardedStore {
    /// For calls other than decisions.
    pub(super) bare: Arc<dyn Store>,
    /// A breaker shared by several servers would also block calls to the healthy ones.
    pub(super) breaker: Option<Breaker>,
    clock: Clock,
    log: Arc<StoreTelemetry>,
}

pub(super) struct StoreCall {
    answer: BoxedAnswer<Measurement>,
    admission: Option<Admission>,
    time: Duration,
    asked: Option<Timestamp>,
}

/// The store may still have made the decision.
pub(super) struct LateCall {
    pub(super) error: StoreError,
    pub(super) answer: BoxedAnswer<Measurement>,
}

impl GuardedStore {
    pub(super) fn new(store: Arc<dyn Store>, clock: Clock, log: Arc<StoreTelemetry>) -> Self {
        let breaker = || Breaker::new(clock.clone(), Arc::clone(&log) as Arc<dyn CircuitTelemetry>);
        Self {
            breaker: (!store.traits().has_own_breakers()).then(breaker),
            bare: store,
            clock,
            log,
        }
    }

    #[inline]
    pub(super) fn begin(&self, plan: Plan, time: Duration) -> Result<Result<Measurement, StoreError>, StoreCall> {
        let admission = self.breaker.as_ref().map(Breaker::admit);
        if matches!(admission, Some(Admission::Rejected)) {
            let error = StoreError::new(StoreErrorKind::CircuitOpen, "the store was not called");
            return Ok(Err(error));
        }
        match self.bare.acquire(plan.within(time)).into_ready() {
            Ok(answer) => {
                self.log.answered_at_once();
                if let (Some(breaker), Some(admission)) = (&self.breaker, admission) {
                    breaker.record_at_once(admission, answer.as_ref().err());
                }
                Ok(answer)
            }
            Err(answer) => Err(StoreCall {
                answer,
                admission,
                time,
                asked: telemetry::stopwatch(&self.clock),
            }),
        }
    }

    pub(super) async fn finish(&self, call: StoreCall, deadline: Instant) -> Result<Measurement, StoreError> {
        let answer = self.finish_or_keep(call, deadline).await;
        answer.unwrap_or_else(|late| Err(late.error))
    }

    /// Lets the caller keep waiting for a late answer.
    pub(super) async fn finish_or_keep(
        &self,
        mut call: StoreCall,
        deadline: Instant,
    ) -> Result<Result<Measurement, StoreError>, LateCall> {
        let in_time = self.within(deadline, &mut call.answer).await;
        let answer = in_time.map_err(|late| late.error(format!("no decision within {:?}", call.time)));
        self.log.answered(call.asked, &self.clock);
        if let (Some(breaker), Some(admission)) = (&self.breaker, call.admission) {
            let error = answer.as_ref().map_or_else(Some, |answer| answer.as_ref().err());
            breaker.record(admission, error);
        }
        answer.map_err(|error| LateCall {
            error,
            answer: call.answer,
        })
    }

    pub(super) async fn within<T>(&self, deadline: Instant, result: impl Future<Output = T>) -> Result<T, Late> {
        let silence = async || self.bare.silence().await.ok().flatten();
        deadline::within(deadline, result, silence).await
    }
}

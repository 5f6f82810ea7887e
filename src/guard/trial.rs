//! The call by which an open circuit tries the store, apart from the request that makes it.
//!
//! All others wait for its end. So it must not depend on whether its own request is given up, which may be what somebody
//! wants who lives well without limits, nor on whether anybody polls that any more.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{Guard, UnderWay};
use crate::{
    breaker::Admission,
    decision::Decision,
    error::{StoreError, StoreErrorKind},
    settlement::Settlement,
};

type Answer = Result<Decision, StoreError>;

/// Where a call goes on apart from its request: nowhere if it is no trial.
pub(super) fn runtime(call: &UnderWay) -> Option<Handle> {
    match call.admission {
        Admission::HalfOpen(_) => Handle::try_current().ok(),
        Admission::Closed { .. } | Admission::Refused => None,
    }
}

/// Has a task finish a call.
pub(super) fn begin(
    runtime: &Handle,
    guard: &Arc<Guard>,
    call: UnderWay,
    deadline: Duration,
) -> impl Future<Output = Answer> + Send + use<> {
    let guard = Arc::clone(guard);
    let trial = runtime.spawn(async move {
        let answer = guard.finish(call, deadline).await;
        Unclaimed {
            guard,
            answer: Some(answer),
        }
    });
    async move { trial.await.ok().and_then(Unclaimed::claim).unwrap_or_else(given_up) }
}

fn given_up() -> Answer {
    Err(StoreError::new(
        StoreErrorKind::Unavailable,
        "the runtime of the call has ended",
    ))
}

/// An answer for a request that may have been given up: what it has charged, and the slots that it holds, go back then.
struct Unclaimed {
    guard: Arc<Guard>,
    answer: Option<Answer>,
}

impl Unclaimed {
    fn claim(mut self) -> Option<Answer> {
        self.answer.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(Ok(decision)) = &self.answer {
            self.guard.settle(decision, Settlement::unused(decision));
        }
    }
}

//! The call by which an open circuit tries the store.
//!
//! All others wait for its end. So it goes on when its own request is given up, which may be what somebody wants who
//! lives well without limits.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{Guard, UnderWay};
use crate::{breaker::Admission, decision::Decision, error::StoreError, settlement::Settlement};

type Answer = Result<Decision, StoreError>;

/// A call that goes on in a task when it is dropped: what it charges, and the slots that it takes, go back then.
pub(super) struct Trial {
    guard: Arc<Guard>,
    /// None once it is answered.
    answer: Option<Pin<Box<dyn Future<Output = Answer> + Send>>>,
}

/// Whether a call is the one that tries.
pub(super) fn is_trial(call: &UnderWay) -> bool {
    matches!(call.admission, Admission::HalfOpen(_))
}

impl Trial {
    pub(super) fn new(guard: &Arc<Guard>, call: UnderWay, deadline: Duration) -> Self {
        let asking = Arc::clone(guard);
        Self {
            guard: Arc::clone(guard),
            answer: Some(Box::pin(async move { asking.finish(call, deadline).await })),
        }
    }
}

impl Future for Trial {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let Some(answer) = &mut self.answer else {
            return Poll::Pending;
        };
        let answer = ready!(answer.as_mut().poll(cx));
        self.answer = None;
        Poll::Ready(answer)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take()
            && let Ok(runtime) = Handle::try_current()
        {
            let guard = Arc::clone(&self.guard);
            drop(runtime.spawn(async move {
                if let Ok(decision) = answer.await {
                    guard.settle(&decision, Settlement::unused(&decision));
                }
            }));
        }
    }
}

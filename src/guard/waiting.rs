//! A decision that has to be waited for. It runs to its end also when its request is cancelled.
//!
//! The answer is of use to others: the circuit breaker may wait for it, a rejection is cached, and slots that it takes
//! become free. And the request stays charged: a client could otherwise ask for as much as it likes and pay nothing, if
//! it only cancels each request before the store has answered.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

use super::Guard;
use crate::exchange::{Decision, Settlement};

/// A decision that is not there yet.
pub(crate) struct Waiting {
    /// None once it was there.
    decision: Option<Pin<Box<dyn Future<Output = Decision> + Send>>>,
    guard: Arc<Guard>,
    /// Whether the store may have been asked.
    has_begun: bool,
}

impl Waiting {
    pub(super) fn new(guard: &Arc<Guard>, decision: impl Future<Output = Decision> + Send + 'static) -> Self {
        Self {
            decision: Some(Box::pin(decision)),
            guard: Arc::clone(guard),
            has_begun: false,
        }
    }
}

impl Future for Waiting {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        self.has_begun = true;
        // Not there while it is polled: one that panics is not to be polled again.
        let mut waiting = self.decision.take().expect("polled after it was ready");
        let decision = waiting.as_mut().poll(cx);
        if decision.is_pending() {
            self.decision = Some(waiting);
        }
        decision
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.has_begun
            && let Some(waiting) = self.decision.take()
            && let Ok(runtime) = Handle::try_current()
        {
            let guard = Arc::clone(&self.guard);
            drop(runtime.spawn(async move {
                let decision = waiting.await;
                guard.settle(&decision, Settlement::cancelled(&decision));
            }));
        }
    }
}

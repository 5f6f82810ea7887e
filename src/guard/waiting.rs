//! A decision that has to be waited for. What the store is asked goes on when the request is given up.
//!
//! How a call ends is of use to others, whatever becomes of the request: a circuit may be waiting for it, a refusal can
//! be remembered, and what was charged for a request that is not served is known and goes back. And whoever gives up all
//! of its requests, which may be what somebody wants who lives well without limits, does not look like a store that does
//! not answer.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

use super::Guard;
use crate::{decision::Decision, settlement::Settlement};

/// A decision that is not there yet.
pub(crate) struct Waiting {
    /// None once it was there.
    decision: Option<Pin<Box<dyn Future<Output = Decision> + Send>>>,
    /// If the decision goes on in a task when this is dropped, who gives back what it charges, and the slots that it takes.
    guard: Option<Arc<Guard>>,
    /// Whether anybody may have been asked.
    has_begun: bool,
}

impl Waiting {
    /// A decision that goes on when its request is given up.
    pub(super) fn to_the_end(guard: &Arc<Guard>, decision: impl Future<Output = Decision> + Send + 'static) -> Self {
        let mut waiting = Self::with_its_request(decision);
        waiting.guard = Some(Arc::clone(guard));
        waiting
    }

    /// A decision that ends when its request is given up; others see to whatever is under way.
    pub(super) fn with_its_request(decision: impl Future<Output = Decision> + Send + 'static) -> Self {
        Self {
            decision: Some(Box::pin(decision)),
            guard: None,
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
            && let Some(guard) = self.guard.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(async move {
                let decision = waiting.await;
                guard.settle(&decision, Settlement::unused(&decision));
            }));
        }
    }
}

//! A decision that waits for a store completes even if its request is cancelled.
//!
//! Otherwise, the answer would be lost, which the circuit breaker and the rejection cache need, and which reveals the
//! acquired slots. Clients could also avoid charges by cancelling every request.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;
use tracing::instrument::Instrumented;

use super::state::Guard;
use crate::decision::{Decision, Settlement};

/// Moving a large future several times would be slow.
type BoxedDecision = Instrumented<Pin<Box<dyn Future<Output = Decision> + Send>>>;

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

pub(crate) struct PendingDecision {
    decision: Option<(BoxedDecision, WaiterPermit)>,
    has_begun: bool,
}

impl PendingDecision {
    pub(super) fn new(guard: &Arc<Guard>, decision: impl Future<Output = Decision> + Send + 'static) -> Self {
        Self {
            decision: Some((guard.log.waiting(Box::pin(decision)), WaiterPermit::take(guard))),
            has_begun: false,
        }
    }

    /// An in-process store does not count against the waiter limit.
    pub(super) fn begin(
        guard: &Arc<Guard>,
        decision: impl Future<Output = Decision> + Send + 'static,
    ) -> DecisionState {
        let mut decision: BoxedDecision = guard.log.waiting(Box::pin(decision));
        match Pin::new(&mut decision).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => DecisionState::Decided(decision),
            Poll::Pending => DecisionState::Pending(Self {
                decision: Some((decision, WaiterPermit::take(guard))),
                has_begun: true,
            }),
        }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        self.has_begun = true;
        // Not put back on panic, because a panicked future must not be polled again.
        let (mut pending, place) = self.decision.take().expect("polled after completion");
        let decision = Pin::new(&mut pending).poll(cx);
        if decision.is_pending() {
            self.decision = Some((pending, place));
        }
        decision
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        if self.has_begun
            && let Some((pending, place)) = self.decision.take()
            && let Ok(runtime) = Handle::try_current()
        {
            let under_way = place.guard().cancelled.subscribe();
            drop(runtime.spawn(async move {
                let decision = pending.await;
                place.guard().settle(&decision, Settlement::cancelled(&decision));
                drop(under_way);
            }));
        }
    }
}

struct WaiterPermit(Arc<Guard>);

impl WaiterPermit {
    fn take(guard: &Arc<Guard>) -> Self {
        guard.waiters.take();
        Self(Arc::clone(guard))
    }

    fn guard(&self) -> &Arc<Guard> {
        &self.0
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.waiters.release();
    }
}

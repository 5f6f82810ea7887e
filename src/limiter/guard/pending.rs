//! A decision that has to be waited for. It runs to its end also when its request is cancelled.
//!
//! The answer is of use to others: the circuit breaker may wait for it, a rejection is cached, and slots that it takes
//! become free. And the request stays charged: otherwise a client could cancel each request before the store has answered,
//! and would pay for none of them.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;

use super::state::Guard;
use crate::{
    decision::{Decision, Settlement},
    telemetry::InSpan,
};

/// The future is on the heap from where it is made: it goes through many hands.
type BoxedDecision = InSpan<Pin<Box<dyn Future<Output = Decision> + Send>>>;

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

/// A decision that is not there yet.
pub(crate) struct PendingDecision {
    /// `None` once it was there.
    decision: Option<(BoxedDecision, WaiterPermit)>,
    /// True once the store may have been asked.
    has_begun: bool,
}

impl PendingDecision {
    pub(super) fn new(guard: &Arc<Guard>, decision: impl Future<Output = Decision> + Send + 'static) -> Self {
        Self {
            decision: Some((guard.log.waiting(Box::pin(decision)), WaiterPermit::take(guard))),
            has_begun: false,
        }
    }

    /// Begins the decision. A store in this process answers at once, and takes no place.
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
        // Taken out while it is polled: one that panics is not to be polled again.
        let (mut pending, place) = self.decision.take().expect("polled after it was ready");
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

/// The place of one request, until it is dropped.
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

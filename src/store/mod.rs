//! Where quota is kept: in this process, or in a Redis that several instances share.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{decision::Decision, error::StoreError, plan::Plan};

/// Where quota is kept. Decides a whole [`Plan`] at once: every policy is charged, or none.
///
/// The crate brings [`MemoryStore`](crate::MemoryStore) for one process and `RedisStore` for many. Implement
/// the trait to wrap one of them: to count calls, to inject faults, to route partitions to different servers. A
/// store of another kind cannot be written yet, since only the crate's own stores can make a measured [`Decision`].
///
/// An error is not a refusal: it says that nothing was decided, and the layer's [`FailureMode`](crate::FailureMode)
/// says what happens then. A store need not keep time itself; the layer gives each call a deadline and drops it
/// afterwards.
///
/// ```
/// use tower_quota::{AcquireFuture, MemoryStore, Plan, Store, StoreError, StoreErrorKind};
///
/// /// Fails for one partition in sixteen: what would your service do?
/// #[derive(Debug)]
/// struct Flaky(MemoryStore);
///
/// impl Store for Flaky {
///     fn acquire(&self, plan: Plan) -> AcquireFuture {
///         if plan.partition().to_bytes()[0] < 16 {
///             return AcquireFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "injected")));
///         }
///         self.0.acquire(plan)
///     }
/// }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides the plan, and charges it if it is allowed.
    ///
    /// When the future is dropped before it is ready, the charge may or may not have been made: it is never repeated.
    fn acquire(&self, plan: Plan) -> AcquireFuture;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        (**self).acquire(plan)
    }
}

/// The future of [`Store::acquire`]: ready at once, without an allocation, or boxed.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture(State);

type AcquireResult = Result<Decision, StoreError>;

enum State {
    Boxed(Pin<Box<dyn Future<Output = AcquireResult> + Send>>),
    Ready(Option<AcquireResult>),
}

impl AcquireFuture {
    /// A result that is known already.
    #[inline]
    pub fn ready(result: AcquireResult) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// A result that has to be waited for.
    pub fn boxed(future: impl Future<Output = AcquireResult> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    /// The result if there is nothing to wait for, else the future back.
    #[inline]
    pub(crate) fn into_ready(self) -> Result<AcquireResult, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            state => Err(Self(state)),
        }
    }
}

impl Future for AcquireFuture {
    type Output = AcquireResult;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Boxed(future) => future.as_mut().poll(cx),
            State::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
        }
    }
}

impl fmt::Debug for AcquireFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Boxed(_) => "AcquireFuture(pending)",
            State::Ready(_) => "AcquireFuture(ready)",
        })
    }
}

// A layer holds `Arc<dyn Store>`.
const _: Option<&dyn Store> = None;

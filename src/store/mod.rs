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

use crate::{decision::Decision, error::StoreError, plan::Plan, settlement::Settlement};

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
/// use tower_quota::{AcquireFuture, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
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
///
///     fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
///         self.0.settle(settlement)
///     }
///
///     fn reset(&self, plan: Plan) -> StoreFuture<()> {
///         self.0.reset(plan)
///     }
/// }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides the plan, and charges it if it is allowed. Not before the future is polled, unless it is ready at once:
    /// from then on it is counted for how long a refusal may be [remembered](crate::RateLimitLayerBuilder::denial_cache).
    ///
    /// When the future is dropped before it is ready, the charge may or may not have been made: it is never repeated.
    #[must_use = "a plan is decided when the future is polled"]
    fn acquire(&self, plan: Plan) -> AcquireFuture;

    /// Changes what a decision of this store has charged, or frees the slots that it holds.
    ///
    /// It is called from `Drop`, so it never blocks, and goes on whether or not the future is polled. The future ends
    /// when the change was made or is given up. A change that fails is not repeated: charges then stand as they are,
    /// and slots become free when their lease ends.
    fn settle(&self, settlement: Settlement) -> StoreFuture<()>;

    /// Forgets what the plan's partition has used, so that it starts with a full quota: for support staff.
    ///
    /// Slots of requests in progress stay taken. A [sliding window log](crate::Algorithm::SlidingWindowLog) is
    /// forgotten if one of the plan's policies is kept in it; all other algorithms are whatever the policies are.
    #[must_use = "a partition is reset when the future is polled"]
    fn reset(&self, plan: Plan) -> StoreFuture<()>;

    /// What the plan's partition has left, without a charge.
    ///
    /// The outcome says whether any policy is overdrawn.
    #[must_use = "a partition is read when the future is polled"]
    fn peek(&self, plan: Plan) -> AcquireFuture {
        self.acquire(plan.uncharged())
    }

    /// Whether the store itself stops asking a server that is away, as one with several servers has to.
    ///
    /// The circuit breaker of the layer then stays closed: it could only keep requests from all servers, also from
    /// those that answer. Who wraps such a store passes the answer on.
    fn has_own_breakers(&self) -> bool {
        false
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        (**self).acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        (**self).settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        (**self).reset(plan)
    }

    fn peek(&self, plan: Plan) -> AcquireFuture {
        (**self).peek(plan)
    }

    fn has_own_breakers(&self) -> bool {
        (**self).has_own_breakers()
    }
}

/// The answer of a [`Store`]: there at once, without an allocation, or boxed.
pub struct StoreFuture<T>(State<T>);

/// The future of [`Store::acquire`].
pub type AcquireFuture = StoreFuture<Decision>;

enum State<T> {
    Boxed(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
    Ready(Option<Result<T, StoreError>>),
}

impl<T> StoreFuture<T> {
    /// A result that is known already.
    #[inline]
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// A result that has to be waited for.
    pub fn boxed(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    /// The result if there is nothing to wait for, else the future back.
    #[inline]
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            state => Err(Self(state)),
        }
    }
}

/// Nothing in it is pinned by its address.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Boxed(future) => future.as_mut().poll(cx),
            State::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
        }
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Boxed(_) => "StoreFuture(pending)",
            State::Ready(_) => "StoreFuture(ready)",
        })
    }
}

// A layer holds `Arc<dyn Store>`.
const _: Option<&dyn Store> = None;

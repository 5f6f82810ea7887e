//! Quota stores: the [`Store`] trait, and stores in this process and in Redis.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod report;
mod traits;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

pub use self::{report::StoreReport, traits::StoreTraits};
use crate::{
    decision::{Decision, Measurement, Plan, Settlement},
    error::StoreError,
};

/// A quota store, which decides each [`Plan`] atomically: it charges all policies or none.
///
/// The crate provides [`MemoryStore`](crate::MemoryStore) for one process and `RedisStore` for many. Implement the
/// trait to wrap another store, for example to count calls, inject faults or route partitions to different servers. To
/// keep quota in another database, implement it with a [`Ledger`](crate::ledger::Ledger) and test it with
/// `test_util::check_store`; [`ledger`](crate::ledger) has a complete example. To limit work other than requests, use a
/// store without the layer; see [`acquire`](Self::acquire).
///
/// `acquire`, `settle` and `reset` are required; the other methods have defaults. A store that wraps another or uses
/// several servers should also implement [`traits`](Self::traits), [`catch_up`](Self::catch_up), [`flush`](Self::flush)
/// and [`ready`](Self::ready).
///
/// An error is not a rejection: the store has made no decision, and the layer applies its
/// [`FailureMode`](crate::FailureMode). Stores need no timeouts, because the layer drops calls that exceed its
/// deadline.
///
/// ```
/// use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
/// # use tower_quota::{PolicySet, PartitionKey, QuotaPolicy, Scope};
///
/// /// Fails for one partition in sixteen, to test how a service handles store errors.
/// #[derive(Debug)]
/// struct Flaky(MemoryStore);
///
/// impl Store for Flaky {
///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
///         if plan.partition().to_bytes()[0] < 16 {
///             return StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "injected")));
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
///
/// # tokio_test::block_on(async {
/// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
/// # let plan = |user: u32| {
/// #     let user = Scope::new("mails").partition(&PartitionKey::new("user", user.to_be_bytes()));
/// #     Plan::new(policies.clone(), user, 1)
/// # };
/// let store = Flaky(MemoryStore::new());
/// let mut failures = 0;
/// for user in 0..1_600 {
///     failures += usize::from(store.decide(plan(user)).await.is_err());
/// }
/// assert!((50..200).contains(&failures));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides the plan, and charges it if it is allowed.
    ///
    /// Implementations must not decide before the future is first polled, unless they return a completed future: the
    /// age of a [cached](crate::LimiterBuilder::rejection_cache) rejection is measured from that poll.
    ///
    /// If the future is dropped before it completes, the charge may or may not have been made, and the call is never
    /// retried. The layer drops the future when its deadline expires. If a request is cancelled, a task completes the
    /// call instead, and the charge is [not refunded](crate::ResponseFuture).
    ///
    /// Without the layer, there is no deadline and no circuit breaker: the caller must handle errors and calls that
    /// never complete.
    ///
    /// ```
    /// use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    ///
    /// # tokio_test::block_on(async {
    /// let store = MemoryStore::new();
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let plan = |recipients| Plan::new(policies.clone(), alice, recipients);
    ///
    /// assert_eq!(store.decide(plan(3)).await?.outcome(), Outcome::Allowed);
    /// // Two units remain. A charge of three does not fit, so nothing is charged.
    /// assert_eq!(store.decide(plan(3)).await?.outcome(), Outcome::Rejected);
    /// assert_eq!(store.decide(plan(2)).await?.outcome(), Outcome::Allowed);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a plan is decided when the future is polled"]
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement>;

    /// Like [`acquire`](Self::acquire), but returns the decision that follows from the [`Measurement`].
    ///
    /// Use this to limit work without a layer.
    ///
    /// ```
    /// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    /// # tokio_test::block_on(async {
    /// # let store = MemoryStore::new();
    /// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let decision = store.decide(Plan::new(policies, alice, 3)).await?;
    /// assert_eq!(decision.outcome(), Outcome::Allowed);
    /// assert_eq!(decision.allowances().next().map(|mails| mails.remaining()), Some(2));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a plan is decided when the future is polled"]
    fn decide(&self, plan: Plan) -> StoreFuture<Decision> {
        self.acquire(plan).map(Measurement::decide)
    }

    /// Changes the charges of an earlier decision of this store, or releases its slots.
    ///
    /// Called from `Drop`: implementations must not block, and must make progress even if the future is never polled.
    /// The future completes when the change has been applied or has failed. A failed change is not retried: charges
    /// remain unchanged, and slots are released when their lease expires. See [`Settlement`] for an example.
    ///
    /// The change must take effect before every later [`acquire`](Self::acquire) or [`reset`](Self::reset) of the same
    /// partition on this store or its clones, because a client may send its next request as soon as the response has
    /// arrived. To keep this order, a decision may wait for pending settlements, but only until the layer's deadline.
    /// The time of a settlement is the time at which `settle` was called, even if the settlement is queued. Where the
    /// order cannot be guaranteed (see [`RedisStore`](crate::RedisStore)), a request may be rejected although enough
    /// units were just refunded.
    ///
    /// Layers cache the rejections of remote stores. A layer takes its own settlements into account immediately.
    /// Settlements made directly on the store or by other instances affect the layer after [at most a
    /// second](crate::LimiterBuilder::rejection_cache). To avoid the delay, settle charges of a layer through
    /// [`ActualCost`](crate::ActualCost) or [`actual_cost`](crate::RateLimitLayerBuilder::actual_cost).
    fn settle(&self, settlement: Settlement) -> StoreFuture<()>;

    /// Resets the plan's partitions to their full quota, for example for support staff.
    ///
    /// Slots of requests in progress stay acquired. A [sliding window log](crate::Algorithm::SlidingWindowLog) is reset
    /// only if the plan contains its policy, because in Redis each log has its own key. The counts of all other
    /// algorithms are reset, including policies that the plan does not contain. The cost of the plan is ignored.
    ///
    /// Layers may continue to reject from their [rejection cache](crate::LimiterBuilder::rejection_cache).
    /// [`Caller::reset`](crate::Caller::reset) clears the cached rejections, too.
    ///
    /// ```
    /// # use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    /// # tokio_test::block_on(async {
    /// # let store = MemoryStore::new();
    /// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// # let scope = Scope::new("mails");
    /// let plan = |user, cost| {
    ///     Plan::new(policies.clone(), scope.partition(&PartitionKey::new("user", user)), cost)
    /// };
    /// assert_eq!(store.decide(plan("alice", 5)).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(plan("bob", 5)).await?.outcome(), Outcome::Allowed);
    ///
    /// store.reset(plan("alice", 1)).await?;
    /// assert_eq!(store.decide(plan("alice", 5)).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(plan("bob", 1)).await?.outcome(), Outcome::Rejected);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a partition is reset when the future is polled"]
    fn reset(&self, plan: Plan) -> StoreFuture<()>;

    /// Decides a plan without charging it.
    ///
    /// The decision shows whether and [when](Decision::availability) the plan would be admitted, and the remaining
    /// units, which do not depend on the cost of the plan. Nothing is reserved, and the decision cannot be settled.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Availability;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([
    ///     QuotaPolicy::per_minute("minute", 10).with_algorithm(Algorithm::SlidingWindowLog),
    ///     QuotaPolicy::per_day("day", 1_000),
    /// ])?;
    /// let mails = |count| Plan::new(policies.clone(), alice, count);
    /// let _ = store.decide(mails(8)).await?;
    ///
    /// let two = store.peek(mails(2)).await?;
    /// assert_eq!((two.outcome(), two.availability()), (Outcome::Allowed, Availability::Now));
    /// assert_eq!(two.allowances().map(|each| each.remaining()).collect::<Vec<_>>(), [2, 992]);
    /// let three = store.peek(mails(3)).await?;
    /// assert!(matches!(three.availability(), Availability::After(wait) if wait.as_secs() == 59));
    /// assert_eq!(three.allowances().map(|each| each.availability()).last(), Some(Availability::Now), "the day is no obstacle");
    /// assert_eq!(store.peek(mails(11)).await?.availability(), Availability::Never);
    /// # Ok(()) });
    /// ```
    #[must_use = "a partition is read when the future is polled"]
    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        self.decide(plan.asked())
    }

    /// Sends queued calls and reads the replies that have arrived. Resolves to `true` if more replies may arrive soon.
    ///
    /// The layer calls this when the deadline of a decision expires. In an overloaded process, the call may not have
    /// been written yet, or its reply may be unread. `true` means that bytes were sent or received during this call or
    /// shortly before. The layer recognizes an overloaded process by late timers. While timers are late and the future
    /// resolves to `true`, the layer repeats the call and extends the deadline, by up to 1 s. Otherwise, the layer
    /// makes a single call, which takes microseconds. A store that wraps another forwards the call.
    ///
    /// Default: resolves to `false` immediately, because there is nothing to send or read.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::sync::Arc;
    /// use tokio::sync::Notify;
    /// use tower_quota::{Decision, Measurement, MemoryStore, Outcome, Plan, QuotaPolicy, RateLimitLayer, Store, StoreFuture, key};
    ///
    /// /// A store that does not read its replies before `catch_up`.
    /// #[derive(Debug)]
    /// struct Unread(MemoryStore, Arc<Notify>);
    ///
    /// impl Store for Unread {
    ///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
    ///         let (store, read) = (self.0.clone(), Arc::clone(&self.1));
    ///         StoreFuture::boxed(async move {
    ///             read.notified().await;
    ///             store.acquire(plan).await
    ///         })
    ///     }
    ///
    ///     fn catch_up(&self) -> StoreFuture<bool> {
    ///         let read = Arc::clone(&self.1);
    ///         StoreFuture::boxed(async move {
    ///             read.notify_one();
    ///             Ok(false)
    ///         })
    ///     }
    ///     # fn settle(&self, settlement: Settlement) -> StoreFuture<()> { self.0.settle(settlement) }
    ///     # fn reset(&self, plan: Plan) -> StoreFuture<()> { self.0.reset(plan) }
    ///     // …
    /// }
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(Unread(MemoryStore::new(), Arc::default()))
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .decision_in_response()
    ///     .build()?;
    /// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    /// # }));
    /// # let request = http::Request::get("/").header("x-user-id", "alice").body(())?;
    /// # let response = service.oneshot(request).await?;
    /// // … and send a request. Its deadline expires before its decision is read.
    /// assert_eq!(response.extensions().get::<Decision>().map(Decision::outcome), Some(Outcome::Allowed));
    /// # Ok(()) });
    /// ```
    fn catch_up(&self) -> StoreFuture<bool> {
        StoreFuture::ready(Ok(false))
    }

    /// Returns properties that layers and limiters read once, when they are built.
    ///
    /// A store that wraps another returns the properties of the inner store, modified if necessary. Default:
    /// [`StoreTraits::default`].
    fn traits(&self) -> StoreTraits {
        StoreTraits::default()
    }

    /// Waits for pending [settlements](Self::settle), for up to `timeout`. Call this before the process exits.
    ///
    /// Behind a layer, call [`Limiter::flush`](crate::Limiter::flush), which also refunds the units that the layer has
    /// prefetched. Settlements made during the call are awaited, too. The store remains usable, and the call can be
    /// repeated. A `timeout` of zero only checks for pending settlements.
    ///
    /// Default: completes immediately, which is correct if `settle` takes effect before it returns. A store that wraps
    /// another forwards the call, and a store with several servers flushes them concurrently.
    ///
    /// # Errors
    ///
    /// Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) if settlements are still pending after `timeout`, and
    /// [`Unavailable`](crate::StoreErrorKind::Unavailable) if settlements failed since the last flush. The message
    /// contains the numbers of pending and failed settlements. Without a Tokio runtime, the call does not wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{MemoryStore, Store};
    ///
    /// # tokio_test::block_on(async {
    /// let store = MemoryStore::new();
    /// assert!(store.flush(Duration::from_secs(5)).await.is_ok());
    /// # });
    /// ```
    #[must_use = "a store is flushed when the future is polled"]
    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        let _ = timeout;
        StoreFuture::ready(Ok(()))
    }

    /// Checks within `timeout` that the store can decide. Call this when the process starts.
    ///
    /// The report contains warnings about server settings that may later weaken limits. Behind a limiter, call
    /// [`Limiter::ready`](crate::Limiter::ready), whose documentation lists the checks of a Redis server.
    ///
    /// Default: completes immediately, without warnings. A store that wraps another forwards the call.
    ///
    /// # Errors
    ///
    /// Returns the error with which decisions would fail.
    #[must_use = "the store is called when the future is polled"]
    fn ready(&self, timeout: Duration) -> StoreFuture<StoreReport> {
        let _ = timeout;
        StoreFuture::ready(Ok(StoreReport::new()))
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        (**self).acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        (**self).settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        (**self).reset(plan)
    }

    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        (**self).peek(plan)
    }

    fn traits(&self) -> StoreTraits {
        (**self).traits()
    }

    fn catch_up(&self) -> StoreFuture<bool> {
        (**self).catch_up()
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        (**self).flush(timeout)
    }

    fn ready(&self, timeout: Duration) -> StoreFuture<StoreReport> {
        (**self).ready(timeout)
    }
}

/// The result of a [`Store`] method: immediately ready or boxed.
///
/// Must not be polled again after it has completed.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
/// # use tower_quota::{PolicySet, PartitionKey, QuotaPolicy, Scope};
///
/// /// Decides after a delay, and never resets a partition.
/// #[derive(Debug)]
/// struct Slow(MemoryStore);
///
/// impl Store for Slow {
///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
///         let store = self.0.clone();
///         StoreFuture::boxed(async move {
///             tokio::time::sleep(Duration::from_millis(40)).await;
///             store.acquire(plan).await
///         })
///     }
///
///     fn reset(&self, _: Plan) -> StoreFuture<()> {
///         StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Failed, "read-only")))
///     }
///     # fn settle(&self, settlement: Settlement) -> StoreFuture<()> { self.0.settle(settlement) }
/// // … and `settle`, which forwards
/// }
///
/// # let plan = {
/// #     let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// #     Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1)
/// # };
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let (store, start) = (Slow(MemoryStore::new()), tokio::time::Instant::now());
/// assert!(store.decide(plan.clone()).await.is_ok());
/// assert!(start.elapsed() >= Duration::from_millis(40));
/// assert_eq!(store.reset(plan).await.unwrap_err().to_string(), "store failed: read-only");
/// # });
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct StoreFuture<T>(State<T>);

pub(crate) type BoxedAnswer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

enum State<T> {
    Boxed(BoxedAnswer<T>),
    Ready(Option<Result<T, StoreError>>),
}

impl<T> StoreFuture<T> {
    /// Creates a future that completes immediately with `result`.
    #[inline]
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// Boxes a future that completes later.
    pub fn boxed(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    #[inline]
    fn map<U>(self, make: impl FnOnce(T) -> U + Send + 'static) -> StoreFuture<U>
    where
        T: 'static,
    {
        match self.0 {
            State::Ready(result) => StoreFuture(State::Ready(result.map(|result| result.map(make)))),
            State::Boxed(future) => StoreFuture::boxed(async move { future.await.map(make) }),
        }
    }

    #[inline]
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, BoxedAnswer<T>> {
        match self.0 {
            State::Ready(result) => Ok(result.expect("not polled before")),
            State::Boxed(future) => Err(future),
        }
    }
}

/// No field is structurally pinned.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Boxed(future) => future.as_mut().poll(cx),
            State::Ready(result) => Poll::Ready(result.take().expect("polled after completion")),
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

// Layers store an `Arc<dyn Store>`.
const _: Option<&dyn Store> = None;

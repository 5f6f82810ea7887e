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

use self::memory::MemoryStore;
pub use self::{report::StoreReport, traits::StoreTraits};
use crate::{
    decision::{Decision, Measurement, Plan, Settlement},
    error::StoreError,
};

/// A quota store, which charges all policies of a [`Plan`] or none, atomically except across [several
/// servers](Plan::and).
///
/// Implement the trait to wrap another store, for example to inject faults, or for another database with a
/// [`Ledger`](crate::ledger::Ledger); test it with `test_util::check_store`. A store that wraps another, or that uses
/// several servers, should also implement [`traits`](Self::traits), [`silence`](Self::silence), [`flush`](Self::flush)
/// and [`ready`](Self::ready).
///
/// After an error, the store has made no decision, and the limiter applies its [`FailureMode`](crate::FailureMode).
/// Stores need no timeouts, because the limiter drops calls that exceed its deadline.
///
/// ```
/// use tower_quota::{Measurement, MemoryStore, Plan, QuotaPolicy, RateLimitLayer, Settlement};
/// use tower_quota::{Store, StoreError, StoreErrorKind, StoreFuture, key};
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
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(Flaky(MemoryStore::new()))
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .build()?;
/// # let mut failures = 0;
/// # for user in 0..1_600 {
/// #     let request = http::Request::get("/").header("x-user-id", user);
/// #     failures += usize::from(!set_up::is_counted(&layer, request).await);
/// # }
/// # assert!((50..200).contains(&failures), "{failures}");
/// # Ok(()) });
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides the plan, and charges it if it is allowed. Programs call [`decide`](Self::decide).
    ///
    /// Implementations must not decide before the future is first polled, unless they return a completed future: the
    /// age of a [cached](crate::LimiterBuilder::rejection_cache) rejection is measured from that poll.
    ///
    /// If the future is dropped before it completes, as when the deadline expires, the charge may or may not have been
    /// made, and the call is never retried.
    #[must_use = "a plan is decided when the future is polled"]
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement>;

    /// Like [`acquire`](Self::acquire), but returns the decision that follows from the [`Measurement`].
    ///
    /// Without a limiter, there is no deadline and no circuit breaker: handle errors and calls that never complete.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let plan = |recipients| Plan::new(policies.clone(), alice, recipients);
    ///
    /// let decision = store.decide(plan(3)).await?;
    /// assert_eq!(decision.outcome(), Outcome::Allowed);
    /// assert_eq!(decision.allowances().next().map(|mails| mails.remaining()), Some(2));
    ///
    /// // A charge of three does not fit into the two remaining units, so nothing is charged.
    /// assert_eq!(store.decide(plan(3)).await?.outcome(), Outcome::Rejected);
    /// assert_eq!(store.decide(plan(2)).await?.outcome(), Outcome::Allowed);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a plan is decided when the future is polled"]
    fn decide(&self, plan: Plan) -> StoreFuture<Decision> {
        self.acquire(plan).map(Measurement::decide)
    }

    /// Changes the charges of an earlier decision of this store, or releases its slots. [`Settlement`] has an example.
    ///
    /// Called from `Drop`: implementations must not block, and must complete even if the future is never polled. The
    /// change takes effect before every later [`acquire`](Self::acquire) or [`reset`](Self::reset) of the same
    /// partition on this store or its clones. A failed change is not retried: charges remain, and slots are released
    /// when their lease expires.
    fn settle(&self, settlement: Settlement) -> StoreFuture<()>;

    /// Resets the plan's partitions to their full quota. The cost of the plan is ignored.
    ///
    /// Slots of requests in progress stay acquired. All counts are reset, even of policies that the plan does not
    /// contain, except their [sliding window logs](crate::Algorithm::SlidingWindowLog), each of which has its own key
    /// in Redis. Cached rejections remain; [`Caller::reset`](crate::Caller::reset) clears them, too.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// let five_mails = |user: &str| {
    ///     let user = Scope::new("mails").partition(&PartitionKey::new("user", user));
    ///     Plan::new(policies.clone(), user, 5)
    /// };
    /// assert_eq!(store.decide(five_mails("alice")).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(five_mails("bob")).await?.outcome(), Outcome::Allowed);
    ///
    /// store.reset(five_mails("alice")).await?;
    /// assert_eq!(store.decide(five_mails("alice")).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(five_mails("bob")).await?.outcome(), Outcome::Rejected);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a partition is reset when the future is polled"]
    fn reset(&self, plan: Plan) -> StoreFuture<()>;

    /// Decides a plan without charging it.
    ///
    /// The decision shows whether and [when](Decision::availability) the plan would be admitted, and the remaining
    /// units, which do not depend on its cost. It cannot be settled.
    ///
    /// ```
    /// use tower_quota::{Algorithm, Availability, MemoryStore, Outcome, PartitionKey};
    /// use tower_quota::{Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let policies = PolicySet::new([
    ///     QuotaPolicy::per_minute("minute", 10).with_algorithm(Algorithm::SlidingWindowLog),
    ///     QuotaPolicy::per_day("day", 1_000),
    /// ])?;
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let mails = |count| Plan::new(policies.clone(), alice, count);
    /// let _ = store.decide(mails(8)).await?;
    ///
    /// let two = store.peek(mails(2)).await?;
    /// assert_eq!((two.outcome(), two.availability()), (Outcome::Allowed, Availability::Now));
    /// assert_eq!(two.allowances().map(|each| each.remaining()).collect::<Vec<_>>(), [2, 992]);
    ///
    /// // Three mails would exceed the quota of the minute, but not that of the day.
    /// let three = store.peek(mails(3)).await?;
    /// assert!(matches!(three.availability(), Availability::After(wait) if wait.as_secs() == 59));
    /// assert_eq!(three.allowances().map(|each| each.availability()).last(), Some(Availability::Now));
    /// assert_eq!(store.peek(mails(11)).await?.availability(), Availability::Never);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a partition is read when the future is polled"]
    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        self.decide(plan.asked())
    }

    /// Reads the replies that have arrived, and returns for how long a server with unanswered calls has been silent.
    /// `None`, the default, means unknown.
    ///
    /// Called when the deadline of a decision expires. If the silence is shorter than the deadline, the decision [waits
    /// longer](crate::LimiterBuilder::deadline).
    fn silence(&self) -> StoreFuture<Option<Duration>> {
        StoreFuture::ready(Ok(None))
    }

    /// Returns the store in memory of which this store is a handle. Default: `None`.
    ///
    /// A limiter without a [fallback](crate::LimiterBuilder::fallback) then charges usual requests there without
    /// calling [`acquire`](Self::acquire). A store that wraps another to observe or change its calls must not forward
    /// the call.
    fn as_memory(&self) -> Option<&MemoryStore> {
        None
    }

    /// Returns properties that layers and limiters read once, when they are built. Default: [`StoreTraits::default`].
    fn traits(&self) -> StoreTraits {
        StoreTraits::default()
    }

    /// Waits for pending [settlements](Self::settle), for up to `timeout`. Call this before the process exits, or
    /// [`Limiter::flush`](crate::Limiter::flush) if there is a limiter.
    ///
    /// Settlements made during the call are awaited, too. A `timeout` of zero only checks for pending settlements.
    /// Default: completes immediately, which is correct if `settle` takes effect before it returns.
    ///
    /// # Errors
    ///
    /// Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) if settlements are still pending after `timeout`, and
    /// [`Unavailable`](crate::StoreErrorKind::Unavailable) if settlements failed since the last flush that did not time
    /// out. The message contains both numbers. Without a Tokio runtime, the call does not wait.
    #[must_use = "a store is flushed when the future is polled"]
    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        let _ = timeout;
        StoreFuture::ready(Ok(()))
    }

    /// Checks within `timeout` that the store can decide. Call [`Limiter::ready`](crate::Limiter::ready) if there is a
    /// limiter.
    ///
    /// Warnings of the report are about server settings that may later weaken limits. Default: completes immediately,
    /// without warnings.
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

    fn as_memory(&self) -> Option<&MemoryStore> {
        (**self).as_memory()
    }

    fn traits(&self) -> StoreTraits {
        (**self).traits()
    }

    fn silence(&self) -> StoreFuture<Option<Duration>> {
        (**self).silence()
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        (**self).flush(timeout)
    }

    fn ready(&self, timeout: Duration) -> StoreFuture<StoreReport> {
        (**self).ready(timeout)
    }
}

/// The result of a [`Store`] method: immediately ready or boxed. Must not be polled again after it has completed.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
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
///     fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
///         self.0.settle(settlement)
///     }
///
///     fn reset(&self, _: Plan) -> StoreFuture<()> {
///         StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Failed, "read-only")))
///     }
/// }
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// # use tower_quota::{PartitionKey, PolicySet, QuotaPolicy, Scope};
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
/// # let (store, start) = (Slow(MemoryStore::new()), tokio::time::Instant::now());
/// # assert!(store.decide(plan.clone()).await.is_ok());
/// # assert!(start.elapsed() >= Duration::from_millis(40));
/// # assert_eq!(store.reset(plan).await.unwrap_err().to_string(), "store failed: read-only");
/// # Ok(()) });
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

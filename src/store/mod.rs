//! The stores of quota: in this process, or in a Redis that several instances share.

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

/// A store of quota. It decides a whole [`Plan`] at once: every policy is charged, or none.
///
/// The crate brings [`MemoryStore`](crate::MemoryStore) for one process and `RedisStore` for many. Implement
/// the trait to wrap one of them: to count calls, to inject faults, to route partitions to different servers. To keep
/// quota in another database, implement it around a [`Ledger`](crate::ledger::Ledger), and check it with
/// `test_util::check_store`: [`ledger`](crate::ledger) has a whole store.
/// You can also use a store without the layer, to limit other things than requests: see [`acquire`](Self::acquire).
///
/// You write `acquire`, `settle` and `reset`. The other methods have defaults. A store around another one, and one of several
/// servers, also looks at the last four, [`traits`](Self::traits), [`catch_up`](Self::catch_up), [`flush`](Self::flush) and
/// [`ready`](Self::ready).
///
/// An error is not a rejection: it says that nothing was decided, and the layer's [`FailureMode`](crate::FailureMode)
/// applies. A store need not keep time itself; the layer gives each call a deadline and drops it afterwards.
///
/// ```
/// use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
/// # use tower_quota::{PolicySet, PartitionKey, QuotaPolicy, Scope};
///
/// /// Fails for one partition in sixteen: what would your service do?
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
    /// Decides the plan, and charges it if it is allowed. Not before the future is polled, unless it is ready at once: the
    /// age of a [cached](crate::LimiterBuilder::rejection_cache) rejection is counted from that moment.
    ///
    /// If the future is dropped before it is ready, the charge may or may not have been made: it is never repeated. The
    /// layer drops it when its deadline has passed, but not when a request is cancelled: a task then polls the future on,
    /// and what it charges [stays charged](crate::ResponseFuture).
    ///
    /// Without the layer there is no deadline and no circuit breaker: your program deals with errors, and with answers that
    /// do not come.
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
    /// // Two are left. Three do not fit, so nothing is charged.
    /// assert_eq!(store.decide(plan(3)).await?.outcome(), Outcome::Rejected);
    /// assert_eq!(store.decide(plan(2)).await?.outcome(), Outcome::Allowed);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "a plan is decided when the future is polled"]
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement>;

    /// The same for a program that has no layer: the decision that follows from the [`Measurement`].
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

    /// Changes what a decision of this store has charged, or frees the slots that it holds.
    ///
    /// It is called from `Drop`, so it never blocks, and goes on whether or not the future is polled. The future ends
    /// when the change was made or has failed. A change that fails is not repeated: charges then stand as they are,
    /// and slots become free when their lease ends. See [`Settlement`] for an example.
    ///
    /// It takes effect before any [`acquire`](Self::acquire) and [`reset`](Self::reset) about the same partition that is
    /// called on this store or its clones later: a client may send its next request as soon as it has its response. The layer relies on it, so a store
    /// of your own keeps this order: a decision may wait for what is under way. Its time is that of the call, however long it is
    /// queued. The layer stops waiting for the decision
    /// at its deadline. Where the order cannot be kept, see [`RedisStore`](crate::RedisStore), a request may be rejected
    /// for what was just given back.
    ///
    /// In front of a store that has to be waited for, a layer caches rejections. It knows of its own settlements, and not
    /// of those that a program makes with the store: these are seen like those of another instance, after
    /// [a second at most](crate::LimiterBuilder::rejection_cache). Let the layer settle what it has charged, with
    /// [`ActualCost`](crate::ActualCost) or [`actual_cost`](crate::RateLimitLayerBuilder::actual_cost).
    fn settle(&self, settlement: Settlement) -> StoreFuture<()>;

    /// Forgets what the plan's partition has used, so that it starts with a full quota: for support staff.
    ///
    /// Slots of requests in progress stay taken. A [sliding window log](crate::Algorithm::SlidingWindowLog) is
    /// forgotten if the plan has its policy: in Redis each log is a key of its own, which only its policy leads to. All
    /// that other algorithms have counted is forgotten, whatever the plan's policies are. The cost of the plan does not
    /// matter.
    ///
    /// A layer may go on rejecting by its [rejection cache](crate::LimiterBuilder::rejection_cache);
    /// [`Caller::reset`](crate::Caller::reset) forgets its rejections, too.
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
    /// The decision tells whether and [when](Decision::availability) the plan would be admitted, and what remains. It reserves
    /// nothing and cannot be settled. To read what remains, give the plan any cost.
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

    /// Sends queued calls and reads all answers that have arrived. Resolves to `true` if another answer may follow soon,
    /// because bytes were sent or received while the future ran or shortly before.
    ///
    /// The layer calls this when the deadline of a decision expires. In a process with more work than processors, the call
    /// may not have been written yet, or its answer may be unread. While the process is late, which late timers show, and the
    /// future resolves to `true`, the layer calls it again and the decision waits for up to 1 s more. In other processes, it
    /// runs once and takes microseconds. A store that wraps another store forwards the call.
    ///
    /// Default: resolves to `false` immediately, which says that there is nothing to send or to read.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::sync::Arc;
    /// use tokio::sync::Notify;
    /// use tower_quota::{Decision, Measurement, MemoryStore, Outcome, Plan, QuotaPolicy, RateLimitLayer, Store, StoreFuture, key};
    ///
    /// /// Its answers are there, and no task reads them until the store is told to.
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
    /// // … and a request, for whose decision the deadline strikes
    /// assert_eq!(response.extensions().get::<Decision>().map(Decision::outcome), Some(Outcome::Allowed));
    /// # Ok(()) });
    /// ```
    fn catch_up(&self) -> StoreFuture<bool> {
        StoreFuture::ready(Ok(false))
    }

    /// The properties of the store that layers and limiters ask for once, when they are built. Default:
    /// [`StoreTraits::default`].
    ///
    /// A store around another one returns those of that, changed where it differs.
    fn traits(&self) -> StoreTraits {
        StoreTraits::default()
    }

    /// Waits until no [settlement](Self::settle) is under way, at most for `timeout`. Call it before the process exits.
    ///
    /// Behind a layer, call [`Limiter::flush`](crate::Limiter::flush), which also returns what the layer holds.
    /// Settlements made meanwhile are waited for as well; the store remains usable during and after the call, and it may
    /// be called again. A `timeout` of zero only asks what is under way.
    ///
    /// Default: ready at once, which is right for a store whose `settle` takes effect before it returns. A store that
    /// wraps another one forwards the call, and a store of several servers flushes them together.
    ///
    /// # Errors
    ///
    /// Returns [`TimedOut`](crate::StoreErrorKind::TimedOut) if settlements are still under way after `timeout`, and
    /// [`Unavailable`](crate::StoreErrorKind::Unavailable) if any were lost since the last flush, because the server did
    /// not take them. The message has both numbers. Without a Tokio runtime, the call does not wait.
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

    /// Finds out within `timeout` whether the store can decide at all, and what about its servers may cost limits later. Call it
    /// when the process starts.
    ///
    /// Behind a limiter, call [`Limiter::ready`](crate::Limiter::ready), which says what a Redis is asked.
    ///
    /// Default: ready at once, without warnings. A store that wraps another one forwards the call.
    ///
    /// # Errors
    ///
    /// Returns the error that decisions would have.
    #[must_use = "a store is asked when the future is polled"]
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

/// The answer of a [`Store`]: there at once, or boxed.
///
/// You make one in a store of your own. Once it is ready it must not be polled again.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
/// # use tower_quota::{PolicySet, PartitionKey, QuotaPolicy, Scope};
///
/// /// Answers late, and never resets a partition.
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
///     // … `settle` as it is
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

/// A result of a store that has to be waited for.
pub(crate) type BoxedAnswer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

enum State<T> {
    Boxed(BoxedAnswer<T>),
    Ready(Option<Result<T, StoreError>>),
}

impl<T> StoreFuture<T> {
    /// A result that is known already, so that no request waits.
    #[inline]
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// A result that has to be waited for.
    pub fn boxed(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    /// The same future with another result.
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

    /// The result if it is there, else the future to wait for.
    #[inline]
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, BoxedAnswer<T>> {
        match self.0 {
            State::Ready(result) => Ok(result.expect("it was not polled before")),
            State::Boxed(future) => Err(future),
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

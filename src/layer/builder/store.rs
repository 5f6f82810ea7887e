//! Settings of the calls to the store, and of its fallback.

use std::{sync::Arc, time::Duration};

use super::RateLimitLayerBuilder;
use crate::{clock::Clock, store::Store};

/// # Advanced: the store
impl RateLimitLayerBuilder {
    /// Sets the time after which a request goes on without a decision, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After five failures in a row no request waits at all: a circuit breaker opens, and one request at a time tries
    /// whether the store answers again, after 50 to 100 ms at first and every 250 to 500 ms later on. All requests that
    /// are under way when a connection breaks are one failure.
    ///
    /// At the deadline, the store first reads what has arrived ([`Store::catch_up`](crate::Store::catch_up)). In a process
    /// with more work than processors, which late timers show, a decision waits for up to 1 s more while the store
    /// hears from its server: the delay is the process's own, and says nothing about the server.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// /// A server that does not answer.
    /// #[derive(Debug)]
    /// struct Hanging;
    ///
    /// impl Store for Hanging {
    ///     fn acquire(&self, _: Plan) -> AcquireFuture {
    ///         AcquireFuture::boxed(std::future::pending())
    ///     }
    ///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     // …
    /// }
    ///
    /// # run(async {
    /// let builder = || RateLimitLayer::builder(Hanging)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60));
    ///
    /// let layer = builder().deadline(Duration::from_millis(20)).build()?;
    /// let start = tokio::time::Instant::now();
    /// assert_eq!(send(&layer, Request::get("/")).await.status(), 200);
    /// assert!((20..=25).contains(&start.elapsed().as_millis()));
    ///
    /// let error = builder().deadline(Duration::from_secs(61)).build().unwrap_err();
    /// assert_eq!(error.to_string(), "deadline 61s is outside 1ms..=60s");
    /// # Ok(()) });
    /// ```
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.terms.deadline = deadline;
        self
    }

    /// Sets the maximum number of requests that wait for the store, from 1 to 65 536. Default: 10 000.
    ///
    /// Each request that waits holds memory, some kilobytes with its connection: with a long [`deadline`](Self::deadline)
    /// and a store that has stopped, that adds up. A request that finds the bound reached does not wait: the
    /// [`fallback`](Self::fallback) decides it if that answers at once, else the failure mode does. In the
    /// [numbers](crate::telemetry) it is `overloaded`, and the circuit breaker takes it for nothing. A request that was
    /// cancelled counts until the store has answered or its deadline is over. Requests that come at the very same
    /// moment on several threads may exceed the bound by a few.
    ///
    /// As a rule, it is the requests a second of one instance times the deadline in seconds, and some room.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::time::Duration;
    /// use tower_quota::{AcquireFuture, FailureMode, Plan, QuotaPolicy, RateLimitLayer, Store, key};
    /// # use futures_util::{future::join_all, FutureExt};
    ///
    /// /// Never answers.
    /// #[derive(Debug)]
    /// struct Hanging;
    ///
    /// impl Store for Hanging {
    ///     fn acquire(&self, _: Plan) -> AcquireFuture {
    ///         AcquireFuture::boxed(std::future::pending())
    ///     }
    ///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     // …
    /// }
    ///
    /// # run(async {
    /// let builder = || RateLimitLayer::builder(Hanging)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .failure_mode(FailureMode::Closed);
    ///
    /// let layer = builder().deadline(Duration::from_secs(10)).max_waiting(2).build()?;
    /// # let inner = service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// # let service = layer.layer(inner);
    /// # let send = || service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(()).unwrap());
    /// let mut waiting = [Box::pin(send()), Box::pin(send())];
    /// assert!(join_all(&mut waiting).now_or_never().is_none());
    /// assert_eq!(send().now_or_never().expect("it does not wait").unwrap().status(), 503);
    ///
    /// let error = builder().max_waiting(0).build().unwrap_err();
    /// assert_eq!(error.to_string(), "max waiting 0 is outside 1..=65536");
    /// # Ok(()) });
    /// ```
    pub fn max_waiting(mut self, requests: u32) -> Self {
        self.terms.max_waiting = requests;
        self
    }

    /// The maximum number of partitions in the rejection cache, from 0, which turns it off, to 1 048 576. Default: 16 384,
    /// which take up to 7 MB with one policy each, and up to 300 bytes more for each further one that rejects.
    ///
    /// The used amount determines exactly until when a charge is rejected; other charges only make it later.
    /// So what the store is known to reject is rejected without asking it: a caller who goes on after a quota is used up
    /// costs it, in each instance, a call for each unit that comes back and one or two a second beyond. You want to turn
    /// it off where each rejection has to come from the store.
    ///
    /// - Nothing is remembered for longer than a second. What *other* instances give back, by a
    ///   [refund](crate::Settlement) or a [reset](crate::Caller::reset), may be seen that late; so is what a program
    ///   gives back by a [`Store::settle`](crate::Store::settle) of its own. What this layer gives back,
    ///   [grants](crate::Caller::grant) and new [rules](crate::RulesHandle) count for each request that comes
    ///   afterwards.
    /// - The *hold*: for 10 to 20 ms after the store has rejected a cost, as much or more is rejected without a question
    ///   although it might pass; for less, where the whole quota comes back in less than 40 ms. And where so much has
    ///   come back that some requests may pass, as many ask as there is room for, and the others are rejected until the
    ///   store has answered, or for another hold.
    /// - Not remembered are limits of [concurrent requests](crate::QuotaPolicy::concurrent), leaky buckets
    ///   [with a queue](crate::Algorithm::LeakyBucketQueue) and [shadows](crate::QuotaPolicy::shadow); nor what a store
    ///   decides at once, as a [`MemoryStore`](crate::MemoryStore) does, or a fallback. Requests that cost 0 always ask.
    /// - A remembered rejection tells of all policies that are remembered and reject the request, with nothing left: see
    ///   [`Decision::is_cached`](crate::Decision::is_cached). A cost for which the room of a policy is not known asks the
    ///   store. It is given while the circuit is open, too.
    /// - Where more partitions are rejected within a second, the new ones take the place of old ones, which ask again.
    /// - A partition that this instance has exhausted keeps its place until its units are back, while no other one needs it: if
    ///   the store has lost its state, `tower_quota_state_lost_total` [counts](crate::telemetry) that.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_quota::{AcquireFuture, Decision, MemoryStore, Plan, QuotaPolicy, RateLimitLayer, Store, key};
    /// # use tower_quota::{Settlement, StoreFuture};
    ///
    /// /// Has to be waited for, as a server has.
    /// #[derive(Debug)]
    /// struct Remote(MemoryStore, Arc<AtomicUsize>);
    ///
    /// impl Store for Remote {
    ///     fn acquire(&self, plan: Plan) -> AcquireFuture {
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///         let store = self.0.clone();
    ///         AcquireFuture::boxed(async move { store.acquire(plan).await })
    ///     }
    ///     # fn settle(&self, settlement: Settlement) -> StoreFuture<()> { self.0.settle(settlement) }
    ///     # fn reset(&self, plan: Plan) -> StoreFuture<()> { self.0.reset(plan) }
    ///     // …
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// // The number of calls to the store for 100 requests, of which 3 pass.
    /// let asked = async |rejection_cache| {
    ///     let calls = Arc::new(AtomicUsize::new(0));
    ///     let layer = RateLimitLayer::builder(Remote(MemoryStore::new(), Arc::clone(&calls)))
    ///         .scope("api")
    ///         .key(key::header("x-user-id"))
    ///         .policy(QuotaPolicy::per_hour("hour", 3))
    ///         .rejection_cache(rejection_cache)
    ///         .decision_in_response()
    ///         .build()?;
    ///     # let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    ///     let service = layer.layer(inner);
    ///     for number in 0..100 {
    ///         let request = Request::get("/").header("x-user-id", "mallory").body(())?;
    ///         let response = service.clone().oneshot(request).await?;
    ///         assert_eq!(response.status(), if number < 3 { 200 } else { 429 });
    ///         let is_cached = response.extensions().get::<Decision>().unwrap().is_cached();
    ///         assert_eq!(is_cached, number >= 3 && rejection_cache > 0);
    ///     }
    ///     Ok::<_, Box<dyn std::error::Error>>(calls.load(Ordering::Relaxed))
    /// };
    /// assert_eq!(asked(1_000).await?, 3);
    /// assert_eq!(asked(0).await?, 100);
    ///
    /// let error = asked(2_000_000).await.unwrap_err();
    /// assert_eq!(error.to_string(), "rejection cache 2000000 is outside 0..=1048576");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn rejection_cache(mut self, partitions: usize) -> Self {
        self.terms.rejection_cache = partitions;
        self
    }

    /// A store that decides while the first one does not, most often a [`MemoryStore`](crate::MemoryStore). Default:
    /// none.
    ///
    /// Each instance then enforces the whole quota by itself, so that N instances admit up to N times as much. If the
    /// fallback fails too, the [`failure_mode`](Self::failure_mode) decides. One that has to be waited for has the same
    /// [`deadline`](Self::deadline), which begins when that of the store is over.
    ///
    /// Without a fallback, a store in this process decides while the store is
    /// [out of memory](crate::StoreErrorKind::OutOfMemory), unless the failure mode is `Closed`. It holds 65,536 partitions.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(Unavailable)
    ///     .fallback(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 2))
    ///     .build()?;
    ///
    /// for status in [200, 200, 429] {
    ///     assert_eq!(send(&layer, Request::get("/").header("x-user-id", "alice")).await.status(), status);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn fallback(mut self, store: impl Store) -> Self {
        self.fallback = Some(Arc::new(store));
        self
    }

    /// The clock by which the circuit breaker waits before it tries again, by which rejections are
    /// [remembered](Self::rejection_cache), and by which [grants](crate::Caller::grant) end. Default:
    /// [`Clock::system`].
    ///
    /// You want another one in tests only, the one of the store most often. Stores have clocks of their own, and
    /// deadlines are kept by Tokio's timer.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let layer = RateLimitLayer::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .clock(clock.clone())
    ///     .scope("api")
    ///     .key(key::from_fn(|_| Some("alice".to_partition_key())))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    /// layer.limiter().caller("alice").grant(90, Duration::from_secs(600))?;
    ///
    /// let granted = send(&layer, Request::get("/")).await;
    /// assert_eq!(granted.headers()["ratelimit-policy"], r#""hour";q=100;w=3600"#);
    /// clock.advance(Duration::from_secs(600));
    /// let later = send(&layer, Request::get("/")).await;
    /// assert_eq!(later.headers()["ratelimit-policy"], r#""hour";q=10;w=3600"#);
    /// # Ok(()) });
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

//! The guard around an intermittently available store, in virtual time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::{
    MemoryStore,
    clock::{Clock, Timestamp},
    decision::{Measurement, Outcome, Settlement},
    partition::{PartitionKey, Scope},
    policy::{PolicySet, QuotaPolicy},
    store::{Store, StoreFuture},
};

#[derive(Debug, Default)]
struct Moody {
    is_unavailable: AtomicBool,
    is_slow: AtomicBool,
    calls: AtomicUsize,
    store: MemoryStore,
}

impl Store for Moody {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_unavailable.load(Ordering::SeqCst) {
            return StoreFuture::boxed(std::future::pending());
        }
        if self.is_slow.load(Ordering::SeqCst) {
            let decided = self.store.clone();
            return StoreFuture::boxed(async move {
                tokio::task::yield_now().await;
                decided.acquire(plan).await
            });
        }
        self.store.acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

struct Scene {
    store: Arc<Moody>,
    guard: Arc<Guard>,
    clock: Clock,
}

impl Scene {
    fn new(failure_mode: FailureMode, fallback: Option<Arc<dyn Store>>) -> Self {
        let (store, clock) = (Arc::new(Moody::default()), Clock::manual(Timestamp::from_micros(1)));
        let terms = GuardConfig {
            failure_mode,
            max_waiting: 60,
            ..GuardConfig::default()
        };
        let decider = Arc::new(Arc::clone(&store));
        let guard = Guard::new(decider, fallback, terms, clock.clone(), "guard");
        Self {
            store,
            guard: Arc::new(guard),
            clock,
        }
    }

    fn plan() -> Plan {
        let policies = PolicySet::new([QuotaPolicy::per_day("daily", 3)]).unwrap();
        let alice = Scope::new("guard").partition(&PartitionKey::new("user", "alice"));
        Plan::new(policies, alice, 1)
    }

    async fn decide(&self) -> Outcome {
        match self.guard.decide(Self::plan()) {
            DecisionState::Decided(decision) => decision.outcome(),
            DecisionState::Pending(decision) => decision.await.outcome(),
        }
    }

    async fn lose_the_store_for_a_while(&self) {
        self.store.is_unavailable.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            assert_eq!(self.decide().await, Outcome::FailedOpen);
        }
        self.store.is_unavailable.store(false, Ordering::SeqCst);
        assert_eq!(self.decide().await, Outcome::FailedOpen);
        self.clock.advance(Duration::from_millis(100));
    }

    async fn cancel_one(&self) {
        let mut cancelled = Box::pin(self.decide());
        assert!(futures_util::poll!(&mut cancelled).is_pending());
        drop(cancelled);
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }

    fn is_circuit_closed(&self) -> bool {
        let breaker = self.guard.cache.store.breaker.as_ref();
        breaker.is_some_and(|breaker| breaker.is_closed())
    }

    fn calls(&self) -> usize {
        self.store.calls.load(Ordering::SeqCst)
    }
}

/// L9, L10
#[tokio::test(start_paused = true)]
async fn after_five_missed_deadlines_no_request_waits_and_the_store_is_not_asked() {
    let scene = Scene::new(FailureMode::Open, None);
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(scene.decide().await, Outcome::FailedOpen);
    }
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(250));
    for _ in 0..1_000 {
        assert_eq!(scene.decide().await, Outcome::FailedOpen);
    }
    assert_eq!((start.elapsed(), scene.calls()), (waited, 5));
}

/// Otherwise, a client that cancels all its requests could keep the circuit open for the whole layer.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_does_not_keep_the_circuit_open() {
    let scene = Scene::new(FailureMode::Open, None);
    scene.lose_the_store_for_a_while().await;
    scene.store.is_slow.store(true, Ordering::SeqCst);
    scene.cancel_one().await;
    for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Rejected] {
        assert_eq!(scene.decide().await, expected, "the cancelled one is charged");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_fallback_decides_about_a_cancelled_request_stays_charged() {
    let fallback = Arc::new(Moody::default());
    let scene = Scene::new(FailureMode::Open, Some(Arc::new(Arc::clone(&fallback))));
    for store in [&scene.store, &fallback] {
        store.is_unavailable.store(true, Ordering::SeqCst);
    }
    for _ in 0..5 {
        assert_eq!(scene.decide().await, Outcome::FailedOpen);
    }
    fallback.is_unavailable.store(false, Ordering::SeqCst);
    fallback.is_slow.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        scene.cancel_one().await;
    }
    assert_eq!(scene.decide().await, Outcome::Rejected);
}

/// Otherwise, a client that never waits for its rejection would cause one store call per request.
#[tokio::test(start_paused = true)]
async fn a_rejection_is_cached_also_when_its_request_is_cancelled() {
    let scene = Scene::new(FailureMode::Open, None);
    for _ in 0..3 {
        assert_eq!(scene.decide().await, Outcome::Allowed);
    }
    scene.store.is_slow.store(true, Ordering::SeqCst);
    scene.cancel_one().await;
    assert_eq!((scene.decide().await, scene.calls()), (Outcome::Rejected, 4));
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_has_panicked_is_not_polled_again() {
    let scene = Scene::new(FailureMode::Open, None);
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let pending = PendingDecision::new(
        &scene.guard,
        std::future::poll_fn(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("a store with a bug")
        }),
    );
    assert!(tokio::spawn(pending).await.unwrap_err().is_panic());
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_polled_any_more_does_not_keep_the_circuit_open() {
    let scene = Scene::new(FailureMode::Open, None);
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        scene.decide().await;
    }
    scene.clock.advance(Duration::from_millis(100));
    let mut left_alone = Box::pin(scene.decide());
    assert!(futures_util::poll!(&mut left_alone).is_pending());
    scene.store.is_unavailable.store(false, Ordering::SeqCst);
    scene.clock.advance(Duration::from_millis(999));
    assert_eq!(scene.decide().await, Outcome::FailedOpen);
    scene.clock.advance(Duration::from_millis(1));
    assert_eq!(scene.decide().await, Outcome::Allowed);
    drop(left_alone);
    assert_eq!(scene.decide().await, Outcome::Allowed);
}

/// Regression: with a deadline of 10 s, waiting requests used 822 MB.
#[tokio::test(start_paused = true)]
async fn beyond_the_bound_no_request_waits_and_the_store_is_not_asked_and_not_blamed() {
    let scene = Scene::new(FailureMode::Open, None);
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    let start = tokio::time::Instant::now();
    let mut waiting: Vec<_> = (0..60).map(|_| Box::pin(scene.decide())).collect();
    for request in &mut waiting {
        assert!(futures_util::poll!(request).is_pending());
    }
    // Cancelled requests continue to wait in tasks.
    waiting.truncate(30);
    for _ in 0..1_000 {
        assert_eq!(scene.decide().await, Outcome::FailedOpen);
    }
    assert_eq!((scene.calls(), start.elapsed()), (60, Duration::ZERO));
    scene.store.is_unavailable.store(false, Ordering::SeqCst);
    assert!(scene.is_circuit_closed());
    futures_util::future::join_all(waiting).await;
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.guard.waiters.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_that_has_to_be_waited_for_is_waited_for_by_no_more_requests_than_the_store() {
    let fallback = Arc::new(Moody::default());
    fallback.is_unavailable.store(true, Ordering::SeqCst);
    let scene = Scene::new(FailureMode::Open, Some(Arc::new(Arc::clone(&fallback))));
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    futures_util::future::join_all((0..500).map(|_| scene.decide())).await;
    assert_eq!((scene.calls(), fallback.calls.load(Ordering::SeqCst)), (60, 500));
    assert!(!scene.is_circuit_closed());

    let mut requests: Vec<_> = (0..500).map(|_| Box::pin(scene.decide())).collect();
    let mut waiting = 0;
    for request in &mut requests {
        waiting += usize::from(futures_util::poll!(request).is_pending());
    }
    assert_eq!(waiting, 60);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_decides_while_the_store_does_not_whether_the_circuit_is_open_or_not() {
    let scene = Scene::new(FailureMode::Open, Some(Arc::new(MemoryStore::new())));
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    for number in 0..10 {
        let expected = if number < 3 {
            Outcome::Allowed
        } else {
            Outcome::Rejected
        };
        assert_eq!(scene.decide().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fallback_that_fails_too_leaves_it_to_the_failure_mode() {
    let hanging = Moody {
        is_unavailable: AtomicBool::new(true),
        ..Moody::default()
    };
    let scene = Scene::new(FailureMode::Closed, Some(Arc::new(hanging)));
    scene.store.is_unavailable.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        assert_eq!(scene.decide().await, Outcome::FailedClosed);
    }
}

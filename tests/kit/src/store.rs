use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, task::yield_now, time::sleep};
use tower_quota::{
    Decision, Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture,
    clock::{Clock, Timestamp},
};

/// A clock at the first moment of 2026, where every window of up to a day begins.
pub fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_767_225_600_000_000))
}

pub fn memory(clock: &Clock) -> MemoryStore {
    MemoryStore::builder().clock(clock.clone()).build().unwrap()
}

/// The way in which a [`TestStore`] makes its decisions.
#[derive(Clone, Debug, Default)]
pub enum Timing {
    #[default]
    AtOnce,
    /// Fails when the store is called.
    Failing(StoreErrorKind),
    /// Fails when it is polled a second time.
    FailingLater(StoreErrorKind),
    /// Decides with this delay before and after the store call.
    Far(Duration),
    Hanging,
    /// Decides when there is a permit.
    Held(Arc<Semaphore>),
    /// Decides at once, and shows it when it is polled a second time.
    Later,
    /// Decides at once, and shows it when there is a permit.
    Told(Arc<Semaphore>),
}

/// A store that wraps another one, decides in the way that a test sets, and counts its calls. Clones share everything.
#[derive(Clone, Debug)]
pub struct TestStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    timing: Mutex<Timing>,
    resets: Mutex<Option<Arc<Semaphore>>>,
    calls: AtomicUsize,
    told: AtomicUsize,
    asked: AtomicU64,
    settlements: AtomicUsize,
}

impl TestStore {
    pub fn new(store: impl Store, timing: Timing) -> Self {
        Self(Arc::new(Inner {
            store: Arc::new(store),
            timing: Mutex::new(timing),
            resets: Mutex::default(),
            calls: AtomicUsize::default(),
            told: AtomicUsize::default(),
            asked: AtomicU64::default(),
            settlements: AtomicUsize::default(),
        }))
    }

    /// A store in memory that decides at once.
    pub fn on(clock: &Clock) -> Self {
        Self::new(memory(clock), Timing::AtOnce)
    }

    pub fn failing(kind: StoreErrorKind) -> Self {
        Self::new(MemoryStore::new(), Timing::Failing(kind))
    }

    /// Sets the way in which later decisions are made.
    pub fn set(&self, timing: Timing) {
        *self.0.timing.lock().unwrap_or_else(PoisonError::into_inner) = timing;
    }

    /// Makes each later reset when there is a permit.
    pub fn hold_resets(&self, permits: Arc<Semaphore>) {
        *self.0.resets.lock().unwrap_or_else(PoisonError::into_inner) = Some(permits);
    }

    /// The number of calls for a decision.
    pub fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// The cost of the last of them.
    pub fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// The number of decisions by [`Timing::Told`], with and without a permit.
    pub fn told(&self) -> usize {
        self.0.told.load(Ordering::SeqCst)
    }

    /// The number of settlements that change something.
    pub fn settlements(&self) -> usize {
        self.0.settlements.load(Ordering::SeqCst)
    }
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new(MemoryStore::new(), Timing::AtOnce)
    }
}

impl Store for TestStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let cost = plan.charges().next().unwrap().cost();
        self.0.asked.store(cost, Ordering::SeqCst);
        let timing = self.0.timing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (inner, store) = (Arc::clone(&self.0), Arc::clone(&self.0.store));
        match timing {
            Timing::AtOnce => store.acquire(plan),
            Timing::Failing(kind) => StoreFuture::ready(Err(StoreError::new(kind, "test"))),
            Timing::FailingLater(kind) => StoreFuture::boxed(async move {
                yield_now().await;
                Err(StoreError::new(kind, "test"))
            }),
            Timing::Far(way) => StoreFuture::boxed(async move {
                sleep(way).await;
                let decided = store.acquire(plan).await;
                sleep(way).await;
                decided
            }),
            Timing::Hanging => StoreFuture::boxed(pending()),
            Timing::Held(permits) => StoreFuture::boxed(async move {
                permits.acquire_owned().await.unwrap().forget();
                store.acquire(plan).await
            }),
            Timing::Later => StoreFuture::boxed(async move {
                let decided = store.acquire(plan).await;
                yield_now().await;
                decided
            }),
            Timing::Told(permits) => StoreFuture::boxed(async move {
                let decided = store.acquire(plan).await;
                inner.told.fetch_add(1, Ordering::SeqCst);
                permits.acquire_owned().await.unwrap().forget();
                decided
            }),
        }
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        if !settlement.is_empty() {
            self.0.settlements.fetch_add(1, Ordering::SeqCst);
        }
        self.0.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        let resets = self.0.resets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(permits) = resets else {
            return self.0.store.reset(plan);
        };
        let store = Arc::clone(&self.0.store);
        StoreFuture::boxed(async move {
            permits.acquire_owned().await.unwrap().forget();
            store.reset(plan).await
        })
    }

    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        self.0.store.peek(plan)
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        self.0.store.flush(timeout)
    }
}

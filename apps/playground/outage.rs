//! A store that simulates outages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower_quota::{
    Decision, Measurement, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture, StoreTraits,
};

/// A store that fails every call during a simulated outage.
#[derive(Clone, Debug)]
pub(crate) struct RemovableStore {
    store: Arc<dyn Store>,
    is_taken_away: Arc<AtomicBool>,
}

impl RemovableStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            is_taken_away: Arc::default(),
        }
    }

    pub(crate) fn take_away(&self, is_taken_away: bool) {
        self.is_taken_away.store(is_taken_away, Ordering::Relaxed);
    }

    pub(crate) fn is_taken_away(&self) -> bool {
        self.is_taken_away.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<&dyn Store, StoreError> {
        match self.is_taken_away() {
            true => Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "taken away in the playground",
            )),
            false => Ok(&*self.store),
        }
    }
}

impl Store for RemovableStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        match self.check() {
            Ok(store) => store.acquire(plan),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        match self.check() {
            Ok(store) => store.settle(settlement),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        match self.check() {
            Ok(store) => store.reset(plan),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        match self.check() {
            Ok(store) => store.peek(plan),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn traits(&self) -> StoreTraits {
        self.store.traits()
    }

    fn silence(&self) -> StoreFuture<Option<Duration>> {
        self.store.silence()
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        self.store.flush(timeout)
    }
}

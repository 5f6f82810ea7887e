//! A store in memory that behaves like a remote one: asynchronous, and failing or hanging on demand.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};

use super::steps::Fault;

#[derive(Clone, Debug)]
pub struct Remote(Arc<Server>);

#[derive(Debug)]
struct Server {
    memory: MemoryStore,
    /// True if it answers with a delay.
    is_remote: bool,
    fault: Mutex<Option<Fault>>,
    calls: AtomicUsize,
}

impl Remote {
    pub fn new(memory: MemoryStore, is_remote: bool) -> Self {
        Self(Arc::new(Server {
            memory,
            is_remote,
            fault: Mutex::default(),
            calls: AtomicUsize::new(0),
        }))
    }

    pub fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    pub fn fault(&self) -> MutexGuard<'_, Option<Fault>> {
        self.0.fault.lock().unwrap()
    }

    fn unless_failing(&self, action: impl FnOnce(&MemoryStore) -> StoreFuture<()>) -> StoreFuture<()> {
        match *self.fault() {
            None => action(&self.0.memory),
            Some(Fault::Fails(kind)) => StoreFuture::ready(Err(failure(kind))),
            Some(Fault::Hangs) => StoreFuture::boxed(std::future::pending()),
        }
    }
}

fn failure(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "scripted by the test")
}

impl Store for Remote {
    /// A question counts when it is sent.
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let server = Arc::clone(&self.0);
        let fault = *self.fault();
        if !server.is_remote && fault != Some(Fault::Hangs) {
            server.calls.fetch_add(1, Ordering::SeqCst);
            return match fault {
                Some(Fault::Fails(kind)) => StoreFuture::ready(Err(failure(kind))),
                _ => server.memory.acquire(plan),
            };
        }
        StoreFuture::boxed(async move {
            server.calls.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            match fault {
                None => server.memory.acquire(plan).await,
                Some(Fault::Fails(kind)) => Err(failure(kind)),
                Some(Fault::Hangs) => std::future::pending().await,
            }
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.unless_failing(|memory| memory.settle(settlement))
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.unless_failing(|memory| memory.reset(plan))
    }
}

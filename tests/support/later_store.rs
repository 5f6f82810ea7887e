//! A store that has to be waited for, as one across a network.

use tower_quota::{AcquireFuture, MemoryStore, Plan, Settlement, Store, StoreFuture};

#[derive(Clone, Debug, Default)]
pub(crate) struct LaterStore(pub(crate) MemoryStore);

impl Store for LaterStore {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        let store = self.0.clone();
        AcquireFuture::boxed(async move {
            tokio::task::yield_now().await;
            store.acquire(plan).await
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.0.reset(plan)
    }
}

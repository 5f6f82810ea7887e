//! A store whose answers the layer caches as those of a server, and that answers when it is first polled.

use tower_quota::{AcquireFuture, MemoryStore, Plan, Settlement, Store, StoreFuture};

#[derive(Clone, Debug, Default)]
pub(crate) struct BoxedStore(MemoryStore);

impl Store for BoxedStore {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        let Self(store) = self.clone();
        AcquireFuture::boxed(async move { store.acquire(plan).await })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.0.reset(plan)
    }
}

//! A store in memory that the layer caches like a store on a server.

use tower_quota::{Measurement, MemoryStore, Plan, Settlement, Store, StoreFuture};

/// Returns `Pending` for the first `POLLS` polls: `RemoteStore::<0>` answers at the first poll, and the layer has to
/// wait for `RemoteStore::<1>`, as for a store across a network.
#[derive(Clone, Debug, Default)]
pub struct RemoteStore<const POLLS: usize>(pub MemoryStore);

impl<const POLLS: usize> Store for RemoteStore<POLLS> {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let Self(store) = self.clone();
        StoreFuture::boxed(async move {
            for _ in 0..POLLS {
                tokio::task::yield_now().await;
            }
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

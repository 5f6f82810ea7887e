//! The calls of [`Store`], for plans of any policies and partitions.

use std::sync::Arc;

use super::{
    super::{Store, StoreFuture, StoreTraits},
    MemoryStore, Shards,
};
use crate::{
    decision::{Measurement, Mode, PartPlan, Plan, Reads, Settlement},
    lease::{Lease, LeaseId},
    ledger::{Step, acquire_all_parts},
    partition::PartitionId,
};

impl Shards {
    fn hash_of(&self) -> impl Fn(PartitionId) -> u64 {
        |partition| self.shards.hash(partition)
    }

    fn acquire(&self, plan: Plan) -> Measurement {
        // Leases do not expire, because the holders are in this process.
        let lease = plan.takes_slots().then(|| Lease {
            id: LeaseId::unique(),
            until: u64::MAX,
        });
        if plan.mode() == Mode::UpTo {
            return self.acquire_all_parts(plan, lease);
        }
        let acquire = |part: PartPlan<'_>, reads: &mut Reads| {
            let mut shard = self.shards.lock(part.partition());
            shard.begin_call();
            // Read under the lock, so that time does not go backwards between decisions about a partition.
            let now = self.clock.now();
            let found = shard.acquire(self.hash_of(), now, part, Step::Charge(lease), reads);
            (found.moment, found.fits)
        };
        let measurement = Measurement::of_only_part(plan, lease.map(|lease| lease.id), acquire);
        measurement.unwrap_or_else(|plan| self.acquire_all_parts(plan, lease))
    }

    fn acquire_all_parts(&self, plan: Plan, lease: Option<Lease>) -> Measurement {
        let mut indexes: Vec<usize> = plan.parts().map(|part| self.shards.index(part.partition())).collect();
        // Shards are locked in ascending order, so that concurrent calls cannot deadlock.
        indexes.sort_unstable();
        indexes.dedup();
        let shards = indexes.into_iter().map(|index| (index, self.shards.lock_at(index)));
        let mut shards: Vec<_> = shards.collect();
        let now = self.clock.now();
        for (_, shard) in &mut shards {
            shard.begin_call();
        }
        acquire_all_parts(plan, lease, |part, step, reads| {
            let index = self.shards.index(part.partition());
            let position = shards.binary_search_by_key(&index, |(locked, _)| *locked);
            let shard = &mut shards[position.expect("all shards are locked")].1;
            shard.acquire(self.hash_of(), now, part, step, reads)
        })
    }
}

impl Store for MemoryStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        StoreFuture::ready(Ok(self.0.acquire(plan)))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        for part in settlement.parts().filter(|part| !part.is_empty()) {
            let mut shard = self.0.shards.lock(part.part.partition());
            shard.begin_call();
            shard.settle(self.0.hash_of(), self.0.clock.now(), part);
        }
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        for part in plan.parts() {
            let mut shard = self.0.shards.lock(part.partition());
            shard.reset(self.0.shards.hash(part.partition()), part);
        }
        StoreFuture::ready(Ok(()))
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_identity(Arc::as_ptr(&self.0).addr() as u64)
    }
}

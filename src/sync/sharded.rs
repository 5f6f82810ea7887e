//! State of many partitions, divided among several locks.

use std::{hash::BuildHasher, sync::MutexGuard};

use foldhash::fast::RandomState;

use crate::{partition::PartitionId, sync::mutex::Mutex};

/// Up to 64 values of which each holds its part of the partitions, under a lock of its own.
///
/// A partition belongs to one shard by a hash with a random key, so that no client can choose keys that meet in one.
pub(crate) struct Sharded<V> {
    shards: Box<[Mutex<V>]>,
    hasher: RandomState,
}

impl<V> Sharded<V> {
    /// Divides a cap on the number of partitions, and makes each shard with its part of it.
    ///
    /// A small cap has few shards: partitions do not fall evenly into small parts.
    pub(crate) fn new(cap: usize, shard: impl Fn(usize) -> V) -> Self {
        let count = (cap / 1024).clamp(1, 64).next_power_of_two();
        Self {
            shards: (0..count).map(|_| Mutex::new(shard(cap / count))).collect(),
            hasher: RandomState::default(),
        }
    }

    /// Locks the shard of a partition.
    #[inline]
    pub(crate) fn lock(&self, partition: PartitionId) -> MutexGuard<'_, V> {
        self.lock_at(self.index(partition))
    }

    /// Locks each shard in turn.
    pub(crate) fn lock_each(&self) -> impl Iterator<Item = MutexGuard<'_, V>> {
        self.shards.iter().map(Mutex::lock)
    }

    /// The index of a partition's shard: who locks several takes them in this order.
    #[inline]
    pub(crate) fn index(&self, partition: PartitionId) -> usize {
        (self.hash(partition) >> 32) as usize & (self.shards.len() - 1)
    }

    pub(crate) fn lock_at(&self, index: usize) -> MutexGuard<'_, V> {
        self.shards[index].lock()
    }

    /// The hash of a partition. Its lower half has no part in the choice of the shard.
    #[inline]
    pub(crate) fn hash(&self, partition: PartitionId) -> u64 {
        self.hasher.hash_one(partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{PartitionKey, Scope};

    #[test]
    fn a_cap_is_divided_among_a_power_of_two_of_shards() {
        for (cap, shards) in [(0, 1), (1, 1), (2_047, 1), (3_072, 4), (16_384, 16), (1 << 30, 64)] {
            let sharded = Sharded::new(cap, |part| part);
            assert_eq!(sharded.lock_each().count(), shards, "{cap}");
            assert!(sharded.lock_each().all(|part| *part == cap / shards), "{cap}");
        }
    }

    #[test]
    fn a_partition_has_one_shard_and_all_shards_have_partitions() {
        let sharded = Sharded::new(16_384, |_| 0);
        for user in 0..1_000_u64 {
            let partition = Scope::new("sharded").partition(&PartitionKey::new("user", user.to_be_bytes()));
            *sharded.lock(partition) += 1;
            assert_eq!(sharded.index(partition), sharded.index(partition));
        }
        assert!(sharded.lock_each().all(|partitions| *partitions > 0));
    }
}

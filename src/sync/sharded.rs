use std::{hash::BuildHasher, sync::MutexGuard};

use foldhash::fast::RandomState;

use crate::{partition::PartitionId, sync::mutex::Mutex};

/// Up to 64 shards, each with its own lock. The hash is keyed randomly, so that clients cannot choose colliding keys.
pub(crate) struct Sharded<V> {
    shards: Box<[Mutex<V>]>,
    hasher: RandomState,
}

impl<V> Sharded<V> {
    /// A small `cap` has few shards, because small shards fill unevenly.
    pub(crate) fn new(cap: usize, shard: impl Fn(usize) -> V) -> Self {
        let count = (cap / 1024).clamp(1, 64).next_power_of_two();
        Self {
            shards: (0..count).map(|_| Mutex::new(shard(cap / count))).collect(),
            hasher: RandomState::default(),
        }
    }

    #[inline]
    pub(crate) fn lock(&self, partition: PartitionId) -> MutexGuard<'_, V> {
        self.lock_at(self.index(partition))
    }

    pub(crate) fn lock_each(&self) -> impl Iterator<Item = MutexGuard<'_, V>> {
        self.shards.iter().map(Mutex::lock)
    }

    /// Lock several shards in ascending order.
    #[inline]
    pub(crate) fn index(&self, partition: PartitionId) -> usize {
        self.index_of(self.hash(partition))
    }

    #[inline]
    pub(crate) fn index_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(crate) fn lock_at(&self, index: usize) -> MutexGuard<'_, V> {
        self.shards[index].lock()
    }

    /// The shard index only depends on the upper 32 bits.
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

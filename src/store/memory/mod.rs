//! Quota kept in this process.

mod shard;

use std::{
    fmt,
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

use self::shard::Shard;
use super::{AcquireFuture, Store};
use crate::{
    clock::Clock,
    decision::Decision,
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
    plan::Plan,
};

/// Keeps quota in this process: the embedded default, exact and without a server.
///
/// You want it for a service with one instance, for tests, and as the fallback of a
/// [`RedisStore`](crate::RedisStore). It does *not* share anything with other processes: N instances admit N times the quota.
///
/// Clones share their state. Memory is bounded by a hard cap on the number of partitions, by default 262 144, about 40 MB with
/// up to three policies. There is no background task: each new partition clears away up to two that have not been used
/// for so long that they are as good as new; at the cap it takes the place of the one, among eight, that is nearest to
/// that. So a flood of new keys costs the idle ones first; a partition that is thrown out starts with a full quota.
///
/// A decision takes a mutex of one of up to 64 shards for well under a microsecond and never waits for anything else.
///
/// ```
/// use tower_quota::MemoryStore;
///
/// let store = MemoryStore::builder().max_partitions(1_000).build()?;
/// assert_eq!(store.partitions(), 0);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shards>);

struct Shards {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    clock: Clock,
}

impl MemoryStore {
    const DEFAULT_MAX_PARTITIONS: usize = 1 << 18;

    /// A store with the default cap and the system clock.
    pub fn new() -> Self {
        Self::of(Self::DEFAULT_MAX_PARTITIONS, Clock::system())
    }

    /// A store with settings of your own.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            max_partitions: Self::DEFAULT_MAX_PARTITIONS,
            clock: Clock::system(),
        }
    }

    fn of(max_partitions: usize, clock: Clock) -> Self {
        // Few shards for a small cap: each shard has its part of the cap, and keys do not fall evenly into small parts.
        let shards = (max_partitions / 1024).clamp(1, 64).next_power_of_two();
        let shards = (0..shards)
            .map(|_| Mutex::new(Shard::new(max_partitions / shards)))
            .collect();
        Self(Arc::new(Shards {
            shards,
            hasher: RandomState::default(),
            clock,
        }))
    }

    /// How many partitions are kept at this moment, idle ones included.
    pub fn partitions(&self) -> usize {
        self.0.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

impl Shards {
    /// By a hash with a random key, so that nobody can choose keys that meet in one shard.
    fn shard(&self, partition: PartitionId) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(partition);
        lock(&self.shards[(hash >> 32) as usize & (self.shards.len() - 1)])
    }
}

/// A panic while a shard was locked can only have come from outside of its code; what it holds is sound.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        let mut shard = self.0.shard(plan.partition());
        // Read under the lock, so that the decisions of a partition see time in order.
        let now = self.0.clock.now();
        let used = shard.acquire(now, &plan);
        drop(shard);
        AcquireFuture::ready(Ok(Decision::measured(plan, used)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("partitions", &self.partitions())
            .finish_non_exhaustive()
    }
}

/// Settings of a [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_partitions: usize,
    clock: Clock,
}

impl MemoryStoreBuilder {
    /// The most partitions that are kept, at least 1. Default: 262 144.
    ///
    /// The cap is divided among the shards, so a store may begin to throw out partitions a little before it is full.
    #[must_use]
    pub fn max_partitions(mut self, max_partitions: usize) -> Self {
        self.max_partitions = max_partitions;
        self
    }

    /// The clock that the store reads. Default: [`Clock::system`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// If the cap is 0.
    pub fn build(self) -> Result<MemoryStore, ConfigError> {
        if self.max_partitions == 0 {
            let message = "memory store: max_partitions 0 is below 1";
            return Err(ConfigError::new(ConfigErrorKind::Store, message));
        }
        Ok(MemoryStore::of(self.max_partitions, self.clock))
    }
}

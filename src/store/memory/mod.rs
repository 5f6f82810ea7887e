mod acquire;
mod shard;
mod table;

use std::{fmt, sync::Arc};

use self::shard::Shard;
use crate::{
    clock::Clock,
    decision::{Charged, PlanRef},
    error::{ConfigError, ConfigErrorKind},
    sync::sharded::Sharded,
};

/// A store that keeps quota in this process, without a server.
///
/// Use this for a service with one instance, for tests, and as the fallback of a `RedisStore`. Processes do *not* share
/// their counts: N instances admit N times the quota. Clones share their state. Calls never fail or time out.
///
/// The number of partitions is bounded. The default of 262,144 takes about 21 MB with up to three buckets or fixed
/// windows, and about 46 MB with other algorithms; a [sliding window log](crate::Algorithm::SlidingWindowLog) takes
/// about 32 bytes more for each request in its window. Expired partitions are removed when new ones need room.
///
/// ```
/// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 1)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let send = async |store: &MemoryStore| store.decide(Plan::new(policies.clone(), alice, 1)).await;
///
/// assert_eq!(send(&store).await?.outcome(), Outcome::Allowed);
/// assert_eq!(store.partitions(), 1);
///
/// // Clones share their counts; separate stores do not.
/// assert_eq!(send(&store.clone()).await?.outcome(), Outcome::Rejected);
/// assert_eq!(send(&MemoryStore::new()).await?.outcome(), Outcome::Allowed);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Floods of new keys
///
/// When the store is full, a new partition *evicts* another one with a small used share, whose caller then has its full
/// quota again. A flood of keys with one request each does not evict a caller that was rejected and still has more than
/// half of its quota in use. [Tuning](crate::docs::tuning#floods-of-new-keys) has the exact guarantee.
///
/// ```
/// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::builder().max_partitions(1_000).build()?;
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 2)])?;
/// let send = async |user: &str| {
///     let user = Scope::new("mails").partition(&PartitionKey::new("user", user));
///     store.decide(Plan::new(policies.clone(), user, 1)).await.map(|decision| decision.outcome())
/// };
///
/// for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Rejected] {
///     assert_eq!(send("mallory").await?, expected);
/// }
/// for number in 0..5_000 {
///     send(&format!("made-up-{number}")).await?;
/// }
/// assert_eq!(send("mallory").await?, Outcome::Rejected);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shards>);

struct Shards {
    shards: Sharded<Shard>,
    clock: Clock,
}

impl MemoryStore {
    const DEFAULT_MAX_PARTITIONS: usize = 1 << 18;

    /// Creates a store with the default settings.
    pub fn new() -> Self {
        Self::on(Clock::system())
    }

    pub(crate) fn on(clock: Clock) -> Self {
        Self::of(Self::DEFAULT_MAX_PARTITIONS, clock)
    }

    /// Creates a builder.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            max_partitions: Self::DEFAULT_MAX_PARTITIONS,
            clock: Clock::system(),
        }
    }

    pub(crate) fn of(max_partitions: usize, clock: Clock) -> Self {
        Self(Arc::new(Shards {
            shards: Sharded::new(max_partitions, Shard::new),
            clock,
        }))
    }

    /// Returns `None` if the charge needs a [`Plan`], and then charges nothing.
    #[inline]
    pub(crate) fn charge(&self, plan: &PlanRef<'_>) -> Option<Charged> {
        let Shards { shards, clock } = &*self.0;
        let hash = shards.hash(plan.partition());
        let mut shard = shards.lock_at(shards.index_of(hash));
        shard.begin_call();
        shard.charge(|id| shards.hash(id), hash, clock.now(), plan)
    }

    /// Returns the number of stored partitions, including expired ones that were not removed yet.
    pub fn partitions(&self) -> usize {
        self.0.shards.lock_each().map(|shard| shard.len()).sum()
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

/// Settings of a [`MemoryStore`]. All settings have defaults.
///
/// ```
/// use tower_quota::MemoryStore;
/// use tower_quota::clock::{Clock, Timestamp};
///
/// let store = MemoryStore::builder()
///     .max_partitions(100_000)
///     .clock(Clock::manual(Timestamp::from_micros(0)))
///     .build()?;
/// assert_eq!(store.partitions(), 0);
///
/// let error = MemoryStore::builder().max_partitions(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "memory store: max_partitions must be at least 1");
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_partitions: usize,
    clock: Clock,
}

impl MemoryStoreBuilder {
    /// Sets the maximum number of partitions, at least 1. Default: 262,144.
    ///
    /// [Evictions](MemoryStore#floods-of-new-keys) may start earlier, because the maximum is divided among the shards.
    /// The metric [`tower_quota_evictions_total`](crate::telemetry) counts them.
    #[must_use]
    pub fn max_partitions(mut self, max_partitions: usize) -> Self {
        self.max_partitions = max_partitions;
        self
    }

    /// Sets the clock, for tests with a [manual clock](crate::clock). Default: [`Clock::system`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// Returns an error if the maximum number of partitions is 0.
    pub fn build(self) -> Result<MemoryStore, ConfigError> {
        if self.max_partitions == 0 {
            let message = "memory store: max_partitions must be at least 1";
            return Err(ConfigError::new(ConfigErrorKind::Store, message));
        }
        Ok(MemoryStore::of(self.max_partitions, self.clock))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Outcome, Plan,
        clock::Timestamp,
        partition::{PartitionKey, Scope},
        policy::{PolicySet, QuotaPolicy},
        store::Store,
    };

    fn store(max_partitions: usize) -> (Clock, MemoryStore) {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000));
        let builder = MemoryStore::builder().max_partitions(max_partitions);
        (clock.clone(), builder.clock(clock).build().unwrap())
    }

    fn acquire(store: &MemoryStore, policy: QuotaPolicy, user: u64, cost: u64) -> Outcome {
        let id = Scope::new("memory").partition(&PartitionKey::new("user", user.to_be_bytes()));
        let plan = Plan::new(PolicySet::new([policy]).unwrap(), id, cost);
        store.decide(plan).into_ready().ok().unwrap().unwrap().outcome()
    }

    const MINUTE: QuotaPolicy = QuotaPolicy::per_minute("minute", 60);

    #[test]
    fn a_flood_of_keys_never_exceeds_the_cap() {
        for cap in [1, 7, 1_000, 5_000] {
            let (_, store) = store(cap);
            for user in 0..20_000 {
                assert_eq!(acquire(&store, MINUTE, user, 1), Outcome::Allowed);
            }
            let kept = store.partitions();
            assert!((cap / 2..=cap).contains(&kept), "{kept} of {cap}");
        }
    }

    #[test]
    fn idle_partitions_make_room_for_new_ones() {
        let (clock, store) = store(100_000);
        for user in 0..1_000 {
            acquire(&store, MINUTE, user, 1);
        }
        clock.advance(Duration::from_secs(2));
        for user in 1_000..2_000 {
            acquire(&store, MINUTE, user, 1);
        }
        assert!(store.partitions() < 1_500, "{}", store.partitions());
    }

    #[test]
    fn requests_that_take_nothing_or_are_rejected_keep_nothing() {
        let (_, store) = store(100);
        acquire(&store, MINUTE, 1, 0);
        acquire(&store, MINUTE, 2, 61);
        assert_eq!(store.partitions(), 0);
    }
}

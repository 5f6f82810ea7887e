//! The batches of a limiter, and the task that refunds those which expire.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, task::AbortHandle, time::Instant};

use super::{super::rejection_cache::RejectionCache, pool::BatchPool};
use crate::{
    clock::Clock,
    partition::PartitionId,
    policy::BatchTerms,
    round_trips::RoundTrips,
    sync::{bounded_map::BoundedMap, mutex::Mutex, sharded::Sharded},
};

/// All units that an instance has prefetched. They are given back when it is dropped.
pub(in super::super) struct Prefetch {
    pub(super) holdings: Sharded<BoundedMap<BatchPool>>,
    pub(super) cache: Arc<RejectionCache>,
    /// Maximum time of a call that no request waits for.
    pub(super) deadline: Duration,
    pub(super) round_trips: Mutex<RoundTrips>,
    /// The time in which a batch may be spent, in microseconds: it follows the distance of the store.
    pub(super) lifetime: AtomicU64,
    pub(super) clock: Clock,
    pub(super) next_id: AtomicU64,
    /// Partitions that are being reset.
    pub(super) resets: Mutex<Vec<PartitionId>>,
    /// The task that gives back.
    pub(super) task: Mutex<Option<AbortHandle>>,
    /// Has a receiver for each [`Fetch`].
    pub(super) fetches: watch::Sender<()>,
    /// The number of flushes that are under way. Meanwhile nothing is prefetched.
    pub(super) flushes: AtomicUsize,
}

impl Prefetch {
    /// Maximum number of partitions.
    const CAP: usize = 1 << 14;
    /// The pause between two searches for units that were not spent in time.
    const TICK: Duration = Duration::from_millis(50);
    /// The time in which a batch may be spent, unless the store is so far away that fetching the next one takes too much of it.
    const LIFETIME: Duration = Duration::from_secs(1);
    /// One for the call itself, two for the next one, which is begun two round trips ahead, and one to spend.
    const LIFETIME_ROUND_TRIPS: u32 = 4;
    /// Half of a minute: the distance is the shortest round trip of the last one or two such times. The shortest, because a
    /// store that is stopped for a moment must not have units held for longer.
    const DISTANCE_WINDOW: Duration = Duration::from_secs(30);

    pub(in super::super) fn new(cache: Arc<RejectionCache>, deadline: Duration, clock: Clock) -> Self {
        Self {
            holdings: Sharded::new(Self::CAP, |cap| BoundedMap::new(cap, || {})),
            cache,
            deadline,
            round_trips: Mutex::new(RoundTrips::new(Self::DISTANCE_WINDOW)),
            lifetime: AtomicU64::new(Self::LIFETIME.as_micros() as u64),
            clock,
            next_id: AtomicU64::new(0),
            resets: Mutex::default(),
            task: Mutex::default(),
            fetches: watch::Sender::default(),
            flushes: AtomicUsize::new(0),
        }
    }

    /// The terms with the lifetime that suits the distance of the store.
    pub(super) fn terms(&self, terms: BatchTerms) -> BatchTerms {
        terms.with_lifetime(Duration::from_micros(self.lifetime.load(Ordering::Relaxed)))
    }

    /// A call that fetched a batch has taken so long.
    pub(super) fn answered_after(&self, time: Duration) {
        let mut round_trips = self.round_trips.lock();
        round_trips.record(time, Instant::now());
        let shortest = round_trips.shortest().unwrap_or_default();
        let lifetime = Self::LIFETIME.max(shortest.saturating_mul(Self::LIFETIME_ROUND_TRIPS));
        let micros = u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX);
        self.lifetime.store(micros, Ordering::Relaxed);
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the task that gives back, unless it runs.
    pub(super) fn watch(self: &Arc<Self>) {
        let mut task = self.task.lock();
        // It may have ended with the runtime that it was started in.
        if task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task = Some(runtime.spawn(give_back(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Gives back what was not spent in time. Returns `true` if batches are left.
    fn sweep(&self) -> bool {
        let now = self.clock.now();
        let mut is_any_left = false;
        for mut shard in self.holdings.lock_each() {
            let expired: Vec<_> = shard.values_mut().flat_map(|held| held.take_expired(now)).collect();
            is_any_left |= shard.values_mut().any(|pool| pool.has_batches());
            drop(shard);
            drop(expired);
        }
        is_any_left
    }

    /// Returns `true` if the task has nothing more to do. It ends then.
    fn is_done(&self) -> bool {
        if self.sweep() {
            return false;
        }
        let mut task = self.task.lock();
        // A request that landed a batch before this lock was taken has found the task running.
        let is_done = !self.sweep();
        if is_done {
            *task = None;
        }
        is_done
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prefetch(..)")
    }
}

#[allow(clippy::disallowed_methods, reason = "it waits until units have to go back")]
async fn give_back(prefetch: Weak<Prefetch>) {
    loop {
        tokio::time::sleep(Prefetch::TICK).await;
        if prefetch.upgrade().is_none_or(|prefetch| prefetch.is_done()) {
            return;
        }
    }
}

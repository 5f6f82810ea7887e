use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, task::AbortHandle, time::Instant};

use super::{super::rejection_cache::RejectionCache, pool::BatchPool};
use crate::{
    clock::Clock,
    policy::BatchTerms,
    round_trips::RoundTrips,
    sync::{bounded_map::BoundedMap, mutex::Mutex, sharded::Sharded},
};

/// Dropping it refunds all units.
pub(in super::super) struct Prefetch {
    pub(super) holdings: Sharded<BoundedMap<BatchPool>>,
    pub(super) cache: Arc<RejectionCache>,
    /// The deadline of calls that no request waits for.
    pub(super) deadline: Duration,
    round_trips: Mutex<RoundTrips>,
    /// The lifetime of a batch in microseconds, which depends on the round trip to the store.
    lifetime: AtomicU64,
    pub(super) clock: Clock,
    pub(super) next_id: AtomicU64,
    task: Mutex<Option<AbortHandle>>,
    /// Has one receiver per [`Fetch`].
    pub(super) fetches: watch::Sender<()>,
    /// Has a clone per flush in progress, during which prefetching pauses.
    pub(super) flushes: Arc<()>,
}

impl Prefetch {
    const CAP: usize = 1 << 14;
    const TICK: Duration = Duration::from_millis(50);
    /// The minimum; for a remote store, fetching the next batch takes longer.
    const LIFETIME: Duration = Duration::from_secs(1);
    /// The call takes one, the next call starts two before the expiry, and one remains for spending the units.
    const LIFETIME_ROUND_TRIPS: u32 = 4;
    /// A minimum, because a short pause of the store must not extend the lifetime.
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
            task: Mutex::default(),
            fetches: watch::Sender::default(),
            flushes: Arc::default(),
        }
    }

    pub(super) fn terms(&self, terms: BatchTerms) -> BatchTerms {
        terms.with_lifetime(Duration::from_micros(self.lifetime.load(Ordering::Relaxed)))
    }

    pub(super) fn answered_after(&self, time: Duration) {
        let mut round_trips = self.round_trips.lock();
        round_trips.record(time, Instant::now());
        let shortest = round_trips.shortest().unwrap_or_default();
        let lifetime = Self::LIFETIME.max(shortest.saturating_mul(Self::LIFETIME_ROUND_TRIPS));
        let micros = u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX);
        self.lifetime.store(micros, Ordering::Relaxed);
    }

    pub(super) fn watch(self: &Arc<Self>) {
        let mut task = self.task.lock();
        // The task may have ended with its runtime.
        if task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task = Some(runtime.spawn(give_back(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Returns `true` if batches remain.
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

    fn is_done(&self) -> bool {
        if self.sweep() {
            return false;
        }
        let mut task = self.task.lock();
        // A request that added a batch before this lock saw the task running.
        let is_done = !self.sweep();
        if is_done {
            *task = None;
        }
        is_done
    }
}

#[allow(clippy::disallowed_methods, reason = "waits until units must be refunded")]
async fn give_back(prefetch: Weak<Prefetch>) {
    loop {
        tokio::time::sleep(Prefetch::TICK).await;
        if prefetch.upgrade().is_none_or(|prefetch| prefetch.is_done()) {
            return;
        }
    }
}

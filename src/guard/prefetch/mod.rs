//! Prefetched units: an instance charges a *block* of units at once, spends them by itself, and gives back the rest.
//!
//! A request takes the first of these ways that it can:
//!
//! 1. The block of its partition decides it. No request waits, and the store is not asked.
//! 2. It waits for a block that is being fetched and has units which no other request waits for.
//! 3. It fetches a block if that pays: blocks double while a partition keeps asking, and none is larger than a share of what
//!    the store has left.
//! 4. It is charged alone, as without prefetch. So requests never queue behind each other for single units.
//!
//! A task of its own fetches a block: the requests that wait for it may miss their deadlines, and the units are not lost.
//! Another task gives back units that were not spent in time. It runs while there are blocks.

mod block;
mod fetch;
mod holding;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, task::AbortHandle, time::Instant};

use self::{
    fetch::Fetch,
    holding::{Holding, Step},
};
use super::denials::DenialCache;
use crate::{
    bounded_map::BoundedMap,
    clock::Clock,
    error::{StoreError, StoreErrorKind},
    exchange::{Decision, Outcome, Plan},
    mutex::Mutex,
    partition::PartitionId,
    policy::BlockTerms,
    sharded::Sharded,
};

/// All units that an instance has prefetched. They are given back when it is dropped.
pub(super) struct Prefetch {
    holdings: Sharded<BoundedMap<Holding>>,
    cache: Arc<DenialCache>,
    clock: Clock,
    next_id: AtomicU64,
    /// Partitions that are being reset.
    resets: Mutex<Vec<PartitionId>>,
    /// The task that gives back.
    task: Mutex<Option<AbortHandle>>,
}

impl Prefetch {
    /// Maximum number of partitions.
    const CAP: usize = 1 << 14;
    /// The pause between two searches for units that were not spent in time.
    const TICK: Duration = Duration::from_millis(50);

    pub(super) fn new(cache: Arc<DenialCache>, clock: Clock) -> Self {
        Self {
            holdings: Sharded::new(Self::CAP, |cap| BoundedMap::new(cap, || {})),
            cache,
            clock,
            next_id: AtomicU64::new(0),
            resets: Mutex::default(),
            task: Mutex::default(),
        }
    }

    /// Decides a plan by units that are there.
    pub(super) fn spend(&self, plan: &Plan) -> Option<Decision> {
        let part = plan.only_part()?;
        let mut shard = self.holdings.lock(part.partition());
        let holding = shard.visit(part.partition())?;
        holding
            .is_about(part.policies())
            .then(|| holding.spend(plan, self.clock.now()))?
    }

    /// Decides a plan for which no units are there.
    pub(super) async fn decide(
        self: &Arc<Self>,
        plan: Plan,
        terms: BlockTerms,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let verdict = match self.step(&plan, terms) {
            Step::Alone => return self.decide_alone(&plan, deadline).await,
            Step::Decided(decision) => return Ok(*decision),
            Step::Fetch(order, verdict) => {
                Fetch::new(self, &plan, terms, order).begin(deadline);
                verdict
            }
            Step::Wait(verdict) => verdict,
        };
        match self.cache.store.within(deadline, verdict).await {
            // Without a verdict, the runtime of the task that fetched the block has ended.
            Some(verdict) => match verdict.unwrap_or(Ok(None))? {
                Some(decision) => Ok(decision),
                None => self.decide_alone(&plan, deadline).await,
            },
            None => {
                let message = "no units were there within the deadline";
                Err(StoreError::new(StoreErrorKind::TimedOut, message))
            }
        }
    }

    /// Has the store decide one request. Before the request is rejected, a rest that is too small for it goes back, if both
    /// together may be enough.
    async fn decide_alone(&self, plan: &Plan, deadline: Instant) -> Result<Decision, StoreError> {
        let decision = self.charge_apart(plan, deadline).await?;
        if decision.outcome() != Outcome::Rejected {
            return Ok(decision);
        }
        if let Some(decision) = self.spend(plan) {
            return Ok(decision);
        }
        let Some(mut rest) = self.with_holding(plan, |holding| holding.take_rest(&decision)) else {
            return Ok(decision);
        };
        match self.cache.store.within(deadline, rest.give_back()).await {
            Some(Ok(())) => {
                self.cache.forget(plan.partition());
                self.charge_apart(plan, deadline).await
            }
            Some(Err(_)) | None => Ok(decision),
        }
    }

    async fn charge_apart(&self, plan: &Plan, deadline: Instant) -> Result<Decision, StoreError> {
        let decision = self.cache.decide(plan.clone(), deadline).await?;
        self.with_holding(plan, |holding| {
            holding.charged_apart(plan.costs().requests, &decision);
            None::<()>
        });
        Ok(decision)
    }

    /// Resets the plan's partitions. Units that are held of the first one are neither spent nor given back any more. Until
    /// the reset is over none are prefetched: nothing would tell whether the store has forgotten them.
    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let (prefetch, partition) = (self, plan.partition());
        self.resets.lock().push(partition);
        let _resetting = Resetting { prefetch, partition };
        if let Some(holding) = self.holdings.lock(partition).get_mut(partition) {
            holding.forget();
        }
        self.cache.reset(plan).await
    }

    fn step(&self, plan: &Plan, terms: BlockTerms) -> Step {
        // Without a runtime, no task could give back what is not spent.
        let Some(part) = plan.only_part().filter(|_| Handle::try_current().is_ok()) else {
            return Step::Alone;
        };
        let (partition, id) = (part.partition(), self.next_id.fetch_add(1, Ordering::Relaxed));
        // Declared before the lock, and so dropped after it.
        let (_expired, _older);
        let mut shard = self.holdings.lock(partition);
        let now = self.clock.now();
        let new = || Holding::new(part.policies().clone());
        let is_expired = |holding: &Holding| holding.is_expired(now, terms);
        let holding = shard.get_or_insert_with(partition, is_expired, Holding::worth, new);
        _older = (!holding.is_about(part.policies())).then(|| std::mem::replace(holding, new()));
        _expired = holding.take_expired(now);
        if self.resets.lock().contains(&partition) {
            return Step::Alone;
        }
        holding.step(plan, terms, now, id)
    }

    /// Does something with the holding of a plan's partition, if there is one about the same policies.
    fn with_holding<T>(&self, plan: &Plan, act: impl FnOnce(&mut Holding) -> Option<T>) -> Option<T> {
        let part = plan.only_part()?;
        let mut shard = self.holdings.lock(part.partition());
        let holding = shard.get_mut(part.partition())?;
        holding.is_about(part.policies()).then(|| act(holding))?
    }

    /// Starts the task that gives back, unless it runs.
    fn watch(self: &Arc<Self>) {
        let mut task = self.task.lock();
        // It may have ended with the runtime that it was started in.
        if task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task = Some(runtime.spawn(give_back(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Gives back what was not spent in time. Returns `true` if blocks are left.
    fn sweep(&self) -> bool {
        let now = self.clock.now();
        let mut is_any_left = false;
        for mut shard in self.holdings.lock_each() {
            let expired: Vec<_> = shard.values_mut().filter_map(|held| held.take_expired(now)).collect();
            is_any_left |= shard.values_mut().any(|holding| holding.block.is_some());
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
        // A request that landed a block before this lock was taken has found the task running.
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

/// A partition that is being reset, until this is dropped.
struct Resetting<'a> {
    prefetch: &'a Prefetch,
    partition: PartitionId,
}

impl Drop for Resetting<'_> {
    fn drop(&mut self) {
        let mut resets = self.prefetch.resets.lock();
        if let Some(own) = resets.iter().position(|partition| *partition == self.partition) {
            resets.swap_remove(own);
        }
    }
}

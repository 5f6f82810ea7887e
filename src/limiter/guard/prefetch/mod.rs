//! Prefetched units: an instance charges a *batch* of units at once, spends them by itself, and gives back the rest.
//!
//! A request takes the first of these ways that it can:
//!
//! 1. A batch of its partition decides it. It does not wait. If the units will be used up or expire soon, it has the next
//!    batch fetched *ahead*: two times of a call before that, so that no request of a busy caller waits, however far the
//!    store is. At most one call for each partition is under way, and what is held and under way is never more than the
//!    policy allows.
//! 2. It waits for a batch that is being fetched and has units which no other request waits for.
//! 3. It fetches a batch if that pays: batches double until they last for most of their lifetime, and none is larger than a
//!    share of what the store has left.
//! 4. It is charged alone, as without prefetch. So requests never queue behind each other for single units.
//!
//! A task of its own fetches a batch: the requests that wait for it may miss their deadlines, and the units are not lost.
//! Another task gives back units that were not spent in time. It runs while there are batches.
//!
//! A call ahead that fails harms no request: what is held is spent, and the next one is made after an eighth of the lifetime
//! of a batch.

mod batch;
mod fetch;
mod fetching;
mod pace;
mod pool;
mod state;

use std::sync::{Arc, atomic::Ordering};

use tokio::{runtime::Handle, task::yield_now, time::Instant};

pub(super) use self::state::Prefetch;
use self::{
    fetch::Fetch,
    pool::{BatchPool, Step},
};
use crate::{
    decision::{Decision, Outcome, Plan},
    error::StoreError,
    partition::PartitionId,
    policy::BatchTerms,
};

impl Prefetch {
    /// Decides a plan by units that are there, and has more fetched if they will not last.
    pub(super) fn spend(self: &Arc<Self>, plan: &Plan, terms: BatchTerms) -> Option<Decision> {
        let terms = self.terms(terms);
        let part = plan.only_part()?;
        let mut shard = self.holdings.lock(part.partition());
        let pool = shard.visit(part.partition())?;
        if !pool.is_about(part.policies()) {
            return None;
        }
        let now = self.clock.now();
        let decision = pool.spend(plan, now)?;
        let order = match self.is_flushing() {
            true => None,
            false => pool.order_ahead(terms, now, || self.next_id()),
        };
        drop(shard);
        // Without a runtime, no task could wait for the answer. A fetch that is dropped has ended.
        let fetch = order.map(|order| Fetch::new(self, plan, terms, order));
        if let Some(fetch) = fetch.filter(|_| Handle::try_current().is_ok()) {
            fetch.begin(Instant::now() + self.deadline);
        }
        Some(decision)
    }

    /// Decides a plan for which no units are there.
    pub(super) async fn decide(
        self: &Arc<Self>,
        plan: Plan,
        terms: BatchTerms,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let terms = self.terms(terms);
        let verdict = match self.step(&plan, terms) {
            Step::Alone => return self.decide_alone(&plan, terms, deadline).await,
            Step::Decided(decision) => return Ok(decision),
            Step::Fetch(order, verdict) => {
                Fetch::new(self, &plan, terms, order).begin(deadline);
                verdict
            }
            Step::Wait(verdict) => verdict,
        };
        match self.cache.store.within(deadline, verdict).await {
            // Without a verdict, the runtime of the task that fetched the batch has ended.
            Ok(verdict) => match verdict.unwrap_or(Ok(None))? {
                Some(decision) => Ok(decision),
                None => self.decide_alone(&plan, terms, deadline).await,
            },
            Err(late) => Err(late.error("no units were there within the deadline")),
        }
    }

    /// Has the store decide one request. Before the request is rejected, a rest that is too small for it goes back, if both
    /// together may be enough.
    async fn decide_alone(
        self: &Arc<Self>,
        plan: &Plan,
        terms: BatchTerms,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let decision = self.charge_apart(plan, deadline).await?;
        if decision.outcome() != Outcome::Rejected {
            return Ok(decision);
        }
        if let Some(decision) = self.spend(plan, terms) {
            return Ok(decision);
        }
        let rest = self.with_holding(plan, |pool| pool.take_rest(&decision));
        let rest = rest.filter(|batches| !batches.is_empty());
        let Some(rest) = rest else {
            return Ok(decision);
        };
        for mut batch in rest {
            match self.cache.store.within(deadline, batch.give_back()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Ok(decision),
            }
        }
        self.cache.forget(plan.partition());
        self.charge_apart(plan, deadline).await
    }

    async fn charge_apart(&self, plan: &Plan, deadline: Instant) -> Result<Decision, StoreError> {
        let decision = self.cache.decide(plan.clone(), deadline).await?;
        self.with_holding(plan, |pool| {
            pool.charged_apart(plan.costs().requests, &decision);
        });
        Ok(decision)
    }

    /// Resets the plan's partitions. Units that are held of the first one are neither spent nor given back any more. Until
    /// the reset is over none are prefetched: nothing would tell whether the store has forgotten them.
    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let (prefetch, partition) = (self, plan.partition());
        self.resets.lock().push(partition);
        let _resetting = Resetting { prefetch, partition };
        if let Some(pool) = self.holdings.lock(partition).get_mut(partition) {
            pool.forget();
        }
        self.cache.reset(plan).await
    }

    fn step(&self, plan: &Plan, terms: BatchTerms) -> Step {
        // Without a runtime, no task could give back what is not spent.
        let Some(part) = plan.only_part().filter(|_| Handle::try_current().is_ok()) else {
            return Step::Alone;
        };
        let (partition, id) = (part.partition(), self.next_id());
        // Declared before the lock, and so dropped after it.
        let (_expired, _older);
        let mut shard = self.holdings.lock(partition);
        let now = self.clock.now();
        let new = || BatchPool::new(part.policies().clone());
        let is_expired = |pool: &BatchPool| pool.is_expired(now, terms);
        let pool = shard.get_or_insert_with(partition, is_expired, BatchPool::worth, new);
        _older = (!pool.is_about(part.policies())).then(|| std::mem::replace(pool, new()));
        _expired = pool.take_expired(now);
        if self.is_flushing() || self.resets.lock().contains(&partition) {
            return Step::Alone;
        }
        pool.step(plan, terms, now, id)
    }

    /// Does something with the holding of a plan's partition, if there is one about the same policies.
    fn with_holding<T>(&self, plan: &Plan, act: impl FnOnce(&mut BatchPool) -> T) -> Option<T> {
        let part = plan.only_part()?;
        let mut shard = self.holdings.lock(part.partition());
        let pool = shard.get_mut(part.partition())?;
        pool.is_about(part.policies()).then(|| act(pool))
    }

    /// Nothing is prefetched until what is returned is dropped.
    pub(super) fn pause(&self) -> Flushing<'_> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Flushing(self)
    }

    /// Asked under the lock of a holding, so that a flush, which locks each of them, finds what was begun before it.
    fn is_flushing(&self) -> bool {
        self.flushes.load(Ordering::Relaxed) > 0
    }

    /// Calls that fetch units and are under way.
    pub(super) fn fetches(&self) -> usize {
        self.fetches.receiver_count()
    }

    /// Gives back all that is held, and what arrives of that which is under way. Ends only while prefetching is paused.
    pub(super) async fn flush(&self) {
        loop {
            let were_over = self.fetches() == 0;
            let mut is_fetching = false;
            for mut shard in self.holdings.lock_each() {
                let held: Vec<_> = shard.values_mut().map(BatchPool::take_all).collect();
                is_fetching |= shard.values_mut().any(|pool| pool.fetching.is_some());
                drop(shard);
                drop(held);
            }
            if were_over && !is_fetching {
                return;
            }
            self.fetches.closed().await;
            yield_now().await;
        }
    }
}

/// A flush that is under way, until this is dropped.
pub(super) struct Flushing<'a>(&'a Prefetch);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Ordering::SeqCst);
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

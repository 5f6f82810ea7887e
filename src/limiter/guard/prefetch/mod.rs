//! Prefetching, as described in `docs/tuning.md`.
//!
//! Batches are fetched in separate tasks, so that units are not lost if the waiting requests miss their deadlines.

mod batch;
mod fetch;
mod pace;
mod pool;
mod state;

use std::sync::Arc;

use tokio::{runtime::Handle, task::yield_now, time::Instant};

pub(super) use self::state::Prefetch;
use self::{
    fetch::Fetch,
    pool::{BatchPool, Step},
};
use crate::{
    decision::{Decision, Outcome, Plan},
    error::StoreError,
    policy::BatchTerms,
};

impl Prefetch {
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
            false => pool.order_ahead(terms, now, &self.next_id),
        };
        drop(shard);
        // Without a runtime, no task could wait for the answer.
        let fetch = order.map(|order| Fetch::new(self, plan, terms, order));
        if let Some(fetch) = fetch.filter(|_| Handle::try_current().is_ok()) {
            fetch.begin(Instant::now() + self.deadline);
        }
        Some(decision)
    }

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
            Step::Wait(verdict, order) => {
                if let Some(order) = order {
                    Fetch::new(self, &plan, terms, order).begin(deadline);
                }
                verdict
            }
        };
        match self.cache.store.within(deadline, verdict).await {
            // The runtime of the fetching task has ended.
            Ok(verdict) => match verdict.unwrap_or(Ok(None))? {
                Some(decision) => Ok(decision),
                None => self.decide_alone(&plan, terms, deadline).await,
            },
            Err(late) => Err(late.error("no prefetched units within the deadline")),
        }
    }

    /// If the store rejects the request, an unspent remainder that might suffice is refunded, and the charge is
    /// repeated.
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

    /// Held batches contain older readings.
    pub(super) fn charged_late(&self, plan: &Plan, units: u64) {
        if units > 0 {
            self.with_holding(plan, |pool| pool.also_charged(units));
        }
    }

    /// Discards held units without a refund. Units prefetched before the reset completes might or might not be reset,
    /// so prefetching pauses.
    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let _resetting = self.cache.resetting(&plan);
        let partition = plan.partition();
        if let Some(pool) = self.holdings.lock(partition).get_mut(partition) {
            pool.forget();
        }
        self.cache.store.bare.reset(plan).await
    }

    fn step(&self, plan: &Plan, terms: BatchTerms) -> Step {
        let Some(part) = plan.only_part().filter(|_| Handle::try_current().is_ok()) else {
            return Step::Alone;
        };
        let partition = part.partition();
        // Declared before the lock, so dropped after it.
        let (_expired, _older);
        let mut shard = self.holdings.lock(partition);
        let now = self.clock.now();
        let new = || BatchPool::new(part.policies().clone());
        let is_expired = |pool: &BatchPool| pool.is_expired(now, terms);
        let pool = shard.get_or_insert_with(partition, is_expired, BatchPool::worth, new);
        _older = (!pool.is_about(part.policies())).then(|| std::mem::replace(pool, new()));
        _expired = pool.take_expired(now);
        if self.is_flushing() || self.cache.is_resetting(partition) {
            return Step::Alone;
        }
        pool.step(plan, terms, now, &self.next_id)
    }

    /// Does nothing if the pool has other policies.
    fn with_holding<T>(&self, plan: &Plan, act: impl FnOnce(&mut BatchPool) -> T) -> Option<T> {
        let part = plan.only_part()?;
        let mut shard = self.holdings.lock(part.partition());
        let pool = shard.get_mut(part.partition())?;
        pool.is_about(part.policies()).then(|| act(pool))
    }

    /// Until the returned value is dropped. `flush` locks each pool, so it finds all fetches that started before.
    pub(super) fn pause(&self) -> Arc<()> {
        Arc::clone(&self.flushes)
    }

    fn is_flushing(&self) -> bool {
        Arc::strong_count(&self.flushes) > 1
    }

    pub(super) fn fetches(&self) -> usize {
        self.fetches.receiver_count()
    }

    /// Includes batches in flight. Completes only while prefetching is paused.
    pub(super) async fn flush(&self) {
        loop {
            let were_over = self.fetches() == 0;
            let mut is_fetching = false;
            for mut shard in self.holdings.lock_each() {
                let held: Vec<_> = shard.values_mut().map(BatchPool::take_all).collect();
                is_fetching |= shard.values_mut().any(|pool| pool.is_fetching());
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

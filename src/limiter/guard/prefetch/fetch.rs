use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    super::rejection_cache::CachedCall,
    batch::Batch,
    pool::{BatchPool, Batches, Order, Verdicts},
    state::Prefetch,
};
use crate::{
    decision::{Decision, Plan},
    error::{StoreError, StoreErrorKind},
    policy::BatchTerms,
    sync::bounded_map::BoundedMap,
    telemetry::LateBatch,
};

/// Dropping it releases the waiting requests.
pub(super) struct Fetch {
    prefetch: Arc<Prefetch>,
    plan: Plan,
    terms: BatchTerms,
    order: Order,
    is_late: bool,
    _under_way: watch::Receiver<()>,
}

impl Fetch {
    /// Equal to the deadline of a settlement.
    const LATE: Duration = Duration::from_secs(5);

    pub(super) fn new(prefetch: &Arc<Prefetch>, plan: &Plan, terms: BatchTerms, order: Order) -> Self {
        Self {
            prefetch: Arc::clone(prefetch),
            plan: plan.costing(order.units),
            terms,
            order,
            is_late: false,
            _under_way: prefetch.fetches.subscribe(),
        }
    }

    /// A pending call continues in a task, even if the request is cancelled.
    pub(super) fn begin(self, deadline: Instant) {
        let time = deadline.saturating_duration_since(Instant::now());
        match self.prefetch.cache.begin(self.plan.clone(), time) {
            Ok(result) => self.land(result),
            Err(call) => drop(tokio::spawn(self.wait(call, deadline))),
        }
    }

    /// Late units have been charged, too, and are spent or refunded.
    async fn wait(mut self, call: CachedCall, deadline: Instant) {
        let (prefetch, began) = (Arc::clone(&self.prefetch), Instant::now());
        let give_up = |error: &StoreError| self.give_up(error);
        let result = prefetch.cache.finish_late(call, deadline, Self::LATE, give_up).await;
        if result.is_ok() {
            prefetch.answered_after(began.elapsed());
        }
        self.land(result);
    }

    fn give_up(&mut self, error: &StoreError) {
        self.is_late = true;
        let mut verdicts = Verdicts::new();
        let mut shard = self.prefetch.holdings.lock(self.plan.partition());
        if let Some(pool) = self.pool(&mut shard) {
            pool.give_up(error, &mut verdicts);
        }
        drop(shard);
        tell(verdicts);
    }

    fn land(self, result: Result<Decision, StoreError>) {
        let mut verdicts = Verdicts::new();
        match result {
            Ok(decision) => self.decided(decision, &mut verdicts),
            Err(error) => self.failed(&error, &mut verdicts),
        }
        tell(verdicts);
    }

    fn decided(&self, decision: Decision, verdicts: &mut Verdicts) {
        let Self { prefetch, plan, .. } = self;
        let partition = plan.partition();
        // Refunds unspent units when dropped, so it must be dropped while no lock is held.
        let batch = Batch::new(
            plan.clone(),
            decision.clone(),
            self.terms,
            self.order.at,
            &prefetch.cache,
        );
        let batch = batch.map(Box::new);
        let (_dropped, is_held);
        let is_charged = batch.is_some();
        let mut shard = prefetch.holdings.lock(partition);
        match self.pool(&mut shard) {
            Some(pool) => {
                let is_stale = prefetch.cache.may_have_settled(partition, self.order.at);
                _dropped = pool.landed(&decision, batch, is_stale, prefetch.clock.now(), verdicts);
                is_held = pool.has_batches();
            }
            None => (_dropped, is_held) = (Batches::from_iter(batch), false),
        }
        drop(shard);
        if self.is_late && is_charged {
            prefetch
                .cache
                .late_batch(if is_held { LateBatch::Kept } else { LateBatch::Returned });
        }
        if is_held {
            prefetch.watch();
        }
    }

    fn failed(&self, error: &StoreError, verdicts: &mut Verdicts) {
        let Self { prefetch, plan, .. } = self;
        let mut shard = prefetch.holdings.lock(plan.partition());
        if let Some(pool) = self.pool(&mut shard) {
            let paused_until = prefetch.clock.now().saturating_add(self.terms.lifetime / 8);
            pool.failed(error, paused_until, verdicts);
        }
        drop(shard);
        if !matches!(error.kind(), StoreErrorKind::CircuitOpen | StoreErrorKind::Overloaded) {
            prefetch.cache.late_batch(LateBatch::Unknown);
        }
    }

    /// Returns `None` if the pool was evicted or has new policies.
    fn pool<'a>(&self, shard: &'a mut BoundedMap<BatchPool>) -> Option<&'a mut BatchPool> {
        let pool = shard.get_mut(self.plan.partition())?;
        pool.has_ordered(self.order.id).then_some(pool)
    }
}

/// Called while no lock is held.
fn tell(verdicts: Verdicts) {
    for (sender, verdict) in verdicts {
        let _ = sender.send(verdict);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let mut shard = self.prefetch.holdings.lock(self.plan.partition());
        let abandoned = self.pool(&mut shard).map(BatchPool::abandon);
        drop(shard);
        // Waiting requests notice that their channels are closed.
        drop(abandoned);
    }
}

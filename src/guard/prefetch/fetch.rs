//! The call that charges a block.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

use super::{
    Prefetch,
    block::Block,
    fetching::{Fetching, Order, Verdicts},
    holding::{Blocks, Holding},
};
use crate::{
    bounded_map::BoundedMap,
    error::StoreError,
    exchange::{Decision, Plan},
    policy::BlockTerms,
};

/// A block that is to be fetched. When it is dropped, no request waits for it any more.
pub(super) struct Fetch {
    prefetch: Arc<Prefetch>,
    plan: Plan,
    terms: BlockTerms,
    order: Order,
    _under_way: watch::Receiver<()>,
}

impl Fetch {
    /// `plan` is a request as those that are to be spent from it.
    pub(super) fn new(prefetch: &Arc<Prefetch>, plan: &Plan, terms: BlockTerms, order: Order) -> Self {
        Self {
            prefetch: Arc::clone(prefetch),
            plan: plan.costing(order.units),
            terms,
            order,
            _under_way: prefetch.fetches.subscribe(),
        }
    }

    /// Asks the store. Unless it answers at once, a task waits for it, also if the request is cancelled.
    pub(super) fn begin(self, deadline: Instant) {
        let time = deadline.saturating_duration_since(Instant::now());
        match self.prefetch.cache.begin(self.plan.clone(), time) {
            Ok(result) => self.land(result),
            Err(call) => drop(tokio::spawn(async move {
                let result = self.prefetch.cache.finish(call, deadline).await;
                self.land(result);
            })),
        }
    }

    fn land(self, result: Result<Decision, StoreError>) {
        let mut verdicts = Verdicts::new();
        match result {
            Ok(decision) => self.decided(decision, &mut verdicts),
            Err(error) => self.failed(&error, &mut verdicts),
        }
        for (sender, verdict) in verdicts {
            // A request that has missed its deadline does not listen.
            let _ = sender.send(verdict);
        }
    }

    fn decided(&self, decision: Decision, verdicts: &mut Verdicts) {
        let Self { prefetch, plan, .. } = self;
        let partition = plan.partition();
        // Units that are not spent are given back in any case, and where no lock is held.
        let block = Block::new(
            plan.clone(),
            decision.clone(),
            self.terms,
            self.order.at,
            &prefetch.cache,
        );
        let block = block.map(Box::new);
        let (_dropped, is_held);
        let mut shard = prefetch.holdings.lock(partition);
        match (self.end(&mut shard), shard.get_mut(partition)) {
            (Some(mut fetching), Some(holding)) => {
                fetching.is_stale = prefetch.cache.may_have_refunded(partition, self.order.at);
                _dropped = holding.landed(fetching, &decision, block, prefetch.clock.now(), verdicts);
                is_held = holding.has_blocks();
            }
            _ => (_dropped, is_held) = (Blocks::from_iter(block), false),
        }
        drop(shard);
        if is_held {
            prefetch.watch();
        }
    }

    fn failed(&self, error: &StoreError, verdicts: &mut Verdicts) {
        let Self { prefetch, plan, .. } = self;
        let mut shard = prefetch.holdings.lock(plan.partition());
        if let (Some(fetching), Some(holding)) = (self.end(&mut shard), shard.get_mut(plan.partition())) {
            let paused_until = prefetch.clock.now().saturating_add(self.terms.lifetime / 8);
            holding.failed(fetching, error, paused_until, verdicts);
        }
    }

    /// From now on no request can join. Returns `None` if the partition was evicted meanwhile, or has other policies.
    fn end(&self, shard: &mut BoundedMap<Holding>) -> Option<Fetching> {
        let holding = shard.get_mut(self.plan.partition())?;
        holding.fetching.take_if(|fetching| fetching.order.id == self.order.id)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // Requests that still wait learn it from their channels.
        let fetching = self.end(&mut self.prefetch.holdings.lock(self.plan.partition()));
        drop(fetching);
    }
}

//! A batch of units: charged at one moment, as if a row of requests had come then, and spent by later requests.

use std::sync::Arc;

use super::super::rejection_cache::RejectionCache;
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome, Plan, Settlement},
    policy::BatchTerms,
    store::StoreFuture,
};

/// Units of one partition that are charged and not yet spent. When it is dropped, the rest is given back.
///
/// Each request that is spent from it gets the decision that the store would have made when the batch was charged, after
/// the requests before it. So the fields of its response and its settlement are right without another call.
pub(super) struct Batch {
    /// The decision of the store about all of it.
    decision: Decision,
    plan: Plan,
    spent: u64,
    /// Units that this instance may have charged since then without it.
    pub(super) charged_apart: u64,
    from: Timestamp,
    until: Timestamp,
    cache: Arc<RejectionCache>,
}

impl Batch {
    /// Returns `None` if the store has rejected the plan. `began` is the local time before the call, so that the store's clock
    /// has gone on by no more than this one.
    pub(super) fn new(
        plan: Plan,
        decision: Decision,
        terms: BatchTerms,
        began: Timestamp,
        cache: &Arc<RejectionCache>,
    ) -> Option<Self> {
        if decision.outcome() != Outcome::Allowed {
            return None;
        }
        let charged_at = decision.measurement()?.moment(0);
        let now = charged_at.now.as_micros();
        let lapses = plan.policies().filter_map(|policy| policy.counter().lapse_micros(now));
        let lifetime = lapses
            .map(|micros| charged_at.until(micros))
            .fold(terms.micros(), u64::min);
        Some(Self {
            decision,
            plan,
            spent: 0,
            charged_apart: 0,
            from: began,
            until: Timestamp::from_micros(began.as_micros().saturating_add(lifetime)),
            cache: Arc::clone(cache),
        })
    }

    /// Units that are not spent.
    pub(super) fn rest(&self) -> u64 {
        self.plan.costs().requests - self.spent
    }

    /// Returns `true` if it is too late to spend any of it, or if the clock has stepped back.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        !(self.from..self.until).contains(&now)
    }

    /// The microseconds in which it may be spent from now on.
    pub(super) fn lasting(&self, now: Timestamp) -> u64 {
        self.until.micros_since(now)
    }

    /// The decision about a plan with the same policies, if there are units for it.
    pub(super) fn spend(&mut self, plan: &Plan) -> Option<Decision> {
        let cost = plan.costs().requests;
        if cost > self.rest() {
            return None;
        }
        let decision = self.decision.of_another(plan.clone(), self.spent, self.charged_apart)?;
        self.spent += cost;
        Some(decision)
    }

    /// Gives back what is left, whether or not the future is polled.
    pub(super) fn give_back(&mut self) -> StoreFuture<()> {
        let (rest, spent) = (self.rest(), self.spent);
        self.forget();
        let unspent = self.decision.of_another(self.plan.costing(rest), spent, 0);
        match unspent.filter(|_| rest > 0) {
            Some(unspent) => self.cache.settle(Settlement::refund_all(&unspent)),
            None => StoreFuture::ready(Ok(())),
        }
    }

    /// Leaves nothing to be spent or given back.
    pub(super) fn forget(&mut self) {
        self.spent = self.plan.costs().requests;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

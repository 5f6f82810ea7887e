use std::sync::Arc;

use super::super::rejection_cache::RejectionCache;
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome, Plan, Settlement},
    policy::BatchTerms,
    store::StoreFuture,
};

/// Dropping the batch refunds the remainder. Each request gets the decision that the store would have made after the
/// earlier requests when the batch was charged, so its response fields and settlement are correct without another call.
pub(super) struct Batch {
    decision: Decision,
    plan: Plan,
    spent: u64,
    /// Units that this instance may have charged individually since then.
    pub(super) charged_apart: u64,
    from: Timestamp,
    until: Timestamp,
    cache: Arc<RejectionCache>,
}

impl Batch {
    /// `began` is the local time before the call, so the batch expires on this instance no later than in the store.
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

    pub(super) fn rest(&self) -> u64 {
        self.plan.costs().requests - self.spent
    }

    /// Also `true` if the clock has stepped back.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        !(self.from..self.until).contains(&now)
    }

    /// Returns the remaining microseconds.
    pub(super) fn lasting(&self, now: Timestamp) -> u64 {
        self.until.micros_since(now)
    }

    pub(super) fn spend(&mut self, plan: &Plan) -> Option<Decision> {
        let cost = plan.costs().requests;
        if cost > self.rest() {
            return None;
        }
        let decision = self.decision.of_another(plan.clone(), self.spent, self.charged_apart)?;
        self.spent += cost;
        Some(decision)
    }

    /// Takes effect even if the future is dropped.
    pub(super) fn give_back(&mut self) -> StoreFuture<()> {
        let (rest, spent) = (self.rest(), self.spent);
        self.forget();
        let unspent = self.decision.of_another(self.plan.costing(rest), spent, 0);
        match unspent.filter(|_| rest > 0) {
            Some(unspent) => self.cache.settle(Settlement::refund_all(&unspent)),
            None => StoreFuture::ready(Ok(())),
        }
    }

    pub(super) fn forget(&mut self) {
        self.spent = self.plan.costs().requests;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

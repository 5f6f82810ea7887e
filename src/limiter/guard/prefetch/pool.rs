use std::mem;

use smallvec::SmallVec;
use tokio::sync::oneshot::Receiver;

use super::{
    batch::Batch,
    fetching::{Fetching, Order, Verdict, Verdicts},
    pace::Pace,
};
use crate::{
    clock::Timestamp,
    decision::{Allowance, Decision, Outcome, Plan},
    error::StoreError,
    policy::{BatchTerms, PolicySet},
};

pub(super) struct BatchPool {
    policies: PolicySet,
    /// Oldest first, which is the order in which they are spent.
    batches: Batches,
    pub(super) fetching: Option<Fetching>,
    pace: Pace,
    /// The units that remained in the store at the last call.
    left: Option<u64>,
    /// After a failed call, no batch is fetched ahead before this time.
    paused_until: Timestamp,
}

/// Dropping a batch calls the store, so drop batches while no lock is held.
pub(super) type Batches = SmallVec<[Box<Batch>; BatchPool::MAX_BATCHES]>;

pub(super) enum Step {
    Alone,
    Decided(Decision),
    Fetch(Order, Receiver<Verdict>),
    Wait(Receiver<Verdict>),
}

impl BatchPool {
    /// The batch being spent, and the one fetched ahead.
    const MAX_BATCHES: usize = 2;
    /// An instance fetches at most this fraction (1/`SHARE`) of the remaining units.
    const SHARE: u64 = 4;

    pub(super) fn new(policies: PolicySet) -> Self {
        Self {
            policies,
            batches: Batches::new(),
            fetching: None,
            pace: Pace::new(),
            left: None,
            paused_until: Timestamp::default(),
        }
    }

    pub(super) fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies)
    }

    pub(super) fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }

    pub(super) fn is_expired(&self, now: Timestamp, terms: BatchTerms) -> bool {
        !self.has_batches() && self.fetching.is_none() && self.pace.is_expired(now, terms)
    }

    /// Ranks the loss if this pool were evicted.
    pub(super) fn worth(&self, is_returning: bool) -> (bool, u64, bool, Timestamp) {
        (self.fetching.is_some(), self.rest(), is_returning, self.pace.since())
    }

    fn rest(&self) -> u64 {
        self.batches.iter().map(|batch| batch.rest()).sum()
    }

    fn take_batches(&mut self, is_taken: impl Fn(&Batch) -> bool) -> Batches {
        let (taken, kept) = mem::take(&mut self.batches)
            .into_iter()
            .partition(|batch| is_taken(batch));
        self.batches = kept;
        taken
    }

    pub(super) fn take_all(&mut self) -> Batches {
        mem::take(&mut self.batches)
    }

    pub(super) fn take_expired(&mut self, now: Timestamp) -> Batches {
        match self.batches.iter().any(|batch| batch.is_expired(now)) {
            true => self.take_batches(|batch| batch.is_expired(now)),
            false => Batches::new(),
        }
    }

    /// Takes the batches if their remainder, together with the store's remaining units, could admit the rejected
    /// request. A cached rejection reports no remaining units.
    pub(super) fn take_rest(&mut self, rejection: &Decision) -> Batches {
        let rest = self.rest();
        let suffices = |violated: Allowance<'_>| violated.remaining().saturating_add(rest) >= violated.cost();
        match rest > 0 && rejection.violated().all(suffices) {
            true => mem::take(&mut self.batches),
            false => Batches::new(),
        }
    }

    pub(super) fn spend(&mut self, plan: &Plan, now: Timestamp) -> Option<Decision> {
        let cost = plan.costs().requests;
        let mut batches = self.batches.iter();
        let index = batches.position(|batch| batch.rest() >= cost && !batch.is_expired(now))?;
        let (older, from) = self.batches.split_at_mut(index);
        let decision = from.first_mut()?.spend(plan)?;
        apart_from(older, cost);
        self.pace.used(cost);
        Some(decision)
    }

    /// `id` becomes the ID of a batch that the request fetches.
    pub(super) fn step(&mut self, plan: &Plan, terms: BatchTerms, now: Timestamp, id: u64) -> Step {
        if let Some(decision) = self.spend(plan, now) {
            return Step::Decided(decision);
        }
        let cost = plan.costs().requests;
        if let Some(verdict) = self.fetching.as_mut().and_then(|fetching| fetching.join(plan)) {
            self.pace.used(cost);
            return Step::Wait(verdict);
        }
        let units = self.pace.charge(cost, terms, now).min(self.room(terms));
        if units <= cost || self.fetching.is_some() {
            return Step::Alone;
        }
        let order = Order { id, units, at: now };
        let mut fetching = Fetching::new(order);
        let verdict = fetching.join(plan);
        self.fetching = Some(fetching);
        verdict.map_or(Step::Alone, |verdict| Step::Fetch(order, verdict))
    }

    /// The batch to fetch now, so that no request has to wait when the held ones are spent or expire.
    pub(super) fn order_ahead(&mut self, terms: BatchTerms, now: Timestamp, id: impl FnOnce() -> u64) -> Option<Order> {
        if self.fetching.is_some() || now < self.paused_until {
            return None;
        }
        let lasting = self.batches.last()?.lasting(now);
        let room = self.room(terms);
        if room == 0 || !self.pace.is_due(self.rest(), lasting, terms, now) {
            return None;
        }
        let units = self.pace.charge(0, terms, now).min(room);
        let order = || Order {
            id: id(),
            units,
            at: now,
        };
        let order = (units > 0).then(order)?;
        self.fetching = Some(Fetching::new(order));
        Some(order)
    }

    /// Leaves a share of the remaining units to other instances.
    fn room(&self, terms: BatchTerms) -> u64 {
        // Unknown until the store's first answer.
        let share = self.left.unwrap_or(0) / Self::SHARE;
        share.min(terms.units.saturating_sub(self.rest()))
    }

    pub(super) fn charged_apart(&mut self, cost: u64, decision: &Decision) {
        self.learn(decision);
        if decision.outcome() == Outcome::Allowed {
            self.also_charged(cost);
        }
    }

    pub(super) fn also_charged(&mut self, units: u64) {
        apart_from(&mut self.batches, units);
        if let Some(fetching) = &mut self.fetching {
            fetching.charged_apart = fetching.charged_apart.saturating_add(units);
        }
    }

    fn learn(&mut self, decision: &Decision) {
        let left = decision.allowances().map(|allowance| allowance.remaining()).min();
        if left.is_some() && !decision.is_cached() {
            self.left = left;
        }
    }

    pub(super) fn forget(&mut self) {
        for mut batch in self.batches.drain(..) {
            batch.forget();
        }
        if let Some(fetching) = &mut self.fetching {
            fetching.is_void = true;
        }
        (self.pace, self.left) = (Pace::new(), None);
    }

    pub(super) fn landed(
        &mut self,
        fetching: Fetching,
        decision: &Decision,
        batch: Option<Box<Batch>>,
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Batches {
        if !fetching.is_void {
            self.learn(decision);
        }
        self.pace.answered(now.micros_since(fetching.order.at));
        let Some(mut batch) = batch else {
            let is_alone = fetching.is_void || fetching.is_stale || self.rest() > 0;
            fetching.reject(decision, is_alone, verdicts);
            return Batches::new();
        };
        let spent = fetching.serve(&mut batch, verdicts);
        apart_from(&mut self.batches, spent);
        self.batches.push(batch);
        let mut dropped = self.take_batches(|batch| batch.rest() == 0 || batch.is_expired(now));
        if self.batches.len() > Self::MAX_BATCHES {
            dropped.push(self.batches.remove(0));
        }
        dropped
    }

    pub(super) fn failed(
        &mut self,
        fetching: Fetching,
        error: &StoreError,
        paused_until: Timestamp,
        verdicts: &mut Verdicts,
    ) {
        self.paused_until = paused_until;
        fetching.fail(error, verdicts);
    }
}

fn apart_from(batches: &mut [Box<Batch>], units: u64) {
    for batch in batches {
        batch.charged_apart = batch.charged_apart.saturating_add(units);
    }
}

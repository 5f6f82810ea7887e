//! The units that an instance holds of one partition, and the size of the next batch.

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

/// The units of one partition that an instance has prefetched, and what it knows for the next batch.
pub(super) struct BatchPool {
    policies: PolicySet,
    /// The oldest is first, and is spent first.
    batches: Batches,
    pub(super) fetching: Option<Fetching>,
    pace: Pace,
    /// The units that the store had left when it was last asked.
    left: Option<u64>,
    /// Until then, no batch is fetched ahead: the last call has failed.
    paused_until: Timestamp,
}

/// Batches of one partition. Those that are taken out are to be dropped where no lock is held.
pub(super) type Batches = SmallVec<[Box<Batch>; BatchPool::MAX_BATCHES]>;

/// The next step of a request.
pub(super) enum Step {
    /// It asks the store for itself.
    Alone,
    Decided(Decision),
    /// It fetches a batch, and waits for it.
    Fetch(Order, Receiver<Verdict>),
    /// It waits for a batch that is being fetched.
    Wait(Receiver<Verdict>),
}

impl BatchPool {
    /// The one that is spent, and the one that was fetched ahead.
    const MAX_BATCHES: usize = 2;
    /// An instance fetches at most one in so many of the units that are left.
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

    /// Returns `true` if it is about these policies, and not about older ones.
    pub(super) fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies)
    }

    pub(super) fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Returns `true` if it says no more than a new one.
    pub(super) fn is_expired(&self, now: Timestamp, terms: BatchTerms) -> bool {
        !self.has_batches() && self.fetching.is_none() && self.pace.is_expired(now, terms)
    }

    /// The loss if it was evicted.
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

    /// Takes out the batches that have expired.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Batches {
        match self.batches.iter().any(|batch| batch.is_expired(now)) {
            true => self.take_batches(|batch| batch.is_expired(now)),
            false => Batches::new(),
        }
    }

    /// Takes the batches out if they were too small for a request, and may be enough with what the store had left when it
    /// rejected that. A cached rejection knows of nothing left: that was looked at when the store gave it.
    pub(super) fn take_rest(&mut self, rejection: &Decision) -> Batches {
        let rest = self.rest();
        let suffices = |violated: Allowance<'_>| violated.remaining().saturating_add(rest) >= violated.cost();
        match rest > 0 && rejection.violated().all(suffices) {
            true => mem::take(&mut self.batches),
            false => Batches::new(),
        }
    }

    /// Decides a plan by units that are there.
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

    /// The next step of a request that was not decided yet. `id` is the name of a batch that it fetches.
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

    /// The batch that is to be fetched now, so that no request has to wait when those that are held are used up or expire.
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

    /// Maximum size of the next batch: with it, the instance holds no more than it may, and leaves enough to others.
    fn room(&self, terms: BatchTerms) -> u64 {
        // Until the store has answered once, it is not known what is left.
        let share = self.left.unwrap_or(0) / Self::SHARE;
        share.min(terms.units.saturating_sub(self.rest()))
    }

    /// The store has decided about a single request.
    pub(super) fn charged_apart(&mut self, cost: u64, decision: &Decision) {
        self.learn(decision);
        if decision.outcome() == Outcome::Allowed {
            apart_from(&mut self.batches, cost);
            if let Some(fetching) = &mut self.fetching {
                fetching.charged_apart = fetching.charged_apart.saturating_add(cost);
            }
        }
    }

    /// The store has said what is left.
    fn learn(&mut self, decision: &Decision) {
        let left = decision.allowances().map(|allowance| allowance.remaining()).min();
        if left.is_some() && !decision.is_cached() {
            self.left = left;
        }
    }

    /// Drops what is held or under way without a refund.
    pub(super) fn forget(&mut self) {
        for mut batch in self.batches.drain(..) {
            batch.forget();
        }
        if let Some(fetching) = &mut self.fetching {
            fetching.is_void = true;
        }
        (self.pace, self.left) = (Pace::new(), None);
    }

    /// A batch was fetched, or `decision` says why it was not.
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
            // A rest that is too small for one request may be enough with what the store has left.
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

    /// A batch could not be fetched, and batches are not fetched ahead for some time.
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

/// Units were charged that are not of these batches.
fn apart_from(batches: &mut [Box<Batch>], units: u64) {
    for batch in batches {
        batch.charged_apart = batch.charged_apart.saturating_add(units);
    }
}

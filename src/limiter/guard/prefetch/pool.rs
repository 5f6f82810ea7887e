use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering},
};

use smallvec::SmallVec;
use tokio::sync::oneshot::{self, Receiver, Sender};

use super::{batch::Batch, pace::Pace};
use crate::{
    clock::Timestamp,
    decision::{Allowance, Decision, Outcome, Plan},
    error::StoreError,
    policy::{BatchTerms, PolicySet},
};

/// The units of one caller: those held, and those that a call is fetching.
pub(super) struct BatchPool {
    policies: PolicySet,
    /// Oldest first, which is the order in which they are spent.
    batches: Batches,
    fetching: Option<Fetching>,
    pace: Pace,
    /// The units that remained in the store at the last call.
    left: Option<u64>,
    /// After a failed call, no batch is fetched ahead before this time.
    paused_until: Timestamp,
}

pub(super) struct Fetching {
    order: Order,
    /// Units that no waiting request has reserved. `None` if no request can join.
    spare: Option<u64>,
    waiters: Vec<(Plan, Sender<Verdict>)>,
    /// Units charged individually since the call started, perhaps after the batch was charged.
    charged_apart: u64,
    is_void: bool,
}

/// Dropping a batch calls the store, so drop batches while no lock is held.
pub(super) type Batches = SmallVec<[Box<Batch>; BatchPool::MAX_BATCHES]>;

/// `Ok(None)`: the batch did not cover the request, so it must be charged individually.
pub(super) type Verdict = Result<Option<Decision>, StoreError>;

/// Sent while no lock is held.
pub(super) type Verdicts = Vec<(Sender<Verdict>, Verdict)>;

#[derive(Clone, Copy)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) units: u64,
    /// The local time before the call.
    pub(super) at: Timestamp,
}

pub(super) enum Step {
    Alone,
    Decided(Decision),
    /// With an order if the request is the one that fetches.
    Wait(Receiver<Verdict>, Option<Order>),
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
            pace: Pace::default(),
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

    pub(super) fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    pub(super) fn is_expired(&self, now: Timestamp, terms: BatchTerms) -> bool {
        !self.has_batches() && !self.is_fetching() && self.pace.is_expired(now, terms)
    }

    pub(super) fn worth(&self, is_returning: bool) -> (bool, u64, bool, Timestamp) {
        (self.is_fetching(), self.rest(), is_returning, self.pace.since())
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
            true => self.take_all(),
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

    pub(super) fn step(&mut self, plan: &Plan, terms: BatchTerms, now: Timestamp, ids: &AtomicU64) -> Step {
        if let Some(decision) = self.spend(plan, now) {
            return Step::Decided(decision);
        }
        let cost = plan.costs().requests;
        if let Some(verdict) = self.join(plan) {
            self.pace.used(cost);
            return Step::Wait(verdict, None);
        }
        let units = self.pace.charge(cost, terms, now).min(self.room(terms));
        if units <= cost || self.is_fetching() {
            return Step::Alone;
        }
        let order = self.order(units, now, ids);
        self.join(plan)
            .map_or(Step::Alone, |verdict| Step::Wait(verdict, Some(order)))
    }

    pub(super) fn order_ahead(&mut self, terms: BatchTerms, now: Timestamp, ids: &AtomicU64) -> Option<Order> {
        if self.is_fetching() || now < self.paused_until {
            return None;
        }
        let lasting = self.batches.last()?.lasting(now);
        let room = self.room(terms);
        if room == 0 || !self.pace.is_due(self.rest(), lasting, terms, now) {
            return None;
        }
        let units = self.pace.charge(0, terms, now).min(room);
        (units > 0).then(|| self.order(units, now, ids))
    }

    fn order(&mut self, units: u64, at: Timestamp, ids: &AtomicU64) -> Order {
        let id = ids.fetch_add(1, Ordering::Relaxed);
        let order = Order { id, units, at };
        self.fetching = Some(Fetching {
            order,
            spare: Some(units),
            waiters: Vec::new(),
            charged_apart: 0,
            is_void: false,
        });
        order
    }

    fn join(&mut self, plan: &Plan) -> Option<Receiver<Verdict>> {
        let fetching = self.fetching.as_mut()?;
        fetching.spare = Some(fetching.spare?.checked_sub(plan.costs().requests)?);
        let (sender, verdict) = oneshot::channel();
        fetching.waiters.push((plan.clone(), sender));
        Some(verdict)
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
            (fetching.is_void, fetching.spare) = (true, None);
        }
        (self.pace, self.left) = (Pace::default(), None);
    }

    /// `false` if the order was that of an evicted pool, or of one with other policies.
    pub(super) fn has_ordered(&self, id: u64) -> bool {
        self.fetching.as_ref().is_some_and(|fetching| fetching.order.id == id)
    }

    /// No request waits for the answer any longer, or can join. A batch that arrives later serves other requests.
    pub(super) fn give_up(&mut self, error: &StoreError, verdicts: &mut Verdicts) {
        if let Some(fetching) = &mut self.fetching {
            fetching.spare = None;
            let waiters = fetching.waiters.drain(..);
            verdicts.extend(waiters.map(|(_, verdict)| (verdict, Err(error.clone()))));
        }
    }

    pub(super) fn failed(&mut self, error: &StoreError, paused_until: Timestamp, verdicts: &mut Verdicts) {
        self.give_up(error, verdicts);
        self.fetching = None;
        self.paused_until = paused_until;
    }

    pub(super) fn abandon(&mut self) -> Option<Fetching> {
        self.fetching.take()
    }

    /// With `is_stale`, there was a settlement since the call started: a rejection does not apply to requests that
    /// joined later.
    pub(super) fn landed(
        &mut self,
        decision: &Decision,
        batch: Option<Box<Batch>>,
        is_stale: bool,
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Batches {
        let Some(fetching) = self.fetching.take() else {
            return Batches::from_iter(batch);
        };
        if !fetching.is_void {
            self.learn(decision);
        }
        self.pace.answered(now.micros_since(fetching.order.at));
        let Some(mut batch) = batch else {
            // The remaining units may be enough for a single request.
            let is_alone = fetching.is_void || is_stale || self.rest() > 0;
            for (plan, verdict) in fetching.waiters {
                let own = decision.of_another(plan, 0, 0).filter(|_| !is_alone);
                verdicts.push((verdict, Ok(own.filter(|own| own.outcome() == Outcome::Rejected))));
            }
            return Batches::new();
        };
        batch.charged_apart = fetching.charged_apart;
        if fetching.is_void {
            batch.forget();
        }
        let before = batch.rest();
        for (plan, verdict) in fetching.waiters {
            // Requests that have missed their deadline were not counted, but cancelled ones still wait.
            if !verdict.is_closed() {
                verdicts.push((verdict, Ok(batch.spend(&plan))));
            }
        }
        apart_from(&mut self.batches, before - batch.rest());
        self.batches.push(batch);
        let mut dropped = self.take_batches(|batch| batch.rest() == 0 || batch.is_expired(now));
        if self.batches.len() > Self::MAX_BATCHES {
            dropped.push(self.batches.remove(0));
        }
        dropped
    }
}

fn apart_from(batches: &mut [Box<Batch>], units: u64) {
    for batch in batches {
        batch.charged_apart = batch.charged_apart.saturating_add(units);
    }
}

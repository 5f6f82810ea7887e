//! The units that an instance holds of one partition, and the size of the next block.

use tokio::sync::oneshot::{self, Receiver, Sender};

use super::block::Block;
use crate::{
    clock::Timestamp,
    error::StoreError,
    exchange::{Allowance, Decision, Outcome, Plan},
    policy::{BlockTerms, PolicySet},
};

/// The units of one partition that an instance has prefetched, and what it knows for the next block.
pub(super) struct Holding {
    policies: PolicySet,
    pub(super) block: Option<Box<Block>>,
    pub(super) fetching: Option<Fetching>,
    /// The size that the last charge would have had if enough had been left.
    demand: u64,
    /// Units that were spent since then.
    spent: u64,
    /// Until then the last charge tells how long a block lasts.
    until: Timestamp,
    /// The units that the store had left when it was last asked.
    left: Option<u64>,
}

/// A block that is being fetched, and the requests that wait for it.
#[derive(Default)]
pub(super) struct Fetching {
    pub(super) id: u64,
    /// Units that no request waits for.
    spare: u64,
    waiters: Vec<(Plan, Sender<Verdict>)>,
    /// Units that were charged apart from it meanwhile, perhaps after it.
    charged_apart: u64,
    /// True if the partition was reset meanwhile.
    is_void: bool,
    /// True if there was a refund meanwhile: a rejection then says nothing about the requests that have joined since.
    pub(super) is_stale: bool,
}

/// The answer to a request that has waited for a block. `Ok(None)`: the block was not for it, and it asks for itself.
type Verdict = Result<Option<Decision>, StoreError>;

/// The answers to requests that have waited. They are sent where no lock is held.
pub(super) type Verdicts = Vec<(Sender<Verdict>, Verdict)>;

/// A block that is to be fetched.
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) units: u64,
    /// The time before the call.
    pub(super) at: Timestamp,
}

/// The next step of a request.
pub(super) enum Step {
    /// It asks the store for itself.
    Alone,
    Decided(Box<Decision>),
    /// It fetches a block, and waits for it.
    Fetch(Order, Receiver<Verdict>),
    /// It waits for a block that is being fetched.
    Wait(Receiver<Verdict>),
}

impl Holding {
    /// An instance fetches at most one in so many of the units that are left.
    const SHARE: u64 = 4;

    pub(super) fn new(policies: PolicySet) -> Self {
        Self {
            policies,
            block: None,
            fetching: None,
            demand: 0,
            spent: 0,
            until: Timestamp::default(),
            left: None,
        }
    }

    /// Returns `true` if it is about these policies, and not about older ones.
    pub(super) fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies)
    }

    /// Returns `true` if it says no more than a new one.
    pub(super) fn is_expired(&self, now: Timestamp, terms: BlockTerms) -> bool {
        self.block.is_none() && self.fetching.is_none() && self.until.saturating_add(terms.lifetime) <= now
    }

    /// The loss if it was evicted.
    pub(super) fn worth(&self, is_returning: bool) -> (bool, u64, bool, Timestamp) {
        (self.fetching.is_some(), self.rest(), is_returning, self.until)
    }

    fn rest(&self) -> u64 {
        self.block.as_ref().map_or(0, |block| block.rest())
    }

    /// Takes the block out if it has expired, to be dropped where no lock is held.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Option<Box<Block>> {
        self.block.take_if(|block| block.is_expired(now))
    }

    /// Takes the block out if it was too small for a request, and may be enough with what the store had left when it
    /// rejected that. A cached rejection knows of nothing left: that was looked at when the store gave it.
    pub(super) fn take_rest(&mut self, rejection: &Decision) -> Option<Box<Block>> {
        self.block.take_if(|block| {
            let suffices =
                |violated: Allowance<'_>| violated.remaining().saturating_add(block.rest()) >= violated.cost();
            rejection.violated().all(suffices)
        })
    }

    /// Decides a plan by units that are there.
    pub(super) fn spend(&mut self, plan: &Plan, now: Timestamp) -> Option<Decision> {
        let block = self.block.as_mut().filter(|block| !block.is_expired(now))?;
        let decision = block.spend(plan)?;
        self.spent = self.spent.saturating_add(plan.costs().requests);
        Some(decision)
    }

    /// The next step of a request that was not decided yet. `id` is the name of a block that it fetches.
    pub(super) fn step(&mut self, plan: &Plan, terms: BlockTerms, now: Timestamp, id: u64) -> Step {
        if let Some(decision) = self.spend(plan, now) {
            return Step::Decided(Box::new(decision));
        }
        if let Some(verdict) = self.fetching.as_mut().and_then(|fetching| fetching.join(plan)) {
            return Step::Wait(verdict);
        }
        let cost = plan.costs().requests;
        self.grow(cost, terms, now);
        // Until the store has answered once, it is not known what is left.
        let share = self.left.unwrap_or(0) / Self::SHARE;
        let units = self.demand.min(share).min(terms.units.saturating_sub(self.rest()));
        if units <= cost || self.fetching.is_some() {
            return Step::Alone;
        }
        let mut fetching = Fetching::new(id, units);
        let verdict = fetching.join(plan);
        self.fetching = Some(fetching);
        let order = Order { id, units, at: now };
        verdict.map_or(Step::Alone, |verdict| Step::Fetch(order, verdict))
    }

    /// Twice as much as last time while that does not last, and no more than was used if it was not used up.
    fn grow(&mut self, cost: u64, terms: BlockTerms, now: Timestamp) {
        let demand = if now < self.until {
            self.demand.saturating_mul(2)
        } else if now < self.until.saturating_add(terms.lifetime) {
            self.spent
        } else {
            0
        };
        self.demand = demand.min(terms.units).max(cost);
        self.spent = cost;
        self.until = now.saturating_add(terms.lifetime);
    }

    /// The store has decided about a single request.
    pub(super) fn charged_apart(&mut self, cost: u64, decision: &Decision) {
        self.learn(decision);
        if decision.outcome() == Outcome::Allowed {
            let block = self.block.as_mut().map(|block| &mut block.charged_apart);
            let fetching = self.fetching.as_mut().map(|fetching| &mut fetching.charged_apart);
            for apart in block.into_iter().chain(fetching) {
                *apart = apart.saturating_add(cost);
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
        if let Some(mut block) = self.block.take() {
            block.forget();
        }
        if let Some(fetching) = &mut self.fetching {
            fetching.is_void = true;
        }
        (self.demand, self.left) = (0, None);
    }

    /// A block was fetched, or `decision` says why it was not. Returns the block that is to be dropped.
    pub(super) fn landed(
        &mut self,
        fetching: Fetching,
        decision: &Decision,
        block: Option<Box<Block>>,
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Option<Box<Block>> {
        if !fetching.is_void {
            self.learn(decision);
        }
        let Some(mut block) = block else {
            // A rest that is too small for one request may be enough with what the store has left.
            let is_alone = fetching.is_void || fetching.is_stale || self.rest() > 0;
            fetching.reject(decision, is_alone, verdicts);
            return None;
        };
        block.charged_apart = fetching.charged_apart;
        if fetching.is_void {
            block.forget();
        }
        for (plan, verdict) in fetching.waiters {
            // A request that has missed its deadline was not counted: it leaves its units to others. One that was cancelled
            // still listens.
            if !verdict.is_closed() {
                verdicts.push((verdict, Ok(block.spend(&plan))));
            }
        }
        if block.rest() == 0 || block.is_expired(now) {
            return Some(block);
        }
        self.block.replace(block)
    }
}

impl Fetching {
    fn new(id: u64, units: u64) -> Self {
        Self {
            id,
            spare: units,
            ..Self::default()
        }
    }

    /// Reserves units, if there are enough.
    fn join(&mut self, plan: &Plan) -> Option<Receiver<Verdict>> {
        if self.is_void {
            return None;
        }
        self.spare = self.spare.checked_sub(plan.costs().requests)?;
        let (sender, verdict) = oneshot::channel();
        self.waiters.push((plan.clone(), sender));
        Some(verdict)
    }

    /// Less is left than was asked for, perhaps enough for a single request.
    fn reject(self, decision: &Decision, is_alone: bool, verdicts: &mut Verdicts) {
        for (plan, verdict) in self.waiters {
            let own = decision.of_another(plan, 0, 0).filter(|_| !is_alone);
            verdicts.push((verdict, Ok(own.filter(|own| own.outcome() == Outcome::Rejected))));
        }
    }

    /// The store gave no decision.
    pub(super) fn fail(self, error: &StoreError, verdicts: &mut Verdicts) {
        let waiters = self.waiters.into_iter();
        verdicts.extend(waiters.map(|(_, verdict)| (verdict, Err(error.clone()))));
    }
}

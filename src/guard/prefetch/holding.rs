//! What an instance holds of one partition, and how much it takes next.

use tokio::sync::oneshot;

use super::block::Block;
use crate::{
    clock::Timestamp,
    error::StoreError,
    exchange::{Decision, Outcome, Plan},
    policy::{BlockTerms, PolicySet},
};

/// What an instance holds of one partition.
#[derive(Debug)]
pub(super) struct Holding {
    policies: PolicySet,
    pub(super) block: Option<Box<Block>>,
    pub(super) taking: Option<Taking>,
    /// What the last charge would have been if enough had been left.
    demand: u64,
    /// How much was spent since then.
    spent: u64,
    /// How long that charge is of interest.
    until: Timestamp,
    /// What the store had left when it was last asked.
    left: Option<u64>,
}

/// A block that is being taken, and who waits for it.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) id: u64,
    /// Units that nobody waits for.
    spare: u64,
    waiting: Vec<Waiting>,
    /// Units that were charged apart from it meanwhile, perhaps after it.
    charged_apart: u64,
    /// Whether the partition was reset meanwhile.
    is_void: bool,
    /// Whether something was given back meanwhile: a rejection says nothing about those who have joined since.
    pub(super) is_stale: bool,
}

/// A request that waits for a block.
#[derive(Debug)]
struct Waiting {
    plan: Plan,
    verdict: oneshot::Sender<Verdict>,
}

/// What becomes of a request that has waited for a block.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are decided, without an allocation"
)]
pub(super) enum Verdict {
    /// The block was not for it: it asks for itself.
    Alone,
    Decided(Decision),
    Failed(StoreError),
}

/// What somebody who has waited is to be told, once no lock is held.
pub(super) type Verdicts = Vec<(oneshot::Sender<Verdict>, Verdict)>;

/// How a request goes on.
pub(super) enum Step<T> {
    /// It asks the store for itself.
    Alone,
    Decided(Box<Decision>),
    /// It takes a block, and waits for it.
    Take(T, oneshot::Receiver<Verdict>),
    /// It waits for a block that is being taken.
    Wait(oneshot::Receiver<Verdict>),
}

impl<T> Step<T> {
    pub(super) fn map_take<U>(self, take: impl FnOnce(T) -> U) -> Step<U> {
        match self {
            Self::Alone => Step::Alone,
            Self::Decided(decision) => Step::Decided(decision),
            Self::Take(taken, verdict) => Step::Take(take(taken), verdict),
            Self::Wait(verdict) => Step::Wait(verdict),
        }
    }
}

impl Holding {
    /// The part of what is left that one instance takes at most.
    const SHARE: u64 = 4;

    pub(super) fn new(policies: PolicySet) -> Self {
        Self {
            policies,
            block: None,
            taking: None,
            demand: 0,
            spent: 0,
            until: Timestamp::default(),
            left: None,
        }
    }

    /// Whether what it knows is about these policies, and not about older ones.
    pub(super) fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies)
    }

    /// Whether it is as good as a new one.
    pub(super) fn is_useless(&self, now: Timestamp, terms: BlockTerms) -> bool {
        self.block.is_none() && self.taking.is_none() && self.until.saturating_add(terms.lifetime) <= now
    }

    /// What would be lost with it.
    pub(super) fn worth(&self, is_returning: bool) -> (bool, u64, bool, Timestamp) {
        (self.taking.is_some(), self.rest(), is_returning, self.until)
    }

    fn rest(&self) -> u64 {
        self.block.as_ref().map_or(0, |block| block.rest())
    }

    /// The block if it is over, to be dropped where no lock is held.
    pub(super) fn take_over(&mut self, now: Timestamp) -> Option<Box<Block>> {
        self.block.take_if(|block| block.is_over(now))
    }

    /// Decides a plan by units that are there.
    pub(super) fn spend(&mut self, plan: &Plan, now: Timestamp) -> Option<Decision> {
        let block = self.block.as_mut().filter(|block| !block.is_over(now))?;
        let decision = block.spend(plan)?;
        self.spent = self.spent.saturating_add(plan.costs().requests);
        Some(decision)
    }

    /// How a request goes on that was not decided yet. A block that it takes, of so many units, will be known as `id`.
    pub(super) fn step(&mut self, plan: &Plan, terms: BlockTerms, now: Timestamp, id: u64) -> Step<u64> {
        if let Some(decision) = self.spend(plan, now) {
            return Step::Decided(Box::new(decision));
        }
        if let Some(verdict) = self.taking.as_mut().and_then(|taking| taking.join(plan)) {
            return Step::Wait(verdict);
        }
        let cost = plan.costs().requests;
        self.grow(cost, terms, now);
        // Nothing is known about what is left until the store has answered once.
        let share = self.left.unwrap_or(0) / Self::SHARE;
        let units = self.demand.min(share).min(terms.units.saturating_sub(self.rest()));
        if units <= cost || self.taking.is_some() {
            return Step::Alone;
        }
        let (taking, verdict) = Taking::new(id, units, plan);
        self.taking = Some(taking);
        Step::Take(units, verdict)
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
            let taking = self.taking.as_mut().map(|taking| &mut taking.charged_apart);
            for apart in block.into_iter().chain(taking) {
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

    /// Nothing that is held or under way counts any more.
    pub(super) fn forget(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.forget();
        }
        if let Some(taking) = &mut self.taking {
            taking.is_void = true;
        }
        (self.demand, self.left) = (0, None);
    }

    /// A block was taken, or `decision` says why it was not. Returns the block that is to be dropped.
    pub(super) fn landed(
        &mut self,
        taking: Taking,
        decision: &Decision,
        block: Option<Box<Block>>,
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Option<Box<Block>> {
        if !taking.is_void {
            self.learn(decision);
        }
        let Some(mut block) = block else {
            // A rest that is too small for one request may be enough with what the store has left.
            let is_alone = taking.is_void || taking.is_stale || self.rest() > 0;
            taking.reject(decision, is_alone, verdicts);
            return None;
        };
        block.charged_apart = taking.charged_apart;
        if taking.is_void {
            block.forget();
        }
        for Waiting { plan, verdict } in taking.waiting {
            // A request that has missed its deadline was not counted: it leaves its units to others. One that was cancelled
            // still listens.
            if !verdict.is_closed() {
                let decided = block.spend(&plan).map_or(Verdict::Alone, Verdict::Decided);
                verdicts.push((verdict, decided));
            }
        }
        if block.rest() == 0 || block.is_over(now) {
            return Some(block);
        }
        self.block.replace(block)
    }
}

impl Taking {
    fn new(id: u64, units: u64, plan: &Plan) -> (Self, oneshot::Receiver<Verdict>) {
        let (sender, verdict) = oneshot::channel();
        let taker = Waiting {
            plan: plan.clone(),
            verdict: sender,
        };
        let taking = Self {
            id,
            spare: units - plan.costs().requests,
            waiting: vec![taker],
            charged_apart: 0,
            is_void: false,
            is_stale: false,
        };
        (taking, verdict)
    }

    /// Reserves units, if there are enough.
    fn join(&mut self, plan: &Plan) -> Option<oneshot::Receiver<Verdict>> {
        if self.is_void {
            return None;
        }
        self.spare = self.spare.checked_sub(plan.costs().requests)?;
        let (sender, verdict) = oneshot::channel();
        self.waiting.push(Waiting {
            plan: plan.clone(),
            verdict: sender,
        });
        Some(verdict)
    }

    /// Less is left than was asked for, perhaps enough for a single request.
    fn reject(self, decision: &Decision, is_alone: bool, verdicts: &mut Verdicts) {
        for Waiting { plan, verdict } in self.waiting {
            let own = decision.of_another(plan, 0, 0).filter(|_| !is_alone);
            let rejected = own.filter(|own| own.outcome() == Outcome::Rejected);
            verdicts.push((verdict, rejected.map_or(Verdict::Alone, Verdict::Decided)));
        }
    }

    /// The store gave no decision.
    pub(super) fn fail(self, error: &StoreError, verdicts: &mut Verdicts) {
        let failed = self.waiting.into_iter();
        verdicts.extend(failed.map(|waiting| (waiting.verdict, Verdict::Failed(error.clone()))));
    }
}

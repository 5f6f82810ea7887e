//! What is kept about a partition: the states of its policies, all written at the same moment.

use smallvec::SmallVec;

use crate::{
    algorithm::{Readings, Rule, State, Times, Worth},
    clock::Timestamp,
    lease::LeaseId,
    plan::PartPlan,
    quota::{CheckedPolicies, CheckedPolicy},
    settlement::PartSettlement,
};

/// The states of a partition's policies at one moment.
#[derive(Clone, Debug)]
pub(super) struct PartitionState {
    at: Timestamp,
    /// The policies of the last charge, and the state of each of them.
    policies: CheckedPolicies,
    states: SmallVec<[State; 3]>,
    /// What is left of policies that the last charge did not have.
    others: Option<Box<Others>>,
}

/// Policies that only other plans name: of another tier, or of an older or newer configuration. Their time goes on by
/// their own rules, and they are kept until they are empty.
#[derive(Clone, Debug)]
struct Others {
    at: Timestamp,
    states: Vec<Foreign>,
}

/// A state that explains itself: whoever has it can bring it forward and convert it, also without the policy.
#[derive(Clone, Debug)]
struct Foreign {
    id: u32,
    rule: Rule,
    state: State,
}

impl PartitionState {
    /// A partition never seen, for a plan like this one.
    pub(super) fn new(now: Timestamp, policies: &CheckedPolicies) -> Self {
        Self {
            at: now,
            states: policies.iter().map(|policy| State::new(policy.rule())).collect(),
            policies: policies.clone(),
            others: None,
        }
    }

    /// Charges the plan if all of it fits; a lease then holds its slots. Returns what had been used before, and whether
    /// it fits.
    pub(super) fn acquire(&mut self, now: Timestamp, plan: PartPlan<'_>, lease: Option<LeaseId>) -> (Readings, bool) {
        self.rebase_to(now);
        if self.policies.is_same(plan.policies()) {
            self.acquire_again(now, plan, lease)
        } else {
            self.acquire_anew(now, plan, lease)
        }
    }

    /// The same without charging anything.
    pub(super) fn read(&mut self, now: Timestamp, plan: PartPlan<'_>) -> (Readings, bool) {
        self.rebase_to(now);
        if self.policies.is_same(plan.policies()) {
            self.read_again(now, plan)
        } else {
            self.with_policies(now, plan.policies()).read_again(now, plan)
        }
    }

    /// A clock may have stepped back.
    fn rebase_to(&mut self, now: Timestamp) {
        if now < self.at {
            self.rebase(now);
        }
    }

    /// The policies are those of the last charge, which is nearly always so.
    fn acquire_again(&mut self, now: Timestamp, plan: PartPlan<'_>, lease: Option<LeaseId>) -> (Readings, bool) {
        let (readings, fits) = self.read_again(now, plan);
        if fits && plan.is_charged() {
            let mut rest = &*readings;
            for (charge, state) in plan.charges().zip(&mut self.states) {
                let rule = charge.policy().rule();
                let (reading, others) = rest.split_at(rule.width());
                rest = others;
                let is_taken = charge.is_taken(reading, now.as_micros());
                state.charge(
                    rule,
                    now.as_micros(),
                    reading,
                    if is_taken { charge.weight() } else { 0 },
                    lease,
                );
            }
            self.at = now;
        }
        (readings, fits)
    }

    #[inline]
    fn read_again(&self, now: Timestamp, plan: PartPlan<'_>) -> (Readings, bool) {
        let times = self.times(now);
        let (mut readings, mut fits) = (Readings::new(), true);
        for (charge, state) in plan.charges().zip(&self.states) {
            let position = readings.len();
            let weight = charge.weight();
            let rule = charge.policy().rule();
            state.read(rule, times, weight, &mut readings);
            fits &= charge.is_shadow() || rule.admits(&readings[position..], times.now, weight);
        }
        (readings, fits)
    }

    /// The policies are others than those of the last charge.
    fn acquire_anew(&mut self, now: Timestamp, plan: PartPlan<'_>, lease: Option<LeaseId>) -> (Readings, bool) {
        let mut candidate = self.with_policies(now, plan.policies());
        let (readings, fits) = candidate.acquire_again(now, plan, lease);
        if fits && plan.is_charged() {
            *self = candidate;
        }
        (readings, fits)
    }

    /// Changes charges that were made before.
    pub(super) fn settle(&mut self, now: Timestamp, settlement: PartSettlement<'_>) {
        let policies = settlement.part.policies();
        self.rebase_to(now);
        if !self.policies.is_same(policies) {
            *self = self.with_policies(now, policies);
        }
        let times = self.times(now);
        for (adjustment, state) in settlement.adjustments().zip(&mut self.states) {
            let (rule, delta) = (adjustment.policy.rule(), adjustment.delta);
            match delta {
                0 => state.advance(rule, times),
                1.. => state.charge_late(rule, times, delta.unsigned_abs()),
                _ => state.refund(rule, times, delta.unsigned_abs(), adjustment.receipt),
            }
        }
        self.at = now;
    }

    /// Forgets everything but the slots that are held and logs that these policies do not name. Those are kept because
    /// Redis cannot find them: each is a key of its own there, whose name is made from its policy.
    pub(super) fn reset(&mut self, policies: &CheckedPolicies) {
        let is_kept = |id: u32, rule: &Rule| match rule {
            Rule::Concurrency(_) => true,
            Rule::SlidingLog(_) => policies.iter().all(|policy| policy.id() != id),
            _ => false,
        };
        for (policy, state) in self.policies.iter().zip(&mut self.states) {
            if !is_kept(policy.id(), policy.rule()) {
                *state = State::new(policy.rule());
            }
        }
        if let Some(others) = &mut self.others {
            others.states.retain(|foreign| is_kept(foreign.id, &foreign.rule));
        }
    }

    /// The same partition seen by other policies, brought forward to now.
    fn with_policies(&self, now: Timestamp, policies: &CheckedPolicies) -> Self {
        let mut foreign = self.advanced(now);
        let state_of = |policy: &CheckedPolicy| {
            let own = foreign.iter().position(|foreign| foreign.id == policy.id());
            own.map_or_else(
                || State::new(policy.rule()),
                |own| {
                    let own = foreign.swap_remove(own);
                    own.state.converted(&own.rule, policy.rule())
                },
            )
        };
        let states = policies.iter().map(state_of).collect();
        Self {
            at: now,
            policies: policies.clone(),
            states,
            others: (!foreign.is_empty()).then(|| {
                Box::new(Others {
                    at: now,
                    states: foreign,
                })
            }),
        }
    }

    /// All states that are not empty yet, as they are now.
    fn advanced(&self, now: Timestamp) -> Vec<Foreign> {
        let own = self.policies.iter().zip(&self.states).map(|(policy, state)| {
            let (id, rule, state) = (policy.id(), *policy.rule(), state.clone());
            (self.at, Foreign { id, rule, state })
        });
        let others = self.others.iter().flat_map(|others| {
            let of = |foreign: &Foreign| (others.at, foreign.clone());
            others.states.iter().map(of)
        });
        let mut advanced: Vec<Foreign> = Vec::new();
        for (at, mut foreign) in own.chain(others) {
            foreign.state.advance(&foreign.rule, times(at, now));
            if foreign.state.empty_at(&foreign.rule, now.as_micros()) > now.as_micros() {
                advanced.push(foreign);
            }
        }
        advanced
    }

    /// What was written by a clock that stood later belongs to now: it is neither given back nor kept for longer.
    fn rebase(&mut self, now: Timestamp) {
        for state in &mut self.states {
            state.rebase(now.as_micros());
        }
        if let Some(others) = &mut self.others {
            // They have gone on until the last charge, too, although nobody has written that down.
            let times = times(others.at, self.at);
            for Foreign { rule, state, .. } in &mut others.states {
                state.advance(rule, times);
                state.rebase(now.as_micros());
            }
            others.at = now;
        }
        self.at = now;
    }

    /// The moment from which this state equals that of a partition never seen.
    pub(super) fn empty_at(&self) -> Timestamp {
        let own = self
            .policies
            .iter()
            .zip(&self.states)
            .map(|(policy, state)| state.empty_at(policy.rule(), self.at.as_micros()));
        let others = self.others.iter().flat_map(|others| {
            let at = others.at.as_micros();
            let empty_at = move |foreign: &Foreign| foreign.state.empty_at(&foreign.rule, at);
            others.states.iter().map(empty_at)
        });
        Timestamp::from_micros(own.chain(others).max().unwrap_or(0))
    }

    /// How much would be lost with it: as much as with the policy of which the largest share is used. `None` if it has
    /// expired.
    pub(super) fn worth(&self, now: Timestamp, is_returning: bool) -> Option<Worth> {
        let own = self.policies.iter().zip(&self.states).filter_map(|(policy, state)| {
            let worth = state.worth(policy.rule(), self.times(now))?;
            Some(if policy.policy().is_shadow() {
                worth.of_shadow()
            } else {
                worth
            })
        });
        let others = self.others.iter().flat_map(|others| {
            let times = times(others.at, now);
            let worth = move |foreign: &Foreign| foreign.state.worth(&foreign.rule, times);
            others.states.iter().filter_map(worth)
        });
        let worth = own.chain(others).max();
        if is_returning {
            worth
        } else {
            worth.map(Worth::of_one_request)
        }
    }

    #[inline]
    fn times(&self, now: Timestamp) -> Times {
        times(self.at, now)
    }
}

#[inline]
fn times(last: Timestamp, now: Timestamp) -> Times {
    let now = now.as_micros();
    Times {
        last: last.as_micros().min(now),
        now,
    }
}

//! How time and units are counted: pure steps without a clock, a runtime or HTTP.
//!
//! `store/redis/acquire.lua` is the same arithmetic in the same order. Both keep to integers below 2⁵³ and to
//! + − × ÷, comparison, floor and ceil, so that doubles and integers give the same numbers.

mod token_bucket;

use smallvec::SmallVec;

use self::token_bucket::Level;
use crate::{
    clock::Timestamp,
    decision::Used,
    plan::Plan,
    quota::{CheckedPolicies, CheckedPolicy},
};

/// What is kept about a partition: how full its buckets were at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PartitionState {
    at: Timestamp,
    /// The policies of the last charge, and what each of them has used.
    policies: CheckedPolicies,
    used: SmallVec<[u64; 3]>,
    /// What is left of policies that the last charge did not have.
    others: Option<Box<Others>>,
}

/// Buckets of policies that only other plans name: of another tier, or of an older or newer configuration. They drain
/// by their own rate and are kept until they are empty.
#[derive(Clone, Debug)]
struct Others {
    at: Timestamp,
    levels: Vec<Level>,
}

impl PartitionState {
    /// A partition never seen, for a plan like this one.
    pub(crate) fn new(now: Timestamp, plan: &Plan) -> Self {
        let used = SmallVec::from_elem(0, plan.charges().len());
        Self {
            at: now,
            policies: plan.policies().clone(),
            used,
            others: None,
        }
    }

    /// Charges the plan if all of it fits. Returns what had been used before.
    pub(crate) fn acquire(&mut self, now: Timestamp, plan: &Plan) -> Used {
        if self.policies.is_same(plan.policies()) {
            self.acquire_again(now, plan)
        } else {
            self.acquire_anew(now, plan)
        }
    }

    /// The policies are those of the last charge, which is nearly always so.
    fn acquire_again(&mut self, now: Timestamp, plan: &Plan) -> Used {
        let elapsed = now.micros_since(self.at);
        let (mut before, mut fits) = (Used::new(), true);
        for (charge, used) in plan.charges().zip(&self.used) {
            let used = token_bucket::drained(*used, charge.policy().bucket().drain, elapsed);
            fits &= charge.is_admitted(used);
            before.push(used);
        }
        if fits && plan.is_charged() {
            for ((charge, used), before) in plan.charges().zip(&mut self.used).zip(&before) {
                *used = before + charge.weight();
            }
            self.at = now;
        }
        before
    }

    /// The policies are others than those of the last charge.
    fn acquire_anew(&mut self, now: Timestamp, plan: &Plan) -> Used {
        let levels = self.levels(now);
        let used_by = |policy: &CheckedPolicy| {
            let level = levels.iter().find(|level| level.is_of(policy));
            level.map_or(0, |level| level.used_by(policy.bucket()))
        };
        let before: Used = plan.charges().map(|charge| used_by(charge.policy())).collect();
        let fits = plan
            .charges()
            .zip(&before)
            .all(|(charge, used)| charge.is_admitted(*used));
        if fits && plan.is_charged() {
            let is_other = |level: &Level| plan.charges().all(|charge| !level.is_of(charge.policy()));
            let others: Vec<Level> = levels.into_iter().filter(is_other).collect();
            self.used = plan
                .charges()
                .zip(&before)
                .map(|(charge, used)| used + charge.weight())
                .collect();
            self.policies = plan.policies().clone();
            self.others = (!others.is_empty()).then(|| {
                Box::new(Others {
                    at: now,
                    levels: others,
                })
            });
            self.at = now;
        }
        before
    }

    /// All buckets that are not empty yet.
    fn levels(&self, now: Timestamp) -> Vec<Level> {
        let elapsed = now.micros_since(self.at);
        let own = self
            .policies
            .iter()
            .zip(&self.used)
            .map(|(policy, used)| Level::new(policy, *used).after(elapsed));
        let others = self.others.iter().flat_map(|others| {
            let elapsed = now.micros_since(others.at);
            others.levels.iter().map(move |level| level.after(elapsed))
        });
        own.chain(others).filter(|level| !level.is_empty()).collect()
    }

    /// The moment from which this state equals that of a partition never seen.
    pub(crate) fn empty_at(&self) -> Timestamp {
        let empty_at = |at: Timestamp, level: Level| at.as_micros().saturating_add(level.micros_to_drain());
        let own = self
            .policies
            .iter()
            .zip(&self.used)
            .map(|(policy, used)| empty_at(self.at, Level::new(policy, *used)));
        let others = self
            .others
            .iter()
            .flat_map(|others| others.levels.iter().map(|level| empty_at(others.at, *level)));
        Timestamp::from_micros(own.chain(others).max().unwrap_or(0))
    }
}

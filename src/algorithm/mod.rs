//! How time and units are counted: pure steps without a clock, a runtime or HTTP.
//!
//! `store/redis/acquire.lua` is the same arithmetic in the same order. Both keep to integers below 2⁵³ and to
//! + − × ÷, comparison, floor and ceil, so that doubles and integers give the same numbers.

mod token_bucket;

use smallvec::SmallVec;

pub(crate) use self::token_bucket::Level;
use crate::{clock::Timestamp, decision::Used, plan::Plan};

/// What is kept about a partition: how full its buckets were at one moment.
///
/// A bucket that is not listed has never been used. Buckets of policies that a plan does not name, because another
/// instance runs an older or newer set of policies, are drained by their own rate and kept until they are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionState {
    at: Timestamp,
    levels: SmallVec<[Level; 3]>,
}

impl PartitionState {
    /// Charges the plan if all of it fits. Returns what had been used before.
    pub(crate) fn acquire(&mut self, now: Timestamp, plan: &Plan) -> Used {
        let used = self.measure(now, plan);
        let fits = plan
            .charges()
            .zip(&used)
            .all(|(charge, used)| charge.is_admitted(*used));
        if fits && plan.is_charged() {
            self.charge(now, plan, &used);
        }
        used
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// What each policy of the plan has been charged and has not drained by now.
    fn measure(&self, now: Timestamp, plan: &Plan) -> Used {
        let elapsed = now.micros_since(self.at);
        let level_of = |index: usize, id: u32| match self.levels.get(index) {
            // Where the last writer had the same policies, which is nearly always.
            Some(level) if level.id == id => Some(level),
            _ => self.levels.iter().find(|level| level.id == id),
        };
        plan.charges()
            .enumerate()
            .map(|(index, charge)| {
                let policy = charge.policy();
                level_of(index, policy.id()).map_or(0, |level| level.used_by(policy.bucket(), elapsed))
            })
            .collect()
    }

    /// Charges a plan that fits on top of what [`measure`](Self::measure) found at the same moment.
    fn charge(&mut self, now: Timestamp, plan: &Plan, used: &Used) {
        let elapsed = now.micros_since(self.at);
        let mut foreign = std::mem::take(&mut self.levels);
        foreign.retain(|level| {
            level.used = level.drained(elapsed);
            level.used > 0 && plan.charges().all(|charge| charge.policy().id() != level.id)
        });
        self.levels = plan
            .charges()
            .zip(used)
            .map(|(charge, used)| Level::new(charge.policy(), used + charge.weight()))
            .filter(|level| level.used > 0)
            .collect();
        self.levels.extend(foreign);
        self.at = now;
    }

    /// The moment from which this state equals that of a partition never seen.
    pub(crate) fn empty_at(&self) -> Timestamp {
        let longest = self.levels.iter().map(Level::micros_to_drain).max().unwrap_or(0);
        Timestamp::from_micros(self.at.as_micros().saturating_add(longest))
    }
}

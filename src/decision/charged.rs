//! A charge of a few token buckets of one caller, which needs no plan.

use super::{measurement::Measurement, outcome::Decision, plan::Plan};
use crate::{
    algorithm::{Arithmetic, BucketReading, Moment, Moments, Reading, Times},
    clock::Timestamp,
    partition::PartitionId,
    policy::{MAX_BUCKETS, PolicySet},
};

/// A plan whose policies are [buckets](PolicySet::buckets), borrowed from the rules.
#[derive(Clone, Copy)]
pub(crate) struct PlanRef<'a> {
    policies: &'a PolicySet,
    partition: PartitionId,
    cost: u64,
}

/// The result of a [`PlanRef`], from which a decision can be made when somebody reads it. A copy is no receipt: only one
/// decision may be made of a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    partition: PartitionId,
    cost: u64,
    pub(crate) now: Timestamp,
    /// The level of each bucket before the charge.
    used: [u64; MAX_BUCKETS],
    birth: u32,
    pub(crate) fits: bool,
}

impl<'a> PlanRef<'a> {
    /// Returns `None` if the plan is not charged, or if its policies need more than the arithmetic of buckets.
    #[inline]
    pub(crate) fn new(policies: &'a PolicySet, partition: PartitionId, cost: u64) -> Option<Self> {
        let is_plain = cost > 0 && !policies.buckets().is_empty();
        is_plain.then_some(Self {
            policies,
            partition,
            cost,
        })
    }

    #[inline]
    pub(crate) fn policies(&self) -> &'a PolicySet {
        self.policies
    }

    #[inline]
    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Charges buckets that had these levels at the time `times.last`, and the birth `birth`. Changes nothing if the
    /// plan does not fit.
    #[inline]
    pub(crate) fn charge(&self, times: Times, levels: &mut [u64; MAX_BUCKETS], birth: &mut u32, call: u32) -> Charged {
        let buckets = self.policies.buckets();
        let (mut used, mut fits, mut is_used) = ([0; MAX_BUCKETS], true, false);
        for ((bucket, level), used) in buckets.iter().zip(&*levels).zip(&mut used) {
            let reading = bucket.read(level, times, 0, 0);
            fits &= bucket.admits(reading, times.now, bucket.weigh(self.cost));
            is_used |= reading.used > 0;
            *used = reading.used;
        }
        let its_birth = if is_used { *birth } else { call };
        if fits {
            for ((bucket, level), used) in buckets.iter().zip(levels).zip(used) {
                *level = used + bucket.weigh(self.cost);
            }
            *birth = its_birth;
        }
        Charged {
            partition: self.partition,
            cost: self.cost,
            now: Timestamp::from_micros(times.now),
            used,
            birth: its_birth,
            fits,
        }
    }
}

impl Charged {
    /// The remaining units after the charge and the seconds of the effective window, rounded up, of each policy.
    #[inline]
    pub(crate) fn left(&self, policies: &PolicySet) -> [(u64, u64); MAX_BUCKETS] {
        let (mut all, now) = ([(0, 0); MAX_BUCKETS], self.now.as_micros());
        for ((left, bucket), used) in all.iter_mut().zip(policies.buckets()).zip(self.used) {
            let after = bucket.charged(BucketReading::of(used), bucket.weigh(self.cost));
            let micros = bucket.reset(after, now).unwrap_or(0);
            *left = (bucket.remaining(after, now), micros.div_ceil(1_000_000));
        }
        all
    }

    /// Makes the decision, with the receipt of the charge. `policies` are those of the plan.
    pub(crate) fn decide(self, policies: &PolicySet) -> Decision {
        let readings = self.used.into_iter().take(policies.iter().len());
        let readings = readings.map(|used| Reading::Bucket(BucketReading::of(used)).into());
        let moment = Moment {
            now: self.now,
            birth: self.birth,
            ..Moment::default()
        };
        let plan = Plan::new(policies.clone(), self.partition, self.cost);
        Measurement::of_readings(plan, Moments::from_iter([moment]), readings, None).decide()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_one_cache_line() {
        assert_eq!(size_of::<Charged>(), 64);
    }
}

//! A charge of a few token buckets of one caller, which needs no plan.

use std::sync::OnceLock;

use super::{measurement::Measurement, plan::Plan};
use crate::{
    algorithm::{Arithmetic, BucketReading, Moment, Moments, Reading, Times},
    clock::Timestamp,
    partition::PartitionId,
    policy::{MAX_BUCKETS, PolicySet, QuotaPolicy},
};

/// A plan whose policies are [buckets](PolicySet::buckets), borrowed from the rules.
#[derive(Clone, Copy)]
pub(crate) struct PlanRef<'a> {
    policies: &'a PolicySet,
    partition: PartitionId,
    cost: u64,
}

/// The result of a [`PlanRef`]. A copy is no receipt: only one decision may be made of a charge.
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

    /// What the policies say about a charge that was rejected.
    #[inline]
    pub(crate) fn rejections<'a>(&self, policies: &'a PolicySet) -> impl Iterator<Item = BucketRejection<'a>> {
        let Self { now, cost, used, .. } = *self;
        let buckets = policies.iter().zip(policies.buckets()).zip(used);
        buckets.map(move |((policy, bucket), used)| {
            let (now, reading, charge) = (now.as_micros(), BucketReading::of(used), bucket.weigh(cost));
            let is_violated = !bucket.admits(reading, now, charge);
            let wait = is_violated.then(|| bucket.wait(reading, now, charge)).flatten();
            BucketRejection {
                policy: policy.policy(),
                remaining: bucket.remaining(reading, now),
                window: wait.or_else(|| bucket.reset(reading, now)).unwrap_or(0),
                is_violated,
                wait,
            }
        })
    }

    /// The policy with the longest wait.
    pub(crate) fn rejecting_policy<'a>(&self, policies: &'a PolicySet) -> &'a str {
        let violated = self.rejections(policies).filter(|rejection| rejection.is_violated);
        let longest = violated.max_by_key(|rejection| rejection.wait.unwrap_or(u64::MAX));
        longest.map_or("", |rejection| rejection.policy.name())
    }

    fn measure(self, policies: &PolicySet) -> Measurement {
        let readings = self.used.into_iter().take(policies.iter().len());
        let readings = readings.map(|used| Reading::Bucket(BucketReading::of(used)).into());
        let moment = Moment {
            now: self.now,
            birth: self.birth,
            ..Moment::default()
        };
        let plan = Plan::new(policies.clone(), self.partition, self.cost);
        Measurement::of_readings(plan, Moments::from_iter([moment]), readings, None)
    }
}

/// The remaining units, and the effective window and the wait in microseconds. The wait is `None` if the policy is not
/// violated, or can never admit the charge.
pub(crate) struct BucketRejection<'a> {
    pub(crate) policy: &'a QuotaPolicy,
    pub(crate) remaining: u64,
    pub(crate) window: u64,
    pub(crate) is_violated: bool,
    pub(crate) wait: Option<u64>,
}

/// The measurement of a charge, which is made when something reads it.
pub(super) struct LazyMeasurement {
    pub(super) charged: Charged,
    policies: PolicySet,
    has_receipt: bool,
    made: OnceLock<Measurement>,
}

impl LazyMeasurement {
    /// With the receipt of the charge.
    pub(super) fn new(charged: Charged, policies: PolicySet) -> Self {
        Self {
            charged,
            policies,
            has_receipt: true,
            made: OnceLock::new(),
        }
    }

    pub(super) fn get(&self) -> &Measurement {
        self.made.get_or_init(|| {
            let measurement = self.charged.measure(&self.policies);
            if !self.has_receipt {
                measurement.take_receipt();
            }
            measurement
        })
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut Measurement> {
        self.get();
        self.made.get_mut()
    }

    /// Without a receipt.
    pub(super) fn copy(&self) -> Self {
        let made = self.made.get().map(Measurement::copy);
        Self {
            charged: self.charged,
            policies: self.policies.clone(),
            has_receipt: false,
            made: made.map_or_else(OnceLock::new, OnceLock::from),
        }
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

//! A charge of a few plain policies of one caller, which needs no plan.

use std::sync::OnceLock;

use super::{measurement::Measurement, plan::Plan};
use crate::{
    algorithm::{Moment, Moments, PlainRejection, Times},
    clock::Timestamp,
    partition::PartitionId,
    policy::{MAX_PLAIN, PolicySet, QuotaPolicy},
};

/// A plan whose policies are [plain](PolicySet::plain), borrowed from the rules.
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
    /// The used weight of each policy before the charge.
    used: [u64; MAX_PLAIN],
    birth: u32,
    pub(crate) fits: bool,
}

impl<'a> PlanRef<'a> {
    /// Returns `None` if the plan is not charged, or if its policies are not plain.
    #[inline]
    pub(crate) fn new(policies: &'a PolicySet, partition: PartitionId, cost: u64) -> Option<Self> {
        let is_plain = cost > 0 && !policies.plain().is_empty();
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

    /// Charges policies that had these levels at the time `at`, and the birth `birth`. Changes nothing if the plan does
    /// not fit.
    #[inline]
    pub(crate) fn charge(
        &self,
        at: &mut Timestamp,
        now: Timestamp,
        levels: &mut [u64; MAX_PLAIN],
        birth: &mut u32,
        call: u32,
    ) -> Charged {
        let counters = self.policies.plain();
        let times = Times {
            last: at.as_micros(),
            now: now.as_micros(),
        };
        let (mut used, mut fits, mut is_used) = ([0; MAX_PLAIN], true, false);
        for ((counter, level), used) in counters.iter().zip(&*levels).zip(&mut used) {
            let measured = counter.measure(*level, times, self.cost);
            fits &= measured.1;
            is_used |= measured.0 > 0;
            *used = measured.0;
        }
        let its_birth = if is_used { *birth } else { call };
        if fits {
            for ((counter, level), used) in counters.iter().zip(levels).zip(used) {
                *level = counter.charged(used, self.cost);
            }
            *birth = its_birth;
            *at = now;
        }
        Charged {
            partition: self.partition,
            cost: self.cost,
            now,
            used,
            birth: its_birth,
            fits,
        }
    }
}

impl Charged {
    /// Writes the remaining units after the charge and the seconds of the effective window, rounded up, of each policy.
    #[inline]
    pub(crate) fn left(&self, policies: &PolicySet, all: &mut [(u64, u64); MAX_PLAIN]) {
        let now = self.now.as_micros();
        for ((left, counter), used) in all.iter_mut().zip(policies.plain()).zip(&self.used) {
            let (remaining, micros) = counter.left_after(*used, now, self.cost);
            *left = (remaining, micros.unwrap_or(0).div_ceil(1_000_000));
        }
    }

    /// What the policies say about a charge that was rejected.
    #[inline]
    pub(crate) fn rejections<'a>(
        &self,
        policies: &'a PolicySet,
    ) -> impl Iterator<Item = (&'a QuotaPolicy, PlainRejection)> {
        let Self { now, cost, used, .. } = *self;
        let counters = policies.iter().zip(policies.plain()).zip(used);
        counters.map(move |((policy, counter), used)| {
            let rejection = counter.rejection(used, now.as_micros(), cost);
            (policy.policy(), rejection)
        })
    }

    /// The policy with the longest wait.
    pub(crate) fn rejecting_policy<'a>(&self, policies: &'a PolicySet) -> &'a str {
        let rejections = self.rejections(policies);
        let violated = rejections.filter(|(_, rejection)| rejection.is_violated);
        let longest = violated.max_by_key(|(_, rejection)| rejection.wait.unwrap_or(u64::MAX));
        longest.map_or("", |(policy, _)| policy.name())
    }

    fn measure(self, policies: &PolicySet) -> Measurement {
        let readings = policies.plain().iter().zip(self.used);
        let readings = readings.map(|(counter, used)| counter.reading(used).into());
        let moment = Moment {
            now: self.now,
            birth: self.birth,
            ..Moment::default()
        };
        let plan = Plan::new(policies.clone(), self.partition, self.cost);
        Measurement::of_readings(plan, Moments::from_iter([moment]), readings, None)
    }
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

//! Individual quotas, and the policies of a caller that has them.

use super::numbers::{bounds, overage, own_capacity, renumbered};
use tower_quota::{Algorithm, CallerQuotas, QuotaPolicy, clock::Timestamp};

/// All moments are in microseconds.
#[derive(Clone, Debug)]
pub struct Contract {
    /// The name of a policy, its quota and its burst capacity.
    pub numbers: Vec<(&'static str, Option<u64>, Option<u64>)>,
    pub month_begins: Option<u8>,
    /// When the above ends.
    pub until: Option<u64>,
    /// The name of a policy, more units, and when they end.
    pub top_ups: Vec<(&'static str, u64, u64)>,
}

impl Contract {
    pub fn quotas(&self) -> CallerQuotas {
        let mut quotas = CallerQuotas::new();
        for (name, quota, capacity) in &self.numbers {
            if let Some(quota) = quota {
                quotas = quotas.quota(*name, *quota);
            }
            if let Some(capacity) = capacity {
                quotas = quotas.burst_capacity(*name, *capacity);
            }
        }
        for (name, units, until) in &self.top_ups {
            quotas = quotas.top_up(*name, *units, Timestamp::from_micros(*until));
        }
        if let Some(day) = self.month_begins {
            quotas = quotas.month_begins(day);
        }
        let until = self.until.map(Timestamp::from_micros);
        until.map_or(quotas.clone(), |until| quotas.until(until))
    }

    /// The policy of a caller with this contract, which has no bounds.
    pub fn policy(&self, policy: &QuotaPolicy, now: u64) -> QuotaPolicy {
        let Some((least, most)) = bounds(policy) else {
            return policy.clone();
        };
        let (mut quota, mut capacity, mut day) = (policy.quota(), own_capacity(policy), None);
        if self.until.is_none_or(|until| now < until) {
            day = self.month_begins;
            for (_, own_quota, own_capacity) in self.numbers.iter().filter(|(name, ..)| *name == policy.name()) {
                if let Some(own) = own_quota {
                    quota = (*own).clamp(least, most);
                }
                let is_token = matches!(
                    policy.algorithm(),
                    Algorithm::TokenBucket | Algorithm::StrictTokenBucket
                );
                if let Some(own) = own_capacity.filter(|_| is_token && policy.window().is_some()) {
                    capacity = Some(own.min(most));
                }
            }
        }
        let is_it = |name: &str, until: u64| name == policy.name() && now < until && quota > 0;
        let top_ups = self.top_ups.iter().filter(|(name, _, until)| is_it(name, *until));
        let more: u64 = top_ups.map(|(_, units, _)| units).sum();
        // Nothing is added above the upper bound, and nothing is taken away.
        let topped_up = |number: u64| (number + more).min(most).max(number);
        let (quota, mut capacity) = (topped_up(quota), capacity.map(topped_up));
        if policy.algorithm() == Algorithm::StrictTokenBucket && quota > 0 {
            capacity = capacity.map(|capacity| capacity.min(quota));
        }
        let mut own = renumbered(policy, quota, capacity, day);
        if let Some(time) = policy.lockout() {
            own = own.with_lockout(time);
        }
        if let Some(percent) = overage(policy) {
            own = own.with_overage(percent);
        }
        if let Some(units) = policy.initial_units() {
            let most = if quota == 0 { units } else { own.burst_capacity() };
            own = own.with_initial_units(units.min(most));
        }
        if policy.is_shadow() { own.shadow() } else { own }
    }
}

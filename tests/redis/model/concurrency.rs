//! A limit of concurrent requests: who holds a slot.

use super::{Counter, Late, numbers::Quota};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct Concurrency {
    limit: Quota,
    /// The life of a lease that is not renewed; `None`: for ever.
    lease_time: Option<i128>,
    /// The holders of slots, and the ends of their leases.
    leases: Vec<(u64, i128)>,
}

impl Concurrency {
    pub(super) fn new(policy: &QuotaPolicy, lease_time: Option<i128>) -> Self {
        Self {
            limit: Quota::of(policy),
            lease_time,
            leases: vec![],
        }
    }

    fn held(&self, moment: i128) -> i128 {
        self.leases.iter().filter(|(_, ends)| *ends > moment).count() as i128
    }

    pub(super) fn release(&mut self, lease: u64) {
        self.leases.retain(|(holder, _)| *holder != lease);
    }
}

impl Counter for Concurrency {
    fn left(&self, moment: i128) -> i128 {
        (self.limit.units - self.held(moment)).max(0)
    }

    fn over(&self, moment: i128) -> i128 {
        self.limit.over(self.held(moment))
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.held(moment) + cost <= self.limit.ceiling
    }

    /// Unknown.
    fn wait(&self, _now: i128, _cost: i128) -> Option<i128> {
        Some(1_000_000)
    }

    fn full_after(&self, _now: i128) -> Option<i128> {
        None
    }

    fn used(&self, moment: i128) -> i128 {
        self.held(moment)
    }

    fn take(&mut self, now: i128, cost: i128, lease: u64) {
        if cost > 0 {
            self.leases.retain(|(_, ends)| *ends > now);
            let ends = self.lease_time.map_or(i128::MAX, |lease_time| now + lease_time);
            self.leases.push((lease, ends));
        }
    }

    fn take_late(&mut self, _now: i128, _late: &Late<'_>) {}

    fn adopt(&mut self, policy: &QuotaPolicy) {
        self.limit = Quota::of(policy);
    }
}

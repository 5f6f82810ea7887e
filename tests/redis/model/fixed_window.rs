//! Fixed windows: one count.

use super::{
    Counter, Late, State,
    counts::Counts,
    numbers::{DivCeil, Quota},
    windows::Windows,
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct FixedWindow {
    quota: Quota,
    windows: Windows,
    counts: Counts,
}

impl FixedWindow {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        Self {
            quota: Quota::of(policy),
            windows: Windows::of(policy),
            counts: Counts::new(Windows::of(policy), now),
        }
    }

    /// Nothing comes back of a window that is over.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128) {
        if self.counts.number(charged_at) >= self.counts.number(now) {
            self.counts.set(now, 0, self.counts.count(now, 0) - units);
        }
    }
}

impl Counter for FixedWindow {
    fn left(&self, moment: i128) -> i128 {
        (self.quota.units - self.counts.count(moment, 0)).max(0)
    }

    fn over(&self, moment: i128) -> i128 {
        self.quota.over(self.counts.count(moment, 0))
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.counts.count(moment, 0) + cost <= self.quota.ceiling
    }

    fn time_for(&self, now: i128, left: i128) -> i128 {
        let at_twice_the_rate = (left * self.windows.length()).div_ceil_to(2 * self.quota.units);
        self.counts.until_end(now).max(at_twice_the_rate)
    }

    fn used(&self, moment: i128) -> i128 {
        self.counts.count(moment, 0)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.counts.pass_to(now, 0);
        self.counts.set(now, 0, self.counts.count(now, 0) + cost);
    }

    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        let units = self.counts.room(now, late).min(late.units);
        self.take(now, units, 0);
    }

    fn pass_to(&mut self, now: i128) {
        self.counts.pass_to(now, 0);
    }

    fn step_back(&mut self, now: i128) {
        self.counts.step_back(now);
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        self.quota = Quota::of(policy);
    }

    fn shown(&self, _now: i128, policy: &QuotaPolicy) -> State {
        let mut new = self.clone();
        new.adopt(policy);
        State::FixedWindow(new)
    }
}

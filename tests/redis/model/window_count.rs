//! Fixed windows: one count. Sliding window counters: two counts, the older one weighed by how much of its window a
//! sliding one still covers.

use super::{
    Counter, Late,
    counts::Counts,
    numbers::{DivCeil, Quota, window},
    windows::Windows,
};
use tower_quota::{Algorithm, QuotaPolicy};

#[derive(Clone, Debug)]
pub(super) struct WindowCount {
    quota: Quota,
    window: i128,
    counts: Counts,
    /// The windows that count besides the current one: none, or the previous one.
    before: i128,
}

impl WindowCount {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        Self {
            quota: Quota::of(policy),
            window: window(policy),
            counts: Counts::new(Windows::of(policy), now),
            before: (policy.algorithm() == Algorithm::SlidingWindowCounter).into(),
        }
    }

    /// In units times the window's microseconds.
    fn estimate(&self, moment: i128) -> i128 {
        let start = self.counts.number(moment) * self.window;
        let previous = self.before * self.counts.count(moment, 1) * (self.window - (moment - start));
        self.counts.count(moment, 0) * self.window + previous
    }

    /// To the window in which they were counted. Nothing comes back of one that counts no longer.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128) {
        let before = i128::from(self.counts.number(charged_at) < self.counts.number(now));
        if before <= self.before {
            self.counts.set(now, before, self.counts.count(now, before) - units);
        }
    }
}

impl Counter for WindowCount {
    fn left(&self, moment: i128) -> i128 {
        (self.quota.units * self.window - self.estimate(moment)).max(0) / self.window
    }

    fn over(&self, moment: i128) -> i128 {
        self.quota.over(self.estimate(moment).div_ceil_to(self.window))
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.estimate(moment) + cost * self.window <= self.quota.ceiling * self.window
    }

    fn time_for(&self, now: i128, left: i128) -> i128 {
        let at_twice_the_rate = (left * self.window).div_ceil_to(2 * self.quota.units);
        self.counts.until_end(now).max(at_twice_the_rate)
    }

    fn used(&self, moment: i128) -> i128 {
        self.counts.count(moment, 0) + self.before * self.counts.count(moment, 1)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.counts.pass_to(now, self.before);
        self.counts.set(now, 0, self.counts.count(now, 0) + cost);
    }

    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        let units = self.counts.room(now, late).min(late.units);
        self.take(now, units, 0);
    }

    fn pass_to(&mut self, now: i128) {
        self.counts.pass_to(now, self.before);
    }

    fn step_back(&mut self, now: i128) {
        self.counts.step_back(now);
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        self.quota = Quota::of(policy);
    }
}

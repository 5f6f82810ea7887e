//! A token bucket in plain fractions: what is *left*, refilled before each use.

use super::{
    Counter,
    numbers::{DivCeil, convert, rate_and_capacity, window},
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    /// Units per window.
    rate: i128,
    window: i128,
    /// In units times the window's microseconds, as is what is left.
    capacity: i128,
    /// Negative for a debt.
    left: i128,
    at: i128,
}

impl TokenBucket {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        let (rate, capacity) = rate_and_capacity(policy);
        let window = window(policy);
        Self {
            rate,
            window,
            capacity: capacity * window,
            left: capacity * window,
            at: now,
        }
    }

    fn left_at(&self, moment: i128) -> i128 {
        (self.left + (moment - self.at) * self.rate).min(self.capacity)
    }

    /// Units that have come back by themselves are not given back again. At least as many units of the charge are still
    /// missing as were missing after it, less those that the rate has brought.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128, after: &Self) {
        let age = (now - charged_at).max(0);
        let still_missing = after.capacity - after.left_at(charged_at) - age * self.rate;
        let given = (units * self.window).min(still_missing).max(0);
        self.left = (self.left_at(now) + given).min(self.capacity);
        self.at = now;
    }

    /// The charge has emptied the bucket at most.
    pub(super) fn give_back_any(&mut self, now: i128, units: i128, charged_at: i128) {
        let emptied = Self {
            left: 0,
            at: charged_at,
            ..self.clone()
        };
        self.give_back(now, units, charged_at, &emptied);
    }
}

impl Counter for TokenBucket {
    fn left(&self, moment: i128) -> i128 {
        self.left_at(moment).max(0) / self.window
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        cost * self.window <= self.left_at(moment)
    }

    fn time_for(&self, _now: i128, left: i128) -> i128 {
        (left * self.window).div_ceil_to(self.rate)
    }

    fn used(&self, moment: i128) -> i128 {
        self.capacity - self.left_at(moment)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.pass_to(now);
        self.left -= cost * self.window;
    }

    fn take_late(&mut self, now: i128, units: i128) {
        self.pass_to(now);
        self.left = (self.left - units * self.window).max(-self.capacity);
    }

    fn pass_to(&mut self, now: i128) {
        self.left = self.left_at(now);
        self.at = now;
    }

    fn step_back(&mut self, now: i128) {
        self.at = self.at.min(now);
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        let new = Self::new(policy, self.at);
        let used = convert(self.capacity - self.left, self.window, new.rate, new.window);
        let left = (new.capacity - used).max(-new.capacity);
        *self = Self { left, ..new };
    }
}

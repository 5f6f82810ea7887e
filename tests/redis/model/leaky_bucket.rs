//! A leaky bucket as a schedule: the moment when the last of those that are in it has left.

use super::{
    Counter,
    numbers::{DivCeil, convert, rate_and_capacity, window},
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct LeakyBucket {
    quota: i128,
    window: i128,
    /// Units that leave or wait at the same time.
    places: i128,
    /// When it is empty, in microseconds times the quota, so that a unit takes a window.
    empty_at: i128,
    at: i128,
}

impl LeakyBucket {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        let (quota, places) = rate_and_capacity(policy);
        Self {
            quota,
            window: window(policy),
            places,
            empty_at: 0,
            at: now,
        }
    }

    fn content(&self, moment: i128) -> i128 {
        (self.empty_at - moment * self.quota).max(0)
    }

    fn set_content(&mut self, now: i128, content: i128) {
        self.empty_at = now * self.quota + content;
        self.at = now;
    }

    /// Only the last place can be released: that of a charge after which no request has come.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128, after: &Self) {
        let content = self.content(now);
        let left_over = after.content(now.max(charged_at));
        if content == left_over {
            self.set_content(now, (content - units * self.window).max(0));
        }
    }
}

impl Counter for LeakyBucket {
    fn left(&self, moment: i128) -> i128 {
        (self.places * self.window - self.content(moment)).max(0) / self.window
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.content(moment) + cost * self.window <= self.places * self.window
    }

    fn delay(&self, now: i128) -> i128 {
        self.content(now).div_ceil_to(self.quota)
    }

    fn time_for(&self, _now: i128, left: i128) -> i128 {
        (left * self.window).div_ceil_to(self.quota)
    }

    fn used(&self, moment: i128) -> i128 {
        self.content(moment)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.set_content(now, self.content(now) + cost * self.window);
    }

    fn take_late(&mut self, now: i128, units: i128) {
        let most = 2 * self.places * self.window;
        self.set_content(now, (self.content(now) + units * self.window).min(most));
    }

    fn pass_to(&mut self, now: i128) {
        self.at = now;
    }

    fn step_back(&mut self, now: i128) {
        if now < self.at {
            self.set_content(now, self.content(self.at));
        }
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        let mut new = Self::new(policy, self.at);
        let content = convert(self.content(self.at), self.window, new.quota, new.window);
        new.set_content(self.at, content.min(2 * new.places * new.window));
        *self = new;
    }
}

//! A leaky bucket as a schedule: the moment when the last of those that are in it has left.

use super::{
    Counter, Late, State,
    numbers::{DivCeil, Numbers},
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct LeakyBucket {
    numbers: Numbers,
    /// When it is empty, in microseconds times the quota, so that a unit takes a window.
    empty_at: i128,
    at: i128,
}

impl LeakyBucket {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        Self {
            numbers: Numbers::of(policy),
            empty_at: 0,
            at: now,
        }
    }

    fn content(&self, moment: i128) -> i128 {
        (self.empty_at - moment * self.numbers.rate).max(0)
    }

    fn set_content(&mut self, now: i128, content: i128) {
        self.empty_at = now * self.numbers.rate + content;
        self.at = now;
    }

    /// Only the last place can be released: the place of a charge that no request has followed.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128, after: &Self) {
        let content = self.content(now);
        let left_over = after.content(now.max(charged_at));
        if self.numbers.is_rate_of(&after.numbers) && self.numbers.rounded_up(left_over, &after.numbers) == content {
            self.set_content(now, (content - units * self.numbers.window).max(0));
        }
    }

    pub(super) fn has_rate_of(&self, policy: &QuotaPolicy) -> bool {
        self.numbers.is_rate_of(&Numbers::of(policy))
    }

    fn with_numbers_of(&self, now: i128, policy: &QuotaPolicy) -> Self {
        let mut new = Self::new(policy, now);
        let content = new.numbers.rounded_up(self.content(now), &self.numbers);
        new.set_content(now, content.min(new.numbers.most()));
        new
    }
}

impl Counter for LeakyBucket {
    fn left(&self, moment: i128) -> i128 {
        (self.numbers.capacity - self.content(moment)).max(0) / self.numbers.window
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.content(moment) + cost * self.numbers.window <= self.numbers.capacity
    }

    fn delay(&self, now: i128) -> i128 {
        self.content(now).div_ceil_to(self.numbers.rate)
    }

    fn time_for(&self, _now: i128, left: i128) -> i128 {
        (left * self.numbers.window).div_ceil_to(self.numbers.rate)
    }

    fn used(&self, moment: i128) -> i128 {
        self.content(moment)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.set_content(now, self.content(now) + cost * self.numbers.window);
    }

    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        let settling = Numbers::of(late.policy);
        let content = self.numbers.charged_late(self.content(now), late.units, &settling);
        self.set_content(now, content);
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
        *self = self.with_numbers_of(self.at, policy);
    }

    fn forwarded(&self, now: i128, policy: &QuotaPolicy) -> Option<State> {
        let new = self.with_numbers_of(now, policy);
        let is_kept = new.numbers.is_rate_of(&self.numbers)
            || new.numbers.owes(self.content(self.at), &self.numbers)
            || new.content(now) == new.numbers.most();
        (self.content(now) > 0 && !is_kept).then_some(State::LeakyBucket(new))
    }

    fn shown(&self, now: i128, policy: &QuotaPolicy, cost: i128) -> State {
        let mut new = self.with_numbers_of(now, policy);
        if new.numbers.owes(self.content(self.at), &self.numbers) {
            new.set_content(now, new.numbers.shown(new.content(now), &self.numbers, cost));
        }
        State::LeakyBucket(new)
    }
}

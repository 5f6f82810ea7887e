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
    /// A policy with a slower rate has rejected a request, and the rate stays.
    is_decided: bool,
    /// The policy that looks at a bucket which keeps its rate.
    seen_by: Option<Numbers>,
}

impl LeakyBucket {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        Self {
            numbers: Numbers::of(policy),
            empty_at: 0,
            at: now,
            is_decided: false,
            seen_by: None,
        }
    }

    fn content(&self, moment: i128) -> i128 {
        (self.empty_at - moment * self.numbers.rate).max(0)
    }

    /// What the policy sees of it.
    fn seen_content(&self, moment: i128) -> (Numbers, i128) {
        match self.seen_by {
            None => (self.numbers, self.content(moment)),
            Some(numbers) => {
                let content = numbers.rounded_up(self.content(moment), &self.numbers);
                (numbers, content.min(numbers.most()))
            }
        }
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

    pub(super) fn shown(&self, now: i128, policy: &QuotaPolicy) -> Self {
        if self.has_rate_of(policy) || self.content(now) == 0 {
            return self.with_numbers_of(now, policy);
        }
        let seen_by = Some(Numbers::of(policy));
        Self {
            seen_by,
            ..self.clone()
        }
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
        let (numbers, content) = self.seen_content(moment);
        (numbers.capacity - content).max(0) / numbers.window
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        let (numbers, content) = self.seen_content(moment);
        content + cost * numbers.window <= numbers.capacity
    }

    fn delay(&self, now: i128) -> i128 {
        let (numbers, content) = self.seen_content(now);
        content.div_ceil_to(numbers.rate)
    }

    fn time_for(&self, now: i128, left: i128) -> i128 {
        let (numbers, _) = self.seen_content(now);
        (left * numbers.window).div_ceil_to(numbers.rate)
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
        if self.has_rate_of(policy) || self.content(now) == 0 {
            return None;
        }
        let new = self.with_numbers_of(now, policy);
        let content = new.content(now);
        let is_kept = new.numbers.owes(content, &self.numbers, self.is_decided) || content == new.numbers.most();
        match (is_kept, self.is_decided) {
            (true, true) => None,
            (true, false) => Some(State::LeakyBucket(Self {
                is_decided: true,
                at: now,
                ..self.clone()
            })),
            (false, _) => Some(State::LeakyBucket(new)),
        }
    }
}

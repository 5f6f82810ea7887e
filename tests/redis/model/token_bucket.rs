//! A token bucket in plain fractions: what is *left*, refilled before each use.

use super::{
    Counter, Late, State,
    numbers::{DivCeil, Numbers},
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    numbers: Numbers,
    /// Negative for a debt.
    left: i128,
    at: i128,
    /// A policy with a slower rate has rejected a request, and the rate stays.
    is_decided: bool,
    /// The policy that looks at a bucket which keeps its rate.
    seen_by: Option<Numbers>,
}

impl TokenBucket {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        let numbers = Numbers::of(policy);
        Self {
            numbers,
            left: numbers.capacity,
            at: now,
            is_decided: false,
            seen_by: None,
        }
    }

    /// The bucket of a caller that comes for the first time.
    pub(super) fn of_newcomer(policy: &QuotaPolicy, now: i128) -> Option<Self> {
        let units = policy.initial_units()?;
        let full = Self::new(policy, now);
        Some(Self {
            left: i128::from(units) * full.numbers.window,
            ..full
        })
    }

    /// The longest wait for a bucket: two fillings.
    pub(super) fn longest_wait(policy: &QuotaPolicy) -> i128 {
        let numbers = Numbers::of(policy);
        (2 * numbers.capacity).div_ceil_to(numbers.rate)
    }

    fn left_at(&self, moment: i128) -> i128 {
        (self.left + (moment - self.at) * self.numbers.rate).min(self.numbers.capacity)
    }

    /// What the policy sees of it.
    fn seen_left(&self, moment: i128) -> (Numbers, i128) {
        match self.seen_by {
            None => (self.numbers, self.left_at(moment)),
            Some(numbers) => {
                let used = numbers.rounded_up(self.used(moment), &self.numbers);
                (numbers, numbers.capacity - used.min(numbers.most()))
            }
        }
    }

    /// Units that were restored over time are not refunded again. At least as many units of the charge are still
    /// missing as were missing after it, minus those that the rate has restored.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128, after: &Self) {
        self.pass_to(now);
        let age = (now - charged_at).max(0);
        let given = self.numbers.refund(units, &after.numbers, after.used(charged_at), age);
        self.left = (self.left + given).min(self.numbers.capacity);
    }

    /// The charge has emptied the bucket at most.
    pub(super) fn give_back_any(&mut self, now: i128, units: i128, policy: &QuotaPolicy, charged_at: i128) {
        let emptied = Self {
            left: 0,
            ..Self::new(policy, charged_at)
        };
        self.give_back(now, units, charged_at, &emptied);
    }

    pub(super) fn has_rate_of(&self, policy: &QuotaPolicy) -> bool {
        self.numbers.is_rate_of(&Numbers::of(policy))
    }

    pub(super) fn shown(&self, now: i128, policy: &QuotaPolicy) -> Self {
        let mut passed = self.clone();
        passed.pass_to(now);
        if self.has_rate_of(policy) || self.used(now) == 0 {
            return passed.with_numbers_of(policy);
        }
        let seen_by = Some(Numbers::of(policy));
        Self { seen_by, ..passed }
    }

    fn with_numbers_of(&self, policy: &QuotaPolicy) -> Self {
        let new = Self::new(policy, self.at);
        let used = new.numbers.rounded_up(self.used(self.at), &self.numbers);
        Self {
            left: new.numbers.capacity - used.min(new.numbers.most()),
            ..new
        }
    }
}

impl Counter for TokenBucket {
    fn left(&self, moment: i128) -> i128 {
        let (numbers, left) = self.seen_left(moment);
        left.max(0) / numbers.window
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        let (numbers, left) = self.seen_left(moment);
        cost * numbers.window <= left
    }

    fn time_for(&self, now: i128, left: i128) -> i128 {
        let (numbers, _) = self.seen_left(now);
        (left * numbers.window).div_ceil_to(numbers.rate)
    }

    fn used(&self, moment: i128) -> i128 {
        self.numbers.capacity - self.left_at(moment)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        self.pass_to(now);
        self.left -= cost * self.numbers.window;
    }

    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        self.pass_to(now);
        let used = self
            .numbers
            .charged_late(self.used(now), late.units, &Numbers::of(late.policy));
        self.left = self.numbers.capacity - used;
    }

    fn pass_to(&mut self, now: i128) {
        self.left = self.left_at(now);
        self.at = now;
    }

    fn step_back(&mut self, now: i128) {
        self.at = self.at.min(now);
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        *self = self.with_numbers_of(policy);
    }

    fn forwarded(&self, now: i128, policy: &QuotaPolicy) -> Option<State> {
        if self.has_rate_of(policy) || self.used(now) == 0 {
            return None;
        }
        let mut passed = self.clone();
        passed.pass_to(now);
        let new = passed.with_numbers_of(policy);
        let is_kept =
            new.numbers.owes(new.used(now), &self.numbers, self.is_decided) || new.used(now) == new.numbers.most();
        match (is_kept, self.is_decided) {
            (true, true) => None,
            (true, false) => {
                passed.is_decided = true;
                Some(State::TokenBucket(passed))
            }
            (false, _) => Some(State::TokenBucket(new)),
        }
    }
}

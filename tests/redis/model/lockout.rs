//! A lockout: a moment until which a policy rejects everything.

use super::Counter;

#[derive(Clone, Debug, Default)]
pub(super) struct Lockout {
    until: i128,
    at: i128,
}

impl Lockout {
    pub(super) fn until(until: i128, at: i128) -> Self {
        Self { until, at }
    }

    pub(super) fn rest(&self, moment: i128) -> i128 {
        (self.until - moment).max(0)
    }

    pub(super) fn begin(&mut self, now: i128, time: i128) {
        if self.rest(now) == 0 {
            self.until = now + time;
        }
    }

    pub(super) fn lift(&mut self) {
        self.until = 0;
    }
}

impl Counter for Lockout {
    fn left(&self, _moment: i128) -> i128 {
        panic!("a lockout has no units")
    }

    fn fits(&self, moment: i128, _cost: i128) -> bool {
        self.rest(moment) == 0
    }

    fn used(&self, moment: i128) -> i128 {
        self.rest(moment)
    }

    fn pass_to(&mut self, now: i128) {
        self.at = now;
    }

    fn step_back(&mut self, now: i128) {
        if now < self.at {
            self.until = now + self.rest(self.at);
            self.at = now;
        }
    }
}

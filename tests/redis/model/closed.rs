//! No quota: nothing passes, and nothing is known.

use super::{Counter, Late, State};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct Closed;

impl Counter for Closed {
    fn left(&self, _moment: i128) -> i128 {
        0
    }

    fn fits(&self, _moment: i128, _cost: i128) -> bool {
        false
    }

    fn time_for(&self, _now: i128, _left: i128) -> i128 {
        panic!("nothing is left")
    }

    fn wait(&self, _now: i128, _cost: i128) -> Option<i128> {
        None
    }

    fn used(&self, _moment: i128) -> i128 {
        0
    }

    fn take(&mut self, _now: i128, _cost: i128, _request: u64) {
        panic!("nothing passes")
    }

    fn take_late(&mut self, _now: i128, _late: &Late<'_>) {
        panic!("nothing has passed")
    }

    fn pass_to(&mut self, _now: i128) {}

    fn step_back(&mut self, _now: i128) {}

    fn adopt(&mut self, _policy: &QuotaPolicy) {}

    fn shown(&self, _now: i128, _policy: &QuotaPolicy) -> State {
        State::Closed(self.clone())
    }
}

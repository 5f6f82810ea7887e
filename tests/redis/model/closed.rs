//! No quota: nothing passes, and nothing is known.

use super::Counter;

#[derive(Clone, Debug)]
pub(super) struct Closed;

impl Counter for Closed {
    fn left(&self, _moment: i128) -> i128 {
        0
    }

    fn fits(&self, _moment: i128, _cost: i128) -> bool {
        false
    }

    fn wait(&self, _now: i128, _cost: i128) -> Option<i128> {
        None
    }

    fn used(&self, _moment: i128) -> i128 {
        0
    }
}

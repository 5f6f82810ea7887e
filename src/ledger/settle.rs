//! The change of a charge that was made before, and of the block that it has begun.

use crate::{
    algorithm::{Block, State, Times},
    exchange::settlement::Adjustment,
};

/// Settles charges, under the circumstances of one moment.
pub(super) struct Settle {
    pub(super) times: Times,
    /// The birth of the state that is there now.
    pub(super) birth: u32,
    /// The numbers of a log that begins follow it.
    pub(super) first: u64,
}

impl Settle {
    /// Changes the charge of one policy, and its block if it has one. Returns `true` if anything was used before.
    pub(super) fn change(&self, adjustment: &Adjustment<'_>, state: &mut State, block: Option<&mut State>) -> bool {
        let (counter, times) = (adjustment.policy.counter(), self.times);
        let is_used = counter.is_used(state, times.last, times.now);
        let Some((block, its_state)) = adjustment.policy.block().zip(block) else {
            self.change_alone(adjustment, state);
            return is_used;
        };
        let before = counter.read(state, times, 0, self.first);
        self.change_alone(adjustment, state);
        let now = Times {
            last: times.now,
            ..times
        };
        let after = counter.read(state, now, 0, self.first);
        let left = block.left(its_state, times);
        let left_after = match before == after {
            true => left,
            false => block.settled(left, adjustment.delta < 0, counter.remaining(after, times.now) == 0),
        };
        *its_state = Block::state(left_after);
        is_used || left > 0
    }

    fn change_alone(&self, adjustment: &Adjustment<'_>, state: &mut State) {
        let (counter, delta) = (adjustment.policy.counter(), adjustment.delta);
        match delta {
            0 => counter.advance(state, self.times),
            1.. => counter.charge_late(state, self.times, delta.unsigned_abs(), self.first),
            _ => counter.refund(state, self.times, self.birth, delta.unsigned_abs(), adjustment.receipt),
        }
    }
}

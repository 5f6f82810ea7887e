use crate::{
    algorithm::{Counter, Lockout, Settling, State, Times},
    decision::settlement::Adjustment,
};

pub(super) struct Settle {
    pub(super) times: Times,
    pub(super) clock: u64,
    pub(super) birth: u32,
    pub(super) first: u64,
}

impl Settle {
    /// `counter` belongs to `state`.
    pub(super) fn change(
        &self,
        adjustment: &Adjustment<'_>,
        counter: &Counter,
        state: &mut State,
        lockout: Option<&mut State>,
    ) -> bool {
        let times = self.times;
        let is_used = counter.is_used(state, times.last, times.now);
        let Some((lockout, its_state)) = adjustment.policy.lockout().zip(lockout) else {
            self.change_alone(adjustment, counter, state);
            return is_used;
        };
        let own = adjustment.policy.counter();
        let now = Times {
            last: times.now,
            ..times
        };
        // Read after the conversion: in other numbers, the debt may be capped at the largest amount.
        let read = |state: &State, times: Times| match own == counter {
            true => own.read(state, times, 0, self.first),
            false => {
                let mut state = state.clone();
                counter.advance(&mut state, times);
                own.read(&own.convert(&state, counter), now, 0, self.first)
            }
        };
        let before = read(state, times);
        self.change_alone(adjustment, counter, state);
        let after = read(state, now);
        let left = lockout.left(its_state, times);
        let left_after = match before == after {
            true => left,
            false => lockout.settled(left, adjustment.delta < 0, own.remaining(after, times.now) == 0),
        };
        *its_state = Lockout::state(left_after);
        is_used || left > 0
    }

    fn change_alone(&self, adjustment: &Adjustment<'_>, counter: &Counter, state: &mut State) {
        let settling = Settling {
            counter: adjustment.policy.counter(),
            receipt: adjustment.receipt,
            times: self.times,
            clock: self.clock,
            birth: self.birth,
            first: self.first,
        };
        match adjustment.delta {
            0 => counter.advance(state, self.times),
            delta @ 1.. => counter.charge_late(state, delta.unsigned_abs(), settling),
            delta => counter.refund(state, delta.unsigned_abs(), settling),
        }
    }
}

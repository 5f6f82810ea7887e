use smallvec::SmallVec;

use super::bytes::{EXACT, Reader, Writer};
use crate::{
    clock::Timestamp,
    lease::{Lease, LeaseId},
};

/// Microseconds by which a server's clock may step back: the time of a partition is frozen until the clock catches up.
/// Otherwise, each step back across a window boundary would grant the quota again.
pub(crate) const MAX_CLOCK_STEP: u64 = 5_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) now: Timestamp,
    /// The microseconds by which a clock that stepped back is behind `now`.
    pub(crate) ahead: u32,
    /// Identifies a lifetime of the numeric states: charges of one are not refunded to another.
    pub(crate) birth: u32,
}

pub(crate) type Moments = SmallVec<[Moment; 2]>;

impl Moment {
    pub(crate) fn server_time(self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_sub(self.ahead.into()))
    }

    /// Converts a wait from the partition's time, which may be frozen.
    #[inline]
    pub(crate) fn until(self, micros: u64) -> u64 {
        micros.saturating_add(self.ahead.into())
    }
}

/// `last` is when the state was written, never after `now`. Microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) last: u64,
    pub(crate) now: u64,
}

impl Times {
    pub(super) fn since(last: u64, elapsed: u64) -> Self {
        let now = last.saturating_add(elapsed);
        Self { last, now }
    }

    #[inline]
    pub(super) fn elapsed(self) -> u64 {
        self.now - self.last
    }
}

/// All numbers are integers: a charge is the weight of a cost, and times are in microseconds.
pub(crate) trait Arithmetic: Copy {
    type State: Clone + Default;

    /// Before a charge. By default, nothing is used.
    type Reading: Copy + Default + PartialEq;

    const FORM: Form = Form::Numbers;

    /// Identifies the algorithm in the bytes of a ledger. Codes are never reused.
    const CODE: u64;

    /// The numbers of a reading in a reply of the script.
    const WIDTH: usize = 1;

    /// Above any limit if there is no exact weight.
    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        cost.min(EXACT)
    }

    fn units(&self) -> u64;

    fn fill_micros(&self) -> u64;

    fn window_micros(&self, _now: u64) -> Option<u64> {
        None
    }

    /// For algorithms that restore the whole quota at once.
    fn lapse_micros(&self, _now: u64) -> Option<u64> {
        None
    }

    /// `first` is the number of the first entry of a new log.
    fn read(&self, state: &Self::State, times: Times, charge: u64, first: u64) -> Self::Reading;

    fn charge(&self, state: &mut Self::State, now: u64, reading: Self::Reading, charge: u64, lease: Option<Lease>);

    /// The part of a late charge to apply, in the numbers of the state. It is bounded by the quota at the time of the
    /// decision, that of the settling policy, because stores do not record the quota of the last writer for all
    /// algorithms.
    fn believed(&self, reading: Self::Reading, late: Late<'_, Self>) -> u64;

    /// `refund` is in the numbers of the settling policy, and `state` must be advanced to `now`.
    fn refund(&self, state: &mut Self::State, now: u64, refund: u64, settling: &Self, receipt: Receipt);

    fn is_refundable(&self, _is_unused: bool) -> bool {
        true
    }

    fn advance(&self, _state: &mut Self::State, _times: Times) {}

    /// A smaller quota must not hide the usage of a larger one.
    fn convert(&self, state: &Self::State, _from: &Self) -> Self::State {
        state.clone()
    }

    fn in_windows_of(self, _settling: &Self) -> Self {
        self
    }

    /// From this time on, the state equals the default.
    fn empty_at(&self, state: &Self::State, last: u64) -> u64;

    fn write(&self, state: &Self::State, bytes: &mut Writer);

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Self::State)>;

    /// Slots have a lease of `lease_micros`.
    fn sent(&self, lease_micros: u64) -> Sent;

    fn received(next: impl FnMut() -> Option<u64>) -> Option<Self::Reading>;

    fn newest_entry(_state: &Self::State) -> Option<u64> {
        None
    }

    fn rebase(_state: &mut Self::State, _now: u64) {}

    fn admits(&self, reading: Self::Reading, now: u64, charge: u64) -> bool;

    fn charged(&self, reading: Self::Reading, charge: u64) -> Self::Reading;

    fn mark(_reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    fn any_mark(&self) -> u64 {
        0
    }

    fn remaining(&self, reading: Self::Reading, now: u64) -> u64;

    /// A time over which the remaining units can be spread. Longer than the window if clients would otherwise exceed
    /// twice the rate.
    fn reset(&self, reading: Self::Reading, now: u64) -> Option<u64>;

    /// `None` if all units remain, or if the time is unknown.
    fn full_after(&self, reading: Self::Reading, now: u64) -> Option<u64>;

    /// `None` if it is never admitted.
    fn wait(&self, reading: Self::Reading, now: u64, charge: u64) -> Option<u64>;

    #[inline]
    fn delay(&self, _reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    /// How long a charge is certainly rejected, and the wait to report, from a reading for `asked` with this wait.
    fn certain_wait(&self, _reading: Self::Reading, _asked: u64, _charge: u64, wait: u64) -> (u64, u64) {
        (wait, wait)
    }

    /// `true` if the reading after a charge predicts how long the same charge is rejected.
    fn predicts(&self, _reading: Self::Reading, _asked: u64) -> bool {
        true
    }

    /// `None` if unknown. During `hold`, only one request calls the store.
    fn predict(&self, reading: Self::Reading, now: u64, elapsed: u64, charge: u64, hold: u64) -> Option<Self::Reading>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Log,
    Numbers,
    Slots,
}

/// Weight, drain, limit and bound of a policy, for the script. The drain is positive for a bucket, or else the number
/// of the algorithm in its Lua file.
pub(crate) type Sent = (u64, i64, u64, u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Late<'a, A> {
    pub(crate) charge: u64,
    pub(crate) settling: &'a A,
    pub(crate) receipt: Receipt,
    pub(crate) now: u64,
    pub(crate) clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receipt {
    pub(crate) at: u64,
    pub(crate) birth: Option<u32>,
    pub(crate) mark: u64,
    pub(crate) refundable_micros: u64,
    pub(crate) lease: Option<LeaseId>,
}

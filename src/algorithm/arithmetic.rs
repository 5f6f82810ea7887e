//! The trait of all algorithms, with the moments and charges that it is given.

use smallvec::SmallVec;

use super::bytes::{EXACT, Reader, Writer};
use crate::{
    clock::Timestamp,
    lease::{Lease, LeaseId},
};

/// The microseconds by which the clock of a server may step back before that is believed: until the clock is there again,
/// the time of a partition stands still. Otherwise each step over the border of a window would give its quota once more.
pub(crate) const MAX_CLOCK_STEP: u64 = 5_000_000;

/// The moment at which a partition was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The partition's time.
    pub(crate) now: Timestamp,
    /// The microseconds by which that is ahead of the clock of its server, which has stepped back.
    pub(crate) ahead: u32,
    /// A number that all have in common which a store keeps of the partition in one piece, from the first charge until all
    /// of it has come back, was reset or was lost. A charge to one birth is not given back to another.
    pub(crate) birth: u32,
}

/// The moments of a plan's partitions, in its order.
pub(crate) type Moments = SmallVec<[Moment; 2]>;

impl Moment {
    /// The time by the clock of the server.
    pub(crate) fn server_time(self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_sub(self.ahead.into()))
    }

    /// The time on a running clock until so many microseconds have passed for the partition.
    #[inline]
    pub(crate) fn until(self, micros: u64) -> u64 {
        micros.saturating_add(self.ahead.into())
    }
}

/// The moments at which a state was written and is read, in microseconds; the first is never later.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) last: u64,
    pub(crate) now: u64,
}

impl Times {
    /// So many microseconds after `last`.
    pub(super) fn since(last: u64, elapsed: u64) -> Self {
        let now = last.saturating_add(elapsed);
        Self { last, now }
    }

    #[inline]
    pub(super) fn elapsed(self) -> u64 {
        self.now - self.last
    }
}

/// One algorithm: what it keeps of a policy, how that changes, and what it says to clients.
///
/// Amounts and moments are integers: a charge is the weight of a cost, and all times are in microseconds.
pub(crate) trait Arithmetic: Copy {
    /// The state that a store in this process keeps of a policy. By default, the policy was never charged.
    type State: Clone + Default;

    /// The reading of a store at one moment. By default, nothing is used.
    type Reading: Copy + Default + PartialEq;

    /// The form in which a store keeps it.
    const FORM: Form = Form::Numbers;

    /// The number of the algorithm in the bytes of a ledger. No other one ever has it.
    const CODE: u64;

    /// Converts a cost in units to the numbers of the algorithm. It is more than any limit where it cannot be kept exact.
    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        cost.min(EXACT)
    }

    /// Whole units that pass when nothing is used.
    fn units(&self) -> u64;

    /// The time in which all of a quota comes back.
    fn fill_micros(&self) -> u64;

    /// The length of the window of a moment, if windows differ in length.
    fn window_micros(&self, _now: u64) -> Option<u64> {
        None
    }

    /// The time until units that are charged now lapse, if all of a quota comes back at one moment.
    fn lapse_micros(&self, _now: u64) -> Option<u64> {
        None
    }

    /// Reads the state now, for a charge. The numbers of a log that begins follow `first`.
    fn read(&self, state: &Self::State, times: Times, charge: u64, first: u64) -> Self::Reading;

    /// Makes a charge that was admitted for this reading.
    fn charge(&self, state: &mut Self::State, now: u64, reading: Self::Reading, charge: u64, lease: Option<Lease>);

    /// Returns the part of a late charge that counts, in the numbers of the state. The charge is in the numbers of the
    /// policy that settles it, and may overdraw the larger of both policies up to twice its quota.
    fn believed(&self, reading: Self::Reading, late: Late<'_, Self>) -> u64;

    /// Refunds a part of a charge, or all of it, in the numbers of the policy that settles it. The state is that of now.
    fn refund(&self, state: &mut Self::State, now: u64, refund: u64, settling: &Self, receipt: Receipt);

    /// Returns `true` if a charge comes back when its request has cost less.
    fn is_refundable(&self, _is_unused: bool) -> bool {
        true
    }

    /// Brings the state forward to now without a charge.
    fn advance(&self, _state: &mut Self::State, _times: Times) {}

    /// The same used units in the numbers of this policy, without a bound: a smaller quota must not hide what was used of
    /// a larger one.
    fn convert(&self, state: &Self::State, _from: &Self) -> Self::State {
        state.clone()
    }

    /// The same numbers with the windows of a policy that settles a charge.
    fn in_windows_of(self, _settling: &Self) -> Self {
        self
    }

    /// The moment from which the state equals that of a policy that was never charged.
    fn empty_at(&self, state: &Self::State, last: u64) -> u64;

    /// The policy's numbers and the state in the bytes of a ledger.
    fn write(&self, state: &Self::State, bytes: &mut Writer);

    /// Reads what [`write`](Self::write) has written; `None` if it cannot have.
    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Self::State)>;

    /// The moment of the newest entry of a log.
    fn newest_entry(_state: &Self::State) -> Option<u64> {
        None
    }

    /// Moves entries of a clock that stood later to now.
    fn rebase(_state: &mut Self::State, _now: u64) {}

    /// Returns `true` if a charge fits.
    fn admits(&self, reading: Self::Reading, now: u64, charge: u64) -> bool;

    /// The reading after a charge that was made: one that was known late may have met the bound.
    fn charged(&self, reading: Self::Reading, charge: u64) -> Self::Reading;

    /// Returns the number by which a refund finds a charge.
    fn mark(_reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    /// The mark of a charge of which only the moment is known.
    fn any_mark(&self) -> u64 {
        0
    }

    /// Whole units that are left.
    fn remaining(&self, reading: Self::Reading, now: u64) -> u64;

    /// The effective window: a time in which the units that are left may be used.
    fn reset(&self, reading: Self::Reading, now: u64) -> Option<u64>;

    /// The time until all units are there if nothing else is used; `None` if they are, or if it is unknown.
    fn full_after(&self, reading: Self::Reading, now: u64) -> Option<u64>;

    /// The time until a charge that was rejected passes if nothing else is used; `None` if it never does.
    fn wait(&self, reading: Self::Reading, now: u64, charge: u64) -> Option<u64>;

    /// The time for which an admitted request waits for its turn.
    #[inline]
    fn delay(&self, _reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    /// Returns the time for which a charge is rejected for certain, and the time that a client is told, where a reading
    /// that was made for `asked` gives it this wait.
    fn certain_wait(&self, _reading: Self::Reading, _asked: u64, _charge: u64, wait: u64) -> (u64, u64) {
        (wait, wait)
    }

    /// Returns `true` if a reading after a charge says for how long the same charge is rejected.
    fn predicts(&self, _reading: Self::Reading, _asked: u64) -> bool {
        true
    }

    /// The reading that a store would give `elapsed` later, once a charge is made, if no other request asks; `None` if that
    /// is unknown. In `hold`, one request asks the store.
    fn predict(&self, reading: Self::Reading, now: u64, elapsed: u64, charge: u64, hold: u64) -> Option<Self::Reading>;
}

/// The form in which stores keep the use of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each request.
    Log,
    /// A few numbers, which lose their meaning with time.
    Numbers,
    /// The holders of slots.
    Slots,
}

/// A charge that comes after the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late<'a, A> {
    pub(crate) charge: u64,
    /// The policy that settles the charge. Its numbers may differ from those of the state.
    pub(crate) settling: &'a A,
    pub(crate) receipt: Receipt,
    /// The partition's time, in microseconds.
    pub(crate) now: u64,
    /// The server's time, in microseconds.
    pub(crate) clock: u64,
}

/// A charge that is now changed, as it was known when it was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receipt {
    /// The partition's time, in microseconds.
    pub(crate) at: u64,
    /// The birth that was charged; `None` if it is unknown.
    pub(crate) birth: Option<u32>,
    /// See [`Arithmetic::mark`].
    pub(crate) mark: u64,
    /// After this many microseconds units do not come back.
    pub(crate) refundable_micros: u64,
    pub(crate) lease: Option<LeaseId>,
}

//! The algorithms that count units over time: pure steps without a clock, a runtime or HTTP, one file each.
//!
//! A [`Counter`] is a policy in the numbers of its algorithm, a [`State`] what a store in this process keeps for it, and a
//! [`Reading`] what any store says about it at one moment, before a charge. All that is told to clients follows from the
//! reading, so that it is computed in one place.
//!
//! [`Arithmetic`] is what an algorithm has to say, and [`dispatch`] gives a counter to the algorithm that it is of.
//!
//! A piece of Lua beside each file is the same arithmetic in the same order. Both keep to integers below 2⁵³ and to
//! + − × ÷, comparison, floor and ceil, so that doubles and integers give the same numbers.

mod ahead;
mod bytes;
mod concurrency;
mod dispatch;
mod fixed_window;
mod leaky_bucket;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
mod token_bucket;
mod worth;

use smallvec::SmallVec;

pub(crate) use self::{
    ahead::Denial,
    bytes::{Reader, Writer},
    concurrency::Concurrency,
    dispatch::{Counter, Reading, State},
    fixed_window::FixedWindow,
    leaky_bucket::LeakyBucket,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
    token_bucket::TokenBucket,
    worth::Worth,
};
use crate::{
    clock::Timestamp,
    lease::{Lease, LeaseId},
};

/// Amounts stay below 2⁵³, where a double still holds every integer: Lua has no other numbers.
pub(crate) const EXACT: u64 = 1 << 53;

/// The maximum step back of a server's clock that is ignored, in microseconds: until the clock is there again,
/// the time of a partition stands still. Otherwise each step over the border of a window would give its quota once more.
pub(crate) const STANDSTILL: u64 = 5_000_000;

/// The moment at which a partition was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The partition's time.
    pub(crate) now: Timestamp,
    /// By how many microseconds that is ahead of the clock of its server, which has stepped back.
    pub(crate) ahead: u32,
    /// A number that all have in common which a store keeps of the partition in one piece, from the first charge until all
    /// of it has come back, was reset or was lost. A charge to one birth is not given back to another.
    pub(crate) birth: u32,
}

/// Of the partitions of a plan, in its order.
pub(crate) type Moments = SmallVec<[Moment; 2]>;

impl Moment {
    /// The time by the clock of the server.
    pub(crate) fn server_time(self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_sub(self.ahead.into()))
    }

    /// The time, by a clock that runs, until so many microseconds have passed for the partition.
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
    fn since(last: u64, elapsed: u64) -> Self {
        let now = last.saturating_add(elapsed);
        Self { last, now }
    }

    #[inline]
    fn elapsed(self) -> u64 {
        self.now - self.last
    }
}

fn window_start(moment: u64, window: u64) -> u64 {
    moment - moment % window
}

/// Microseconds in which this many units are no more than twice the rate.
fn least_time_for(units: u64, quota: u64, window: u64) -> u64 {
    let micros = (u128::from(units) * u128::from(window)).div_ceil(2 * u128::from(quota));
    u64::try_from(micros).unwrap_or(u64::MAX)
}

/// One algorithm: what it keeps of a policy, how that changes, and what it says to clients.
///
/// Amounts and moments are integers: a charge is the weight of a cost, and all times are in microseconds.
pub(crate) trait Arithmetic: Copy {
    /// The state of a policy in a store of this process. By default, the policy was never charged.
    type State: Clone + Default;

    /// The reading of a store at one moment.
    type Reading: Copy;

    /// In which form a store keeps it.
    const FORM: Form = Form::Numbers;

    /// The code of the algorithm in the bytes of a ledger. It is never given to another one.
    const CODE: u64;

    /// A cost in units, converted to the numbers of the algorithm; more than any limit when it cannot be told apart from
    /// that.
    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        cost.min(EXACT)
    }

    /// Whole units that pass when nothing is used.
    fn units(&self) -> u64;

    /// The time in which all of a quota comes back.
    fn fill_micros(&self) -> u64;

    /// The time until units that are charged now lapse, if all of a quota comes back at one moment.
    fn lapse_micros(&self, _now: u64) -> Option<u64> {
        None
    }

    /// Reads the state now, for a charge. The numbers of a log that begins follow `first`.
    fn read(&self, state: &Self::State, times: Times, charge: u64, first: u64) -> Self::Reading;

    /// Makes a charge that was admitted for this reading.
    fn charge(&self, state: &mut Self::State, now: u64, reading: Self::Reading, charge: u64, lease: Option<Lease>);

    /// The part of a late charge that is taken: a policy may be overdrawn up to its bound.
    fn believed(&self, reading: Self::Reading, charge: u64) -> u64;

    /// Takes back a part of the charge that a receipt is about, or all of it. The state is that of now.
    fn refund(&self, state: &mut Self::State, now: u64, refund: u64, receipt: Receipt);

    /// Returns `true` if the charge of a request is refunded when it has cost less.
    fn is_refundable(is_unused: bool) -> bool {
        let _ = is_unused;
        true
    }

    /// Brings the state forward to now without a charge.
    fn advance(&self, _state: &mut Self::State, _times: Times) {}

    /// The same used units for a policy whose numbers were those of `from`.
    fn convert(&self, state: &Self::State, from: &Self) -> Self::State;

    /// The moment from which the state equals that of a policy that was never charged.
    fn empty_at(&self, state: &Self::State, last: u64) -> u64;

    /// The policy's numbers and the state in the bytes of a ledger.
    fn write(&self, state: &Self::State, bytes: &mut Writer);

    /// Parses bytes that were written; `None` if they cannot have been.
    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Self::State)>;

    /// The moment of the newest entry of a log.
    fn newest_entry(_state: &Self::State) -> Option<u64> {
        None
    }

    /// Moves a state to now that was written by a clock that stood later.
    fn rebase(_state: &mut Self::State, _now: u64) {}

    /// Returns `true` if units are used in a numeric state.
    fn is_counted(reading: Self::Reading) -> bool;

    /// Returns `true` if a charge fits.
    fn admits(&self, reading: Self::Reading, now: u64, charge: u64) -> bool;

    /// The reading after a charge that was made: one that was known late may have met the bound.
    fn charged(&self, reading: Self::Reading, charge: u64) -> Self::Reading;

    /// The mark of a charge that a later refund needs.
    fn mark(_reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    /// Whole units that are left.
    fn remaining(&self, reading: Self::Reading, now: u64) -> u64;

    /// The effective window: a time in which the units that are left may be used.
    fn reset(&self, reading: Self::Reading, now: u64) -> Option<u64>;

    /// The time until a charge that was rejected passes if nothing else is used; `None` if it never does.
    fn wait(&self, reading: Self::Reading, now: u64, charge: u64) -> Option<u64>;

    /// The time that an admitted request waits for its turn.
    #[inline]
    fn delay(&self, _reading: Self::Reading, _charge: u64) -> u64 {
        0
    }

    /// For how long a charge is rejected for certain, and what is said about that, where a reading that was made for
    /// `asked` gives it this wait.
    fn certain_wait(&self, _reading: Self::Reading, _asked: u64, _charge: u64, wait: u64) -> (u64, u64) {
        (wait, wait)
    }

    /// Returns `true` if a reading after a charge says for how long the same is rejected.
    fn foretells(&self, _reading: Self::Reading, _asked: u64) -> bool {
        true
    }

    /// The reading that a store would give `elapsed` later, once a charge is made, if no other one comes; `None` if that
    /// cannot be told. In `hold`, one request finds out.
    fn foreseen(&self, reading: Self::Reading, now: u64, elapsed: u64, charge: u64, hold: u64)
    -> Option<Self::Reading>;
}

/// In which form stores keep what is used of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each request.
    Log,
    /// A few numbers, which lose their meaning with time.
    Numbers,
    /// The holders of the slots.
    Slots,
}

/// The facts about a policy at the time of a charge that is now changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    /// The partition's time, in microseconds.
    pub(crate) at: u64,
    /// Of what was charged.
    pub(crate) birth: u32,
    /// See [`Arithmetic::mark`].
    pub(crate) mark: u64,
    /// After this many microseconds units do not come back.
    pub(crate) refundable_micros: u64,
    pub(crate) lease: Option<LeaseId>,
}

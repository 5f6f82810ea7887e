//! A model of every algorithm as the documentation describes it, written as naively as possible, for one partition.
//!
//! It shares no formula with the crate: buckets count what is *left* or *when* they are empty, windows are a list of
//! counts, a log is a list of requests, and every wait is found by trying moments instead of by division.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]

mod closed;
mod concurrency;
mod contract;
mod counts;
mod dated;
mod leaky_bucket;
mod lockout;
mod numbers;
mod partition;
mod sliding_log;
mod token_bucket;
mod verdict;
mod window_count;
mod windows;

pub use self::{
    contract::Contract,
    numbers::{Actual, BOUNDS, OVERAGES, Request, is_converted_exactly, is_counted_exactly, renumbered},
    partition::{Kept, Partition, Receipt},
    verdict::Verdict,
};

use self::numbers::is_slots;
use self::{
    closed::Closed, concurrency::Concurrency, dated::Dated, leaky_bucket::LeakyBucket, lockout::Lockout,
    sliding_log::SlidingLog, token_bucket::TokenBucket, window_count::WindowCount,
};
use tower_quota::{Algorithm, QuotaPolicy};

/// The questions that every algorithm answers. Moments and amounts are `i128`, so that nothing ever overflows.
trait Counter {
    /// Whole units that are left.
    fn left(&self, moment: i128) -> i128;
    /// Whole units that are used above the quota, up to the overage.
    fn over(&self, _moment: i128) -> i128 {
        0
    }
    /// Returns `true` if `cost` units would pass at `moment`, provided that no other request arrives before.
    fn fits(&self, moment: i128, cost: i128) -> bool;
    /// The time for which a request that comes now waits for its turn.
    fn delay(&self, _now: i128) -> i128 {
        0
    }
    /// A time in which these units, which are left, may be used.
    fn time_for(&self, _now: i128, _left: i128) -> i128 {
        panic!("it is not bound to a time")
    }
    /// The time until `cost` units pass, found by trying, or `None` if they never pass.
    fn wait(&self, now: i128, cost: i128) -> Option<i128> {
        first_time(|late| self.fits(now + late, cost))
    }

    /// The time until the whole quota is available, or `None` if it already is or the time is unknown.
    fn full_after(&self, now: i128) -> Option<i128> {
        (self.used(now) > 0).then(|| first_time(|late| self.used(now + late) == 0))?
    }

    /// The used amount, in fractions of a unit whose size depends on the algorithm.
    fn used(&self, moment: i128) -> i128;
    /// Returns `true` if anything is used, by this policy or by one with other windows.
    fn is_counted(&self, moment: i128) -> bool {
        self.used(moment) > 0
    }
    /// Charges `cost` units for a request, which has a unique number.
    fn take(&mut self, _now: i128, _cost: i128, _request: u64) {
        panic!("it has no units")
    }
    /// Charges units that were used already, in the state's current numbers.
    fn take_late(&mut self, _now: i128, _late: &Late<'_>) {
        panic!("it has no units")
    }
    /// Drops what has expired by `now`, because the state is about to be written.
    fn pass_to(&mut self, _now: i128) {}
    /// Moves entries that a later clock has written to `now`.
    fn step_back(&mut self, _now: i128) {}
    /// The same used units for a policy with other numbers.
    fn adopt(&mut self, _policy: &QuotaPolicy) {}
    /// The windows of another policy with the same counts.
    fn adopt_windows(&mut self, _policy: &QuotaPolicy) {}
    /// The state after a rejection by a policy with other numbers; `None` if nothing changes with that.
    fn forwarded(&self, _now: i128, _policy: &QuotaPolicy) -> Option<State> {
        None
    }
}

/// A charge that comes after its decision.
struct Late<'a> {
    units: i128,
    /// The policy that was charged at first.
    policy: &'a QuotaPolicy,
    charged_at: i128,
    clock: i128,
}

/// After how long something comes true that stays so: found by trying; `None` if it never does.
fn first_time(is_true: impl Fn(i128) -> bool) -> Option<i128> {
    let mut late = 1;
    while !is_true(late) {
        late *= 2;
        if late > 1 << 62 {
            return None;
        }
    }
    let mut early = 0;
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        if is_true(middle) {
            late = middle;
        } else {
            early = middle;
        }
    }
    Some(late)
}

/// The state of one policy.
#[derive(Clone, Debug)]
enum State {
    Lockout(Lockout),
    Closed(Closed),
    Concurrency(Concurrency),
    Dated(Dated),
    LeakyBucket(LeakyBucket),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    WindowCount(WindowCount),
}

macro_rules! counter {
    ($state:expr) => {
        match $state {
            State::Lockout(state) => state,
            State::Closed(state) => state,
            State::Concurrency(state) => state,
            State::Dated(state) => state,
            State::LeakyBucket(state) => state,
            State::SlidingLog(state) => state,
            State::TokenBucket(state) => state,
            State::WindowCount(state) => state,
        }
    };
}

impl State {
    fn new(policy: &QuotaPolicy, now: i128, lease_time: Option<i128>) -> Self {
        if policy.quota() == 0 {
            return Self::Closed(Closed);
        }
        if is_slots(policy) {
            return Self::Concurrency(Concurrency::new(policy, lease_time));
        }
        if policy.calendar_window().is_some() {
            return Self::Dated(Dated::new(policy, now));
        }
        match policy.algorithm() {
            Algorithm::TokenBucket | Algorithm::StrictTokenBucket => Self::TokenBucket(TokenBucket::new(policy, now)),
            Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. } => {
                Self::LeakyBucket(LeakyBucket::new(policy, now))
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => {
                Self::WindowCount(WindowCount::new(policy, now))
            }
            Algorithm::SlidingWindowLog => Self::SlidingLog(SlidingLog::new(policy)),
            other => panic!("{other:?} has no model"),
        }
    }

    fn get(&self) -> &dyn Counter {
        counter!(self)
    }

    fn get_mut(&mut self) -> &mut dyn Counter {
        counter!(self)
    }

    /// The state that a policy with other numbers shows if nothing is written.
    fn shown(&self, now: i128, policy: &QuotaPolicy) -> Self {
        match self {
            Self::TokenBucket(state) => Self::TokenBucket(state.shown(now, policy)),
            Self::LeakyBucket(state) => Self::LeakyBucket(state.shown(now, policy)),
            other => {
                let mut shown = other.clone();
                shown.get_mut().pass_to(now);
                shown.get_mut().adopt(policy);
                shown
            }
        }
    }

    /// Returns `true` if the state's own rate applies instead of the policy's.
    fn is_other(&self, now: i128, policy: &QuotaPolicy) -> bool {
        let is_of = match self {
            Self::TokenBucket(state) => state.has_rate_of(policy),
            Self::LeakyBucket(state) => state.has_rate_of(policy),
            _ => true,
        };
        !is_of && self.get().used(now) > 0
    }

    /// Returns `true` if it is one of a few numbers that are kept together.
    fn is_number(&self) -> bool {
        !matches!(self, Self::Concurrency(_) | Self::SlidingLog(_))
    }

    /// Refunds units of a charge, which includes its time and the state after it. The window has not passed since then.
    fn give_back(&mut self, now: i128, units: i128, charge: &Charge) {
        let at = charge.at;
        match (self, &charge.after) {
            (Self::Concurrency(state), _) => state.release(charge.lease),
            (Self::Dated(state), _) => state.give_back(now, units, at),
            (Self::WindowCount(state), _) => state.give_back(now, units, at),
            (Self::TokenBucket(state), Self::TokenBucket(after)) => state.give_back(now, units, at, after),
            (Self::LeakyBucket(state), Self::LeakyBucket(after)) => state.give_back(now, units, at, after),
            (Self::SlidingLog(state), Self::SlidingLog(after)) => state.give_back(units, at, after),
            (state, after) => panic!("{state:?} was charged as {after:?}"),
        }
    }

    /// Refunds units of a charge of which only the time is known.
    fn give_back_any(&mut self, now: i128, units: i128, policy: &QuotaPolicy, charged_at: i128, latest: i128) {
        match self {
            Self::Lockout(_) | Self::Closed(_) => {}
            Self::Dated(state) => state.give_back(now, units, charged_at),
            Self::WindowCount(state) => state.give_back(now, units, charged_at),
            Self::TokenBucket(state) => state.give_back_any(now, units, policy, charged_at),
            Self::SlidingLog(state) => state.give_back_any(units, latest),
            Self::Concurrency(_) | Self::LeakyBucket(_) => {}
        }
    }
}

/// A charge that was made.
#[derive(Clone, Debug)]
struct Charge {
    at: i128,
    after: State,
    lease: u64,
}

impl Charge {
    fn all(at: i128, after: Vec<State>, lease: u64) -> Vec<Self> {
        let charge = |after| Self { at, after, lease };
        after.into_iter().map(charge).collect()
    }
}

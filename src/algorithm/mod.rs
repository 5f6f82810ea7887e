//! How time and units are counted: pure steps without a clock, a runtime or HTTP, one file each.
//!
//! A [`Rule`] is a policy in the numbers of its algorithm, a [`State`] what a store in this process keeps for it, and a
//! reading what any store says about it at one moment, before a charge. All that is told to clients follows from the
//! reading, so that it is computed in one place.
//!
//! `store/redis/quota.lua` is the same arithmetic in the same order. Both keep to integers below 2⁵³ and to
//! + − × ÷, comparison, floor and ceil, so that doubles and integers give the same numbers.

mod ahead;
mod concurrency;
mod fixed_window;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod state;
mod token_bucket;
mod worth;

use smallvec::SmallVec;

use self::sliding_log::LogReading;
pub(crate) use self::{
    ahead::Denial,
    concurrency::Concurrency,
    fixed_window::FixedWindow,
    leaky_bucket::LeakyBucket,
    sliding_counter::{SlidingCounter, Windows},
    sliding_log::SlidingLog,
    state::{Receipt, State},
    token_bucket::TokenBucket,
    worth::Worth,
};
use crate::clock::Timestamp;

/// Amounts stay below 2⁵³, where a double still holds every integer: Lua has no other numbers.
pub(crate) const EXACT: u64 = 1 << 53;

/// What a store says about policies, one after the other; how many numbers belong to each, [`Rule::width`] says.
pub(crate) type Readings = SmallVec<[u64; 4]>;

/// How far the clock of a server may step back before that is believed, in microseconds: until the clock is there again,
/// the time of a partition stands still. Otherwise each step over the border of a window would give its quota once more.
pub(crate) const STANDSTILL: u64 = 5_000_000;

/// When a partition was read.
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

    /// How long it takes, as a clock that runs shows it, until so many microseconds have passed for the partition.
    #[inline]
    pub(crate) fn until(self, micros: u64) -> u64 {
        micros.saturating_add(self.ahead.into())
    }
}

/// When a state was written and when it is looked at, in microseconds; the first is never later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) last: u64,
    pub(crate) now: u64,
}

impl Times {
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

/// A policy in the numbers of its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Concurrency(Concurrency),
    FixedWindow(FixedWindow),
    LeakyBucket(LeakyBucket),
    SlidingCounter(SlidingCounter),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
}

impl Rule {
    /// What a cost in units is in the numbers of the algorithm; more than any limit when it cannot be told apart from
    /// that.
    #[inline]
    pub(crate) fn weigh(&self, cost: u64) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => bucket.weigh(cost),
            Self::Concurrency(_) => cost.min(1),
            Self::FixedWindow(_) | Self::SlidingCounter(_) | Self::SlidingLog(_) => cost.min(EXACT),
        }
    }

    /// How many numbers a reading has.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::FixedWindow(_) | Self::Concurrency(_) => 1,
            Self::SlidingCounter(_) => 2,
            Self::SlidingLog(_) => LogReading::WIDTH,
        }
    }

    /// Whether a charge fits.
    #[inline]
    pub(crate) fn admits(&self, reading: &[u64], now: u64, charge: u64) -> bool {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => bucket.admits(reading[0], charge),
            Self::Concurrency(slots) => slots.admits(reading[0], charge),
            Self::FixedWindow(window) => window.admits(reading[0], charge),
            Self::SlidingCounter(counter) => counter.admits(Windows::from_numbers(reading), now, charge),
            Self::SlidingLog(log) => log.admits(reading[0], charge),
        }
    }

    /// The reading after a charge that was made: one that was known late may have met the bound.
    pub(crate) fn charged(&self, reading: &[u64], charge: u64) -> Readings {
        let up_to = |bound: u64, used: u64| used.saturating_add(charge).min(bound);
        let one = |used: u64| Readings::from_buf_and_len([used, 0, 0, 0], 1);
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => {
                one(up_to(bucket.bound, reading[0]))
            }
            Self::FixedWindow(window) => one(up_to(window.bound, reading[0])),
            Self::Concurrency(_) => one(reading[0] + charge),
            Self::SlidingCounter(counter) => {
                Readings::from_buf_and_len([reading[0], up_to(counter.bound, reading[1]), 0, 0], 2)
            }
            Self::SlidingLog(log) => {
                let before = LogReading::from_numbers(reading);
                let charged = LogReading {
                    used: up_to(log.bound, before.used),
                    oldest_leaves: match before.oldest_leaves {
                        0 if charge > 0 => log.window_micros,
                        oldest_leaves => oldest_leaves,
                    },
                    ..before
                };
                Readings::from_buf(charged.into_numbers())
            }
        }
    }

    /// Whole units that are left.
    pub(crate) fn remaining(&self, reading: &[u64], now: u64) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => bucket.remaining(reading[0]),
            Self::Concurrency(Concurrency { limit }) => limit.saturating_sub(reading[0]),
            Self::FixedWindow(FixedWindow { limit, .. }) => limit.saturating_sub(reading[0]),
            Self::SlidingCounter(counter) => counter.remaining(Windows::from_numbers(reading), now),
            Self::SlidingLog(SlidingLog { limit, .. }) => limit.saturating_sub(reading[0]),
        }
    }

    /// The effective window in microseconds: a time in which the units that are left may be used.
    pub(crate) fn reset(&self, reading: &[u64], now: u64) -> Option<u64> {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => Some(bucket.reset(reading[0])),
            Self::Concurrency(_) => None,
            Self::FixedWindow(window) => Some(window.reset(reading[0], now)),
            Self::SlidingCounter(counter) => Some(counter.reset(Windows::from_numbers(reading), now)),
            Self::SlidingLog(log) => Some(log.reset(LogReading::from_numbers(reading))),
        }
    }

    /// Microseconds until a charge that was rejected passes if nothing else is used; `None` if it never does.
    pub(crate) fn wait(&self, reading: &[u64], now: u64, charge: u64) -> Option<u64> {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => bucket.wait(reading[0], charge),
            Self::Concurrency(_) => Some(Concurrency::RETRY_MICROS),
            Self::FixedWindow(window) => window.wait(now, charge),
            Self::SlidingCounter(counter) => counter.wait(Windows::from_numbers(reading), now, charge),
            Self::SlidingLog(log) => (charge <= log.limit).then_some(LogReading::from_numbers(reading).wait),
        }
    }

    /// Microseconds that a request has to wait for its turn although it was admitted.
    #[inline]
    pub(crate) fn delay(&self, reading: &[u64], charge: u64) -> u64 {
        match self {
            Self::LeakyBucket(leaky) if charge > 0 => leaky.delay(reading[0]),
            _ => 0,
        }
    }
}

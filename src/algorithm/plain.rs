//! The algorithms whose state is one number, a *level*: the used weight at the time of the last charge.

use super::{Arithmetic, Bucket, Counter, FixedWindow, Reading, State, Times};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainCounter {
    Bucket(Bucket),
    FixedWindow(FixedWindow),
}

/// Of one policy, about a rejected charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRejection {
    pub(crate) is_violated: bool,
    pub(crate) remaining: u64,
    /// In microseconds. `None` if the policy is not violated, or can never admit the charge.
    pub(crate) wait: Option<u64>,
    /// The wait, or else a time over which the remaining units can be spread.
    pub(crate) window: u64,
}

macro_rules! step {
    ($counter:expr, |$own:ident| $step:expr) => {
        match $counter {
            PlainCounter::Bucket($own) => $step,
            PlainCounter::FixedWindow($own) => $step,
        }
    };
}

#[allow(
    clippy::useless_conversion,
    reason = "only the readings of a bucket are more than a number"
)]
impl PlainCounter {
    /// Returns the used weight, and whether the charge fits.
    #[inline]
    pub(crate) fn measure(&self, level: u64, times: Times, cost: u64) -> (u64, bool) {
        step!(self, |own| {
            let reading = own.read(&level, times, 0, 0);
            (reading.into(), own.admits(reading, times.now, own.weigh(cost)))
        })
    }

    /// Returns the level after a charge that fits.
    #[inline]
    pub(crate) fn charged(&self, used: u64, cost: u64) -> u64 {
        used + step!(self, |own| own.weigh(cost))
    }

    #[inline]
    pub(crate) fn left_after(&self, used: u64, now: u64, cost: u64) -> (u64, Option<u64>) {
        step!(self, |own| {
            let charged = own.charged(used.into(), own.weigh(cost));
            (own.remaining(charged, now), own.reset(charged, now))
        })
    }

    #[inline]
    pub(crate) fn rejection(&self, used: u64, now: u64, cost: u64) -> PlainRejection {
        step!(self, |own| {
            let (reading, charge) = (used.into(), own.weigh(cost));
            let is_violated = !own.admits(reading, now, charge);
            let wait = is_violated.then(|| own.wait(reading, now, charge)).flatten();
            PlainRejection {
                is_violated,
                remaining: own.remaining(reading, now),
                wait,
                window: wait.or_else(|| own.reset(reading, now)).unwrap_or(0),
            }
        })
    }

    #[inline]
    pub(crate) fn empty_at(&self, level: u64, last: u64) -> u64 {
        step!(self, |own| own.empty_at(&level, last))
    }

    pub(crate) fn reading(&self, used: u64) -> Reading {
        match self {
            Self::Bucket(_) => Reading::Bucket(used.into()),
            Self::FixedWindow(_) => Reading::FixedWindow(used),
        }
    }

    pub(crate) fn state(&self, level: u64) -> State {
        match self {
            Self::Bucket(_) => State::Bucket(level),
            Self::FixedWindow(_) => State::FixedWindow(level),
        }
    }
}

impl Counter {
    /// `None` if the state is more than a level.
    #[inline]
    pub(crate) fn plain(&self) -> Option<PlainCounter> {
        match self {
            Self::Bucket(bucket) => Some(PlainCounter::Bucket(*bucket)),
            Self::FixedWindow(window) => Some(PlainCounter::FixedWindow(*window)),
            _ => None,
        }
    }
}

impl State {
    pub(crate) fn level(&self) -> Option<u64> {
        match self {
            Self::Bucket(level) | Self::FixedWindow(level) => Some(*level),
            _ => None,
        }
    }
}

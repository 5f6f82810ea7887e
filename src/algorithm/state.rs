//! What a store in this process keeps for a policy, and how a charge, a late charge or a refund changes it.

use super::{
    LeakyBucket, Readings, Rule, Times, Windows,
    concurrency::Slots,
    sliding_log::{Log, LogReading},
    window_start,
};
use crate::lease::LeaseId;

/// The state of one policy. A policy that has none was never charged.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// The used weight of a bucket, or the used units of a fixed window.
    Amount(u64),
    Log(Box<Log>),
    Slots(Box<Slots>),
    Windows(Box<Windows>),
}

/// What was known of a policy when a charge was made that is now changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt<'a> {
    /// The partition's time, in microseconds.
    pub(crate) at: u64,
    /// Of what was charged.
    pub(crate) birth: u32,
    /// The reading before the charge.
    pub(crate) reading: &'a [u64],
    /// What is charged by now.
    pub(crate) charge: u64,
    /// After this many microseconds units do not come back.
    pub(crate) refundable_micros: u64,
    pub(crate) lease: Option<LeaseId>,
}

impl Receipt<'_> {
    /// How full a bucket was after the charge.
    pub(crate) fn filled_to(&self) -> u64 {
        self.reading[0].saturating_add(self.charge)
    }

    /// The number of a charge's entry in a log: the one after the newest that was there before.
    pub(crate) fn entry(&self) -> u64 {
        LogReading::from_numbers(self.reading).sequence + 1
    }
}

impl State {
    /// The state of a policy that was never charged.
    pub(crate) fn new(rule: &Rule) -> Self {
        match rule {
            Rule::TokenBucket(_) | Rule::LeakyBucket(_) | Rule::FixedWindow(_) => Self::Amount(0),
            Rule::SlidingCounter(_) => Self::Windows(Box::default()),
            Rule::SlidingLog(_) => Self::Log(Box::default()),
            Rule::Concurrency(_) => Self::Slots(Box::default()),
        }
    }

    /// Adds what the state says now to `readings`; `charge` is what the answer will be about. The numbers of a log that
    /// begins follow `first`.
    #[inline]
    pub(crate) fn read(&self, rule: &Rule, times: Times, charge: u64, first: u64, readings: &mut Readings) {
        match (self, rule) {
            (Self::Amount(used), Rule::TokenBucket(bucket) | Rule::LeakyBucket(LeakyBucket { bucket })) => {
                readings.push(bucket.drained(*used, times.elapsed()));
            }
            (Self::Amount(used), Rule::FixedWindow(window)) => readings.push(window.counted(*used, times)),
            (Self::Windows(windows), Rule::SlidingCounter(counter)) => {
                let Windows { previous, current } = counter.rolled(**windows, times);
                readings.extend([previous, current]);
            }
            (Self::Log(log), Rule::SlidingLog(rule)) => {
                readings.extend(log.read(rule, times.now, charge, first).into_numbers());
            }
            (Self::Slots(slots), Rule::Concurrency(_)) => readings.push(slots.held()),
            _ => readings.extend(std::iter::repeat_n(0, rule.width())),
        }
    }

    /// Makes a charge that was admitted for this reading.
    #[inline]
    pub(crate) fn charge(&mut self, rule: &Rule, now: u64, reading: &[u64], charge: u64, lease: Option<LeaseId>) {
        match (self, rule) {
            (Self::Amount(used), _) => *used = reading[0] + charge,
            (Self::Windows(windows), _) => {
                **windows = Windows {
                    previous: reading[0],
                    current: reading[1] + charge,
                };
            }
            (Self::Log(log), Rule::SlidingLog(rule)) if charge > 0 => {
                log.add(rule, now, charge, LogReading::from_numbers(reading).sequence + 1);
            }
            (Self::Slots(slots), _) if charge > 0 => slots.hold_by(lease),
            _ => {}
        }
    }

    /// Charges more than was charged at first: it has been used already, so nothing is rejected, and a policy may be
    /// overdrawn up to its bound.
    pub(crate) fn charge_late(&mut self, rule: &Rule, times: Times, charge: u64, first: u64) {
        let mut readings = Readings::new();
        self.read(rule, times, 0, first, &mut readings);
        let most = |bound: u64, used: u64| charge.min(bound.saturating_sub(used));
        let charge = match rule {
            Rule::TokenBucket(bucket) | Rule::LeakyBucket(LeakyBucket { bucket }) => most(bucket.bound, readings[0]),
            Rule::FixedWindow(window) => most(window.bound, readings[0]),
            Rule::SlidingCounter(counter) => most(counter.bound, readings[1]),
            Rule::SlidingLog(log) => most(log.bound, readings[0]),
            Rule::Concurrency(_) => 0,
        };
        self.charge(rule, times.now, &readings, charge, None);
    }

    /// Takes back a part of the charge that a receipt is about, or all of it, if it was made to what is there since `birth`.
    /// A log knows its entries.
    pub(crate) fn refund(&mut self, rule: &Rule, times: Times, birth: u32, refund: u64, receipt: Receipt<'_>) {
        if let (Self::Slots(slots), Some(lease)) = (&mut *self, receipt.lease) {
            slots.release(lease);
            return;
        }
        let now = times.now;
        let age = now.saturating_sub(receipt.at);
        let is_log = matches!(self, Self::Log(_));
        let is_due = age < receipt.refundable_micros && (receipt.birth == birth || is_log);
        match (self, rule) {
            (Self::Amount(used), Rule::TokenBucket(bucket)) => {
                *used = bucket.drained(*used, times.elapsed());
                if is_due {
                    *used = bucket.refunded(*used, refund, receipt.filled_to(), age);
                }
            }
            (Self::Amount(used), Rule::LeakyBucket(leaky)) => {
                *used = leaky.bucket.drained(*used, times.elapsed());
                if is_due {
                    *used = leaky.given_up(*used, refund, receipt.filled_to(), age);
                }
            }
            (Self::Amount(used), Rule::FixedWindow(window)) => {
                *used = window.counted(*used, times);
                if is_due {
                    *used = window.refunded(*used, refund, receipt.at, now);
                }
            }
            (Self::Windows(windows), Rule::SlidingCounter(counter)) => {
                **windows = counter.rolled(**windows, times);
                if is_due {
                    **windows = counter.refunded(**windows, refund, receipt.at, now);
                }
            }
            (Self::Log(log), _) if is_due => {
                log.refund(receipt.entry(), receipt.at, refund);
            }
            _ => {}
        }
    }

    /// Brings the state forward to now without a charge.
    pub(crate) fn advance(&mut self, rule: &Rule, times: Times) {
        match (self, rule) {
            (Self::Amount(used), Rule::TokenBucket(bucket) | Rule::LeakyBucket(LeakyBucket { bucket })) => {
                *used = bucket.drained(*used, times.elapsed());
            }
            (Self::Amount(used), Rule::FixedWindow(window)) => *used = window.counted(*used, times),
            (Self::Windows(windows), Rule::SlidingCounter(counter)) => **windows = counter.rolled(**windows, times),
            _ => {}
        }
    }

    /// Whether any of what all algorithms but a log count with a few numbers was used when it was written.
    pub(crate) fn counts_anything(&self) -> bool {
        match self {
            Self::Amount(used) => *used > 0,
            Self::Windows(windows) => **windows != Windows::default(),
            Self::Log(_) | Self::Slots(_) => false,
        }
    }

    /// The moment of the newest entry of a log.
    pub(crate) fn newest_entry(&self) -> Option<u64> {
        match self {
            Self::Log(log) => log.newest(),
            Self::Amount(_) | Self::Slots(_) | Self::Windows(_) => None,
        }
    }

    /// What was written by a clock that stood later belongs to now.
    pub(crate) fn rebase(&mut self, now: u64) {
        if let Self::Log(log) = self {
            log.rebase(now);
        }
    }

    /// The same used units for a policy whose numbers have changed.
    pub(crate) fn converted(&self, from: &Rule, to: &Rule) -> Self {
        match (self, from, to) {
            (
                Self::Amount(used),
                Rule::TokenBucket(from) | Rule::LeakyBucket(LeakyBucket { bucket: from }),
                Rule::TokenBucket(to) | Rule::LeakyBucket(LeakyBucket { bucket: to }),
            ) => Self::Amount(to.converted(*used, from)),
            (Self::Amount(used), Rule::FixedWindow(_), Rule::FixedWindow(to)) => Self::Amount((*used).min(to.bound)),
            (Self::Windows(_), _, Rule::SlidingCounter(_))
            | (Self::Log(_), _, Rule::SlidingLog(_))
            | (Self::Slots(_), _, Rule::Concurrency(_)) => self.clone(),
            // Two names that a store cannot tell apart.
            _ => Self::new(to),
        }
    }

    /// The moment from which the state equals that of a policy that was never charged.
    pub(crate) fn empty_at(&self, rule: &Rule, last: u64) -> u64 {
        match (self, rule) {
            (Self::Amount(0), _) => last,
            (Self::Amount(used), Rule::TokenBucket(bucket) | Rule::LeakyBucket(LeakyBucket { bucket })) => {
                last.saturating_add(bucket.micros_to_drain(*used))
            }
            (Self::Amount(_), Rule::FixedWindow(window)) => last + window.micros_left(last),
            (Self::Windows(windows), Rule::SlidingCounter(counter)) => {
                window_start(last, counter.window_micros) + counter.micros_from_start(**windows)
            }
            (Self::Log(log), Rule::SlidingLog(rule)) => log.empty_at(rule),
            (Self::Slots(slots), _) if slots.held() > 0 => u64::MAX,
            _ => last,
        }
    }
}

impl Slots {
    fn hold_by(&mut self, lease: Option<LeaseId>) {
        if let Some(lease) = lease {
            self.hold(lease);
        }
    }
}

impl Windows {
    pub(crate) fn from_numbers(numbers: &[u64]) -> Self {
        Self {
            previous: numbers[0],
            current: numbers[1],
        }
    }
}

use std::collections::VecDeque;

use super::{Arithmetic, Form, Late, Reader, Receipt, Sent, Times, Window, Writer};
use crate::lease::Lease;

/// Each unit may be a separate entry.
pub(crate) const MAX_QUOTA: u64 = 10_000;

/// A refund renumbers all later entries. With more of them, a charge is not refunded.
const MAX_RENUMBERED: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingLog(pub(crate) Window);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogReading {
    pub(crate) used: u64,
    /// Microseconds until the requested charge passes, or until the next unit if it never fits. If it passes now, 0, or
    /// with an overage, until a unit of the quota remains after it.
    pub(crate) wait: u64,
    pub(crate) oldest_leaves: u64,
    pub(crate) newest_leaves: u64,
    /// The number of the newest entry. If nothing is used, a number that no entry has had, because the store may drop
    /// expired entries between this reading and its charge.
    pub(crate) sequence: u64,
}

impl SlidingLog {
    pub(crate) fn new(quota: u64, window_secs: u64) -> Result<Self, String> {
        if quota > MAX_QUOTA {
            return Err(format!(
                "quota {quota} exceeds {MAX_QUOTA}, the maximum for a sliding window log"
            ));
        }
        Ok(Self(Window::new(quota, window_secs)))
    }

    fn answered(&self, asked: u64) -> u64 {
        if asked <= self.0.limit { asked } else { 1 }
    }

    pub(crate) fn wait_for_one(&self, log: &<Self as Arithmetic>::State, times: Times, charge: u64) -> u64 {
        match charge < self.0.limit {
            true => self.read(log, times, charge + 1, 0).wait,
            false => self.0.micros,
        }
    }
}

impl Arithmetic for SlidingLog {
    type State = Box<Log>;
    type Reading = LogReading;

    const FORM: Form = Form::Log;

    const CODE: u64 = 5;

    const WIDTH: usize = 5;

    fn units(&self) -> u64 {
        self.0.limit
    }

    fn fill_micros(&self) -> u64 {
        self.0.micros
    }

    fn read(&self, log: &Box<Log>, times: Times, charge: u64, first: u64) -> LogReading {
        let now = times.now;
        let unused = LogReading {
            sequence: first,
            ..LogReading::default()
        };
        let (Some(oldest), Some(last)) = (log.0.get(log.first_counted(self, now)), log.0.back()) else {
            return unused;
        };
        let before = oldest.total - oldest.cost;
        let used = last.total - before;
        let Some(newest) = log.newest().filter(|_| used > 0) else {
            return unused;
        };
        let leaves = |entry: &Entry| entry.at.saturating_add(self.0.micros).saturating_sub(now);
        let needed = used + self.answered(charge);
        let wait = if needed > self.0.limit {
            let leaving = before + needed - self.0.limit;
            let last = log.0.partition_point(|entry| entry.total < leaving);
            log.0.get(last).map_or(0, leaves)
        } else {
            0
        };
        LogReading {
            used,
            wait,
            oldest_leaves: leaves(oldest),
            newest_leaves: leaves(newest),
            sequence: last.sequence,
        }
    }

    /// A refunded last entry is dropped, because the new entry has a higher number.
    fn charge(&self, log: &mut Box<Log>, now: u64, reading: LogReading, charge: u64, _lease: Option<Lease>) {
        if charge > 0 {
            log.0.drain(..log.first_counted(self, now));
            let total = log.0.back().map_or(0, |last| last.total);
            if log.0.back().is_some_and(|last| last.cost == 0) {
                log.0.pop_back();
            }
            log.0.push_back(Entry {
                at: now,
                sequence: reading.sequence + 1,
                total: total + charge,
                cost: charge,
            });
        }
    }

    fn believed(&self, reading: LogReading, late: Late<'_, Self>) -> u64 {
        late.settling.0.believed(reading.used, late.charge)
    }

    fn refund(&self, log: &mut Box<Log>, _now: u64, refund: u64, _settling: &Self, receipt: Receipt) {
        let is_known = receipt.mark != self.any_mark();
        let until = log.0.partition_point(|entry| entry.at <= receipt.at);
        let from = if is_known {
            log.0.partition_point(|entry| entry.at < receipt.at)
        } else {
            0
        };
        let from = from.max(log.0.len().saturating_sub(MAX_RENUMBERED));
        let (mut rest, mut total, mut first) = (refund, 0, log.0.len());
        for position in (from..until).rev() {
            let entry = &mut log.0[position];
            if is_known && entry.sequence != receipt.mark {
                continue;
            }
            let part = rest.min(entry.cost);
            (first, total) = (position, entry.total - entry.cost);
            (entry.cost, rest) = (entry.cost - part, rest - part);
            if entry.cost == 0 && position + 1 < log.0.len() {
                log.0.remove(position);
            }
            if is_known || rest == 0 {
                break;
            }
        }
        for entry in log.0.range_mut(first.min(log.0.len())..) {
            total += entry.cost;
            entry.total = total;
        }
        if log.newest().is_none() {
            log.0.clear();
        }
    }

    fn empty_at(&self, log: &Box<Log>, _last: u64) -> u64 {
        log.newest().map_or(0, |newest| newest.at.saturating_add(self.0.micros))
    }

    fn write(&self, log: &Box<Log>, bytes: &mut Writer) {
        self.0.write(bytes);
        bytes.write(log.0.len() as u64);
        for entry in &log.0 {
            bytes.write_all([entry.at, entry.sequence, entry.cost]);
        }
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Log>)> {
        let own = Self(Window::parse(bytes)?);
        let (mut log, mut total, mut last) = (Box::<Log>::default(), 0_u64, 0);
        for _ in 0..bytes.any()? {
            let (at, sequence, cost) = (bytes.amount()?, bytes.any()?, bytes.amount()?);
            if at < last || sequence >= 1 << 63 {
                return None;
            }
            (last, total) = (at, total.checked_add(cost)?);
            log.0.push_back(Entry {
                at,
                sequence,
                total,
                cost,
            });
        }
        Some((own, log))
    }

    fn sent(&self, _lease_micros: u64) -> Sent {
        self.0.sent(-2)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        Some(LogReading {
            used: next()?,
            wait: next()?,
            oldest_leaves: next()?,
            newest_leaves: next()?,
            sequence: next()?,
        })
    }

    fn newest_entry(log: &Box<Log>) -> Option<u64> {
        log.newest().map(|newest| newest.at)
    }

    fn rebase(log: &mut Box<Log>, now: u64) {
        for entry in log.0.iter_mut().rev().take_while(|entry| entry.at > now) {
            entry.at = now;
        }
    }

    fn admits(&self, reading: LogReading, _now: u64, charge: u64) -> bool {
        reading.used.saturating_add(charge) <= self.0.limit
    }

    fn charged(&self, reading: LogReading, charge: u64) -> LogReading {
        if charge == 0 {
            return reading;
        }
        LogReading {
            used: self.0.charged(reading.used, charge),
            wait: 0,
            oldest_leaves: match reading.oldest_leaves {
                0 => self.0.micros,
                oldest_leaves => oldest_leaves,
            },
            newest_leaves: self.0.micros,
            ..reading
        }
    }

    fn mark(reading: LogReading, _charge: u64) -> u64 {
        reading.sequence + 1
    }

    fn remaining(&self, reading: LogReading, _now: u64) -> u64 {
        self.0.limit.saturating_sub(reading.used)
    }

    /// Until the oldest entry leaves, or longer; until all leave if several must and their times are unknown.
    fn reset(&self, reading: LogReading, now: u64) -> Option<u64> {
        let remaining = self.remaining(reading, now);
        let natural = match reading {
            LogReading { wait: 1.., .. } if remaining == 0 => reading.wait,
            LogReading { used, .. } if used > self.0.limit => reading.newest_leaves,
            LogReading { oldest_leaves: 0, .. } => self.0.micros,
            LogReading { oldest_leaves, .. } => oldest_leaves,
        };
        Some(natural.max(self.0.least_time_for(remaining)))
    }

    fn full_after(&self, reading: LogReading, _now: u64) -> Option<u64> {
        (reading.used > 0).then_some(reading.newest_leaves)
    }

    fn wait(&self, reading: LogReading, _now: u64, charge: u64) -> Option<u64> {
        (charge <= self.0.limit).then_some(reading.wait)
    }

    fn certain_wait(&self, reading: LogReading, asked: u64, charge: u64, _wait: u64) -> (u64, u64) {
        let (asked, oldest_leaves) = (self.answered(asked), reading.oldest_leaves);
        let certain = if charge >= asked {
            reading.wait.max(oldest_leaves)
        } else {
            oldest_leaves
        };
        let shown = match reading.wait {
            wait @ 1.. if charge == asked => wait,
            _ if reading.used.saturating_add(charge) == self.0.limit + 1 => oldest_leaves,
            _ => self.0.micros,
        };
        (certain, shown.max(certain))
    }

    fn predicts(&self, reading: LogReading, asked: u64) -> bool {
        reading.used + asked == self.0.limit + 1
    }

    /// The number of units that leave is unknown. For the time `hold` after the first has left, only one request calls
    /// the store.
    fn predict(&self, reading: LogReading, _now: u64, elapsed: u64, charge: u64, hold: u64) -> Option<LogReading> {
        let first_leaves = reading.wait.max(reading.oldest_leaves);
        let is_known = elapsed < reading.oldest_leaves;
        (elapsed < first_leaves.saturating_add(hold)).then_some(LogReading {
            used: if is_known {
                self.0.charged(reading.used, charge)
            } else {
                self.0.limit
            },
            wait: 0,
            oldest_leaves: hold,
            newest_leaves: self.0.micros,
            sequence: reading.sequence,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    sequence: u64,
    total: u64,
    cost: u64,
}

/// Oldest first. The last entry is kept after a full refund: another entry of the same microsecond could otherwise get
/// its number, and be refunded in its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(VecDeque<Entry>);

impl Log {
    fn newest(&self) -> Option<&Entry> {
        self.0.iter().rev().find(|entry| entry.cost > 0)
    }

    fn first_counted(&self, policy: &SlidingLog, now: u64) -> usize {
        self.0
            .partition_point(|entry| entry.at.saturating_add(policy.0.micros) <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn read(policy: &SlidingLog, log: &<SlidingLog as Arithmetic>::State, now: u64, charge: u64) -> LogReading {
        policy.read(log, Times { last: now, now }, charge, 0)
    }

    fn add(policy: &SlidingLog, log: &mut Box<Log>, now: u64, cost: u64, number: u64) {
        let before = LogReading {
            sequence: number - 1,
            ..LogReading::default()
        };
        policy.charge(log, now, before, cost, None);
    }

    #[test]
    fn ten_at_0_59_pass_again_at_1_59() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let (mut log, at) = (Box::default(), MINUTE - 1_000_000);
        for _ in 0..10 {
            assert!(policy.admits(read(&policy, &log, at, 1), at, 1));
            add(&policy, &mut log, at, 1, 1);
        }
        assert_eq!(read(&policy, &log, at, 1).wait, MINUTE);
        assert_eq!(read(&policy, &log, at + MINUTE - 1, 1).used, 10);
        assert_eq!(read(&policy, &log, at + MINUTE, 1).used, 0);
    }

    #[test]
    fn the_wait_is_until_enough_units_have_left() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let mut log = Box::default();
        for (at, cost) in [(0, 3), (5, 3), (9, 4)] {
            add(&policy, &mut log, at, cost, 1);
        }
        let wait = |charge| read(&policy, &log, 10, charge).wait;
        assert_eq!(
            [1, 3, 4, 6, 7, 10].map(wait),
            [0, 0, 5, 5, 9, 9].map(|at| at + MINUTE - 10)
        );
        // The wait of a charge that never fits is the wait for the next unit.
        assert_eq!(wait(11), wait(1));
    }

    #[test]
    fn a_refund_takes_units_out_of_their_own_moment() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let mut log = Box::default();
        for (at, number) in [(0, 1), (5, 2), (5, 3), (9, 4)] {
            add(&policy, &mut log, at, 2, number);
        }
        let mut refund = |mark, at, refund| {
            let receipt = Receipt {
                at,
                mark,
                ..Receipt::default()
            };
            policy.refund(&mut log, at, refund, &policy, receipt);
        };
        refund(3, 5, 1);
        refund(2, 5, 7);
        refund(2, 5, 7);
        refund(4, 5, 1);
        assert_eq!(read(&policy, &log, 9, 1).used, 5);
        assert_eq!(read(&policy, &log, 5 + MINUTE, 1).used, 2);
    }

    #[test]
    fn an_empty_log_begins_with_the_number_that_it_is_given() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let times = Times { last: 0, now: 0 };
        assert_eq!(policy.read(&Box::default(), times, 1, 7).sequence, 7);
    }

    #[test]
    fn a_charge_leaves_after_the_window_and_no_charge_changes_nothing() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let first = policy.charged(LogReading::default(), 3);
        assert_eq!(
            (first.used, first.oldest_leaves, first.newest_leaves),
            (3, MINUTE, MINUTE)
        );
        let earlier = LogReading {
            used: 3,
            oldest_leaves: 5,
            newest_leaves: 9,
            ..LogReading::default()
        };
        let more = policy.charged(earlier, 2);
        assert_eq!((more.used, more.oldest_leaves, more.newest_leaves), (5, 5, MINUTE));
        let same = policy.charged(earlier, 0);
        assert_eq!((same.used, same.oldest_leaves, same.newest_leaves), (3, 5, 9));
        assert_eq!(
            (policy.full_after(same, 0), policy.full_after(LogReading::default(), 0)),
            (Some(9), None)
        );
    }

    #[test]
    fn the_wait_of_a_dear_request_is_no_reset_while_cheap_ones_pass() {
        let policy = SlidingLog::new(10, 60).unwrap();
        let reading = LogReading {
            used: 6,
            wait: MINUTE / 2,
            oldest_leaves: MINUTE / 4,
            ..LogReading::default()
        };
        assert_eq!(policy.reset(reading, 0), Some(MINUTE / 4));
        let exhausted = LogReading { used: 10, ..reading };
        assert_eq!(policy.reset(exhausted, 0), Some(MINUTE / 2));
    }
}

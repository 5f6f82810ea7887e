//! Sliding window log: keeps the moment of each request, and counts those of the last window exactly.

use std::collections::VecDeque;

use super::least_time_for;

/// The largest quota that a log may be chosen for: each unit may be an entry of its own.
pub(crate) const MAX_QUOTA: u64 = 10_000;

/// A refund renumbers the entries that came later; beyond this number it is not made.
const MAX_RENUMBERED: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    pub(crate) window_micros: u64,
    /// Units in any window.
    pub(crate) limit: u64,
    /// The most units that are ever kept.
    pub(crate) bound: u64,
}

/// What a log says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogReading {
    pub(crate) used: u64,
    /// Microseconds until the charge that was asked for passes, or until the next unit is there if it never will; 0 if
    /// that is now.
    pub(crate) wait: u64,
    /// Microseconds until the oldest entry is out of the window; 0 if there is none.
    pub(crate) oldest_leaves: u64,
    /// The number of the newest entry. What is out of the window does not count: a store may have dropped it between this
    /// reading and its charge, or not. Where there is none, a number that no entry has had.
    pub(crate) sequence: u64,
}

impl LogReading {
    pub(crate) const WIDTH: usize = 4;

    pub(crate) fn from_numbers(numbers: &[u64]) -> Self {
        Self {
            used: numbers[0],
            wait: numbers[1],
            oldest_leaves: numbers[2],
            sequence: numbers[3],
        }
    }

    pub(crate) fn into_numbers(self) -> [u64; Self::WIDTH] {
        [self.used, self.wait, self.oldest_leaves, self.sequence]
    }
}

impl SlidingLog {
    pub(crate) fn new(quota: u64, window_secs: u64) -> Result<Self, String> {
        if quota > MAX_QUOTA {
            return Err(format!(
                "quota {quota} is above {MAX_QUOTA}, the most that a sliding window log keeps entries for"
            ));
        }
        Ok(Self {
            window_micros: window_secs * 1_000_000,
            limit: quota,
            bound: quota * 2,
        })
    }

    pub(crate) fn admits(&self, used: u64, charge: u64) -> bool {
        used.saturating_add(charge) <= self.limit
    }

    /// Until the oldest entry leaves, or longer if that would invite a client to more than twice the rate.
    pub(crate) fn reset(&self, reading: LogReading) -> u64 {
        let remaining = self.limit.saturating_sub(reading.used);
        let natural = match reading {
            LogReading { wait: 1.., .. } if remaining == 0 => reading.wait,
            LogReading { oldest_leaves: 0, .. } => self.window_micros,
            LogReading { oldest_leaves, .. } => oldest_leaves,
        };
        natural.max(least_time_for(remaining, self.limit, self.window_micros))
    }
}

/// One request, or one charge that was known late.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    sequence: u64,
    /// Units of all entries up to this one; differences of it say what any stretch of the log has used.
    total: u64,
    cost: u64,
}

/// The entries, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(VecDeque<Entry>);

impl Log {
    /// Entries after a clock that stood later belong to now.
    pub(crate) fn rebase(&mut self, now: u64) {
        for entry in self.0.iter_mut().rev().take_while(|entry| entry.at > now) {
            entry.at = now;
        }
    }

    pub(crate) fn read(&self, rule: &SlidingLog, now: u64, charge: u64, first: u64) -> LogReading {
        let (Some(oldest), Some(newest)) = (self.0.get(self.first_counted(rule, now)), self.0.back()) else {
            return LogReading {
                sequence: first,
                ..LogReading::default()
            };
        };
        let before = oldest.total - oldest.cost;
        let used = newest.total - before;
        let leaves = |entry: &Entry| entry.at + rule.window_micros - now;
        let asked = if charge <= rule.limit { charge } else { 1 };
        let wait = if used + asked > rule.limit {
            let needed = before + used + asked - rule.limit;
            let last = self.0.partition_point(|entry| entry.total < needed);
            self.0.get(last).map_or(0, leaves)
        } else {
            0
        };
        LogReading {
            used,
            wait,
            oldest_leaves: leaves(oldest),
            sequence: newest.sequence,
        }
    }

    fn first_counted(&self, rule: &SlidingLog, now: u64) -> usize {
        self.0.partition_point(|entry| entry.at + rule.window_micros <= now)
    }

    /// Adds an entry and lets go of those that are out of the window.
    pub(crate) fn add(&mut self, rule: &SlidingLog, now: u64, cost: u64, sequence: u64) {
        self.0.drain(..self.first_counted(rule, now));
        let total = self.0.back().map_or(0, |newest| newest.total);
        self.0.push_back(Entry {
            at: now,
            sequence,
            total: total + cost,
            cost,
        });
    }

    /// Gives units of one entry back.
    pub(crate) fn refund(&mut self, sequence: u64, charged_at: u64, refund: u64) {
        let first = self.0.partition_point(|entry| entry.at < charged_at);
        let is_it = |entry: &Entry| (entry.at, entry.sequence) == (charged_at, sequence);
        let Some(position) = (first..self.0.len()).find(|position| is_it(&self.0[*position])) else {
            return;
        };
        if self.0.len() - position > MAX_RENUMBERED {
            return;
        }
        let refund = refund.min(self.0[position].cost);
        for entry in self.0.range_mut(position..) {
            entry.total -= refund;
        }
        self.0[position].cost -= refund;
        if self.0[position].cost == 0 {
            self.0.remove(position);
        }
    }

    pub(crate) fn newest(&self) -> Option<u64> {
        self.0.back().map(|newest| newest.at)
    }

    /// The moment when the last entry is out of the window.
    pub(crate) fn empty_at(&self, rule: &SlidingLog) -> u64 {
        self.0.back().map_or(0, |newest| newest.at + rule.window_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    /// L17
    #[test]
    fn ten_at_0_59_pass_again_at_1_59() {
        let rule = SlidingLog::new(10, 60).unwrap();
        let (mut log, at) = (Log::default(), MINUTE - 1_000_000);
        for _ in 0..10 {
            assert!(rule.admits(log.read(&rule, at, 1, 0).used, 1));
            log.add(&rule, at, 1, 1);
        }
        assert_eq!(log.read(&rule, at, 1, 0).wait, MINUTE);
        assert_eq!(log.read(&rule, at + MINUTE - 1, 1, 0).used, 10);
        assert_eq!(log.read(&rule, at + MINUTE, 1, 0).used, 0);
    }

    #[test]
    fn the_wait_is_until_enough_units_have_left() {
        let rule = SlidingLog::new(10, 60).unwrap();
        let mut log = Log::default();
        for (at, cost) in [(0, 3), (5, 3), (9, 4)] {
            log.add(&rule, at, cost, 1);
        }
        let wait = |charge| log.read(&rule, 10, charge, 0).wait;
        assert_eq!(
            [1, 3, 4, 6, 7, 10].map(wait),
            [0, 0, 5, 5, 9, 9].map(|at| at + MINUTE - 10)
        );
        // What never passes is told when the next unit is there.
        assert_eq!(wait(11), wait(1));
    }

    #[test]
    fn a_refund_takes_units_out_of_their_own_moment() {
        let rule = SlidingLog::new(10, 60).unwrap();
        let mut log = Log::default();
        for (at, number) in [(0, 1), (5, 2), (5, 3), (9, 4)] {
            log.add(&rule, at, 2, number);
        }
        log.refund(3, 5, 1);
        log.refund(2, 5, 7);
        log.refund(2, 5, 7);
        log.refund(4, 5, 1);
        assert_eq!(log.read(&rule, 9, 1, 0).used, 5);
        assert_eq!(log.read(&rule, 5 + MINUTE, 1, 0).used, 2);
    }
}

use super::{Counter, Form, State, Times};

/// How much a caller would gain by an eviction: the used share of the quota, rounded up to steps, because it shrinks
/// over time: an exhausted day should rank above a bucket of one unit per second that a single request has exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionPriority {
    level: u8,
    /// When nothing is used. Breaks ties.
    until: u64,
}

impl EvictionPriority {
    const EXHAUSTED: u8 = 8;
    /// Held slots must not be granted again.
    const HELD: u8 = u8::MAX;

    /// For a partition with a single decision: a flood of new keys ranks below callers that have used more than half of
    /// their quota.
    pub(crate) fn of_one_request(self) -> Self {
        let level = match self.level {
            Self::HELD => Self::HELD,
            level => level.div_ceil(2),
        };
        Self { level, ..self }
    }

    pub(crate) fn of_shadow(self) -> Self {
        Self { level: 0, ..self }
    }
}

impl Counter {
    pub(crate) fn eviction_priority(&self, state: &State, times: Times) -> Option<EvictionPriority> {
        let until = self.empty_at(state, times.last);
        if until <= times.now {
            return None;
        }
        let level = match self.form() {
            Form::Slots => EvictionPriority::HELD,
            Form::Log | Form::Numbers => self.used_eighths(state, times),
        };
        Some(EvictionPriority { level, until })
    }

    fn used_eighths(&self, state: &State, times: Times) -> u8 {
        let units = self.units();
        let remaining = self.remaining(self.read(state, times, 0, 0), times.now);
        let used = units.saturating_sub(remaining);
        let eighths = used
            .saturating_mul(EvictionPriority::EXHAUSTED.into())
            .div_ceil(units.max(1));
        u8::try_from(eighths).map_or(EvictionPriority::EXHAUSTED, |eighths| {
            eighths.min(EvictionPriority::EXHAUSTED)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Bucket, Concurrency, FixedWindow, Receipt, Settling, SlidingCounter, SlidingLog};

    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;

    fn worths(used: u64, elapsed: u64) -> Vec<Option<EvictionPriority>> {
        let counters = [
            Counter::Bucket(Bucket::token(10, 86_400, 10).unwrap()),
            Counter::Bucket(Bucket::leaky(10, 86_400, 9).unwrap()),
            Counter::FixedWindow(FixedWindow::new(10, 86_400)),
            Counter::SlidingCounter(SlidingCounter::new(10, 86_400)),
            Counter::SlidingLog(SlidingLog::new(10, 86_400).unwrap()),
        ];
        let worth = |counter: &Counter| {
            let mut state = counter.unused();
            let settling = Settling {
                counter,
                receipt: Receipt::default(),
                times: Times { last: DAY, now: DAY },
                clock: DAY,
                birth: 0,
                first: 0,
            };
            counter.charge_late(&mut state, counter.weigh(used), settling);
            counter.eviction_priority(
                &state,
                Times {
                    last: DAY,
                    now: DAY + elapsed,
                },
            )
        };
        counters.iter().map(worth).collect()
    }

    #[test]
    fn more_used_units_are_worth_more_in_every_algorithm() {
        assert_eq!(worths(0, 0), [None; 5]);
        for used in 1..10 {
            let (less, more) = (worths(used, 0), worths(used + 1, 0));
            let is_more = less.iter().zip(&more).all(|(less, more)| less <= more);
            assert!(is_more, "{used}: {less:?}, {more:?}");
        }
        for (used, level) in [(1, 1), (2, 2), (5, 4), (9, 8), (10, 8), (20, 8)] {
            let levels: Vec<_> = worths(used, 0).into_iter().flatten().map(|worth| worth.level).collect();
            assert_eq!(levels, [level; 5], "{used}");
        }
    }

    #[test]
    fn what_is_exhausted_for_longer_is_worth_more() {
        for (less, more) in worths(10, 0).iter().zip(worths(20, 0)) {
            assert!(*less <= more && less.map(|worth| worth.level) == more.map(|worth| worth.level));
        }
    }

    #[test]
    fn time_makes_everything_worth_less_and_in_the_end_nothing() {
        for elapsed in [0, DAY / 3, DAY / 2, DAY - 1, DAY, 2 * DAY - 1] {
            for (earlier, later) in worths(10, elapsed).iter().zip(worths(10, elapsed + 1)) {
                assert!(*earlier >= later, "{elapsed}: {earlier:?}, {later:?}");
            }
        }
        assert_eq!(worths(10, 2 * DAY), [None; 5]);
    }

    #[test]
    fn slots_are_worth_more_than_anything_else_and_a_single_request_half() {
        let counter = Counter::Concurrency(Concurrency { limit: 1_000 });
        let mut state = counter.unused();
        let times = Times { last: DAY, now: DAY };
        assert_eq!(counter.eviction_priority(&state, times), None);
        let lease = crate::lease::Lease {
            id: crate::lease::LeaseId::unique(),
            until: u64::MAX,
        };
        let free = counter.read(&state, times, 1, 0);
        counter.charge(&mut state, DAY, &free, 1, Some(lease));
        let slots = counter
            .eviction_priority(&state, times)
            .map(EvictionPriority::of_one_request);
        for exhausted in worths(10, 0) {
            assert!(slots > exhausted);
            let level = exhausted.map(|exhausted| exhausted.of_one_request().level);
            assert_eq!(level, Some(EvictionPriority::EXHAUSTED / 2));
        }
    }

    #[test]
    fn a_shadow_is_worth_less_than_what_rejects_requests() {
        let shadow = EvictionPriority { level: 8, until: 2 }.of_shadow();
        assert!(shadow < EvictionPriority { level: 1, until: 1 });
        assert_eq!(shadow.until, 2);
    }
}

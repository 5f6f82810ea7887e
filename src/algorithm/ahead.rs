//! What a reading says of the time after it, as long as others only add to what is used.

use super::{LeakyBucket, Readings, Rule, Times, Windows, sliding_log::LogReading};

/// How long a charge is rejected at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// For so many microseconds.
    For(u64),
    /// For good: it is more than the policy ever lets pass.
    Never,
}

impl Rule {
    /// Whether a charge is rejected for certain, `elapsed` microseconds after a reading that was made at `now` for a charge of
    /// `asked`; `None` if it may pass.
    ///
    /// The wait is the one after which it passes if nobody else asks. Of a log it may be longer than that, where the
    /// reading was made for another charge.
    pub(crate) fn denial(&self, reading: &[u64], now: u64, asked: u64, charge: u64, elapsed: u64) -> Option<Denial> {
        let Some(wait) = self.wait(reading, now, charge) else {
            return Some(Denial::Never);
        };
        if self.admits(reading, now, charge) {
            return None;
        }
        let (certain, shown) = match self {
            Self::SlidingLog(log) => {
                let LogReading {
                    used,
                    wait,
                    oldest_leaves,
                    ..
                } = LogReading::from_numbers(reading);
                // A log that was asked for more than it ever lets pass answers for one unit.
                let asked = if asked <= log.limit { asked } else { 1 };
                let certain = if charge >= asked {
                    wait.max(oldest_leaves)
                } else {
                    oldest_leaves
                };
                let shown = match wait {
                    1.. if charge == asked => wait,
                    _ if used.saturating_add(charge) == log.limit + 1 => oldest_leaves,
                    _ => log.window_micros,
                };
                (certain, shown.max(certain))
            }
            _ => (wait, wait),
        };
        (certain > elapsed).then(|| Denial::For(shown - elapsed))
    }

    /// The reading that the store would give so much later if nobody else asked; a log cannot tell.
    pub(crate) fn later(&self, reading: &[u64], now: u64, elapsed: u64) -> Readings {
        let times = Times {
            last: now,
            now: now.saturating_add(elapsed),
        };
        let mut later = Readings::from_slice(reading);
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => {
                later[0] = bucket.drained(reading[0], elapsed);
            }
            Self::FixedWindow(window) => later[0] = window.counted(reading[0], times),
            Self::SlidingCounter(counter) => {
                let Windows { previous, current } = counter.rolled(Windows::from_numbers(reading), times);
                later = Readings::from_slice(&[previous, current]);
            }
            Self::SlidingLog(_) | Self::Concurrency(_) => {}
        }
        later
    }

    /// The microseconds in which all of a quota comes back.
    pub(crate) fn fill_micros(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(LeakyBucket { bucket }) => {
                bucket.micros_to_drain(bucket.limit)
            }
            Self::FixedWindow(window) => window.window_micros,
            Self::SlidingCounter(counter) => counter.window_micros,
            Self::SlidingLog(log) => log.window_micros,
            Self::Concurrency(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingLog, TokenBucket};

    const MINUTE: u64 = 60_000_000;

    #[test]
    fn a_denial_ends_at_the_microsecond_at_which_the_charge_passes() {
        let bucket = TokenBucket::new(60, 60, 60).unwrap();
        let (one, empty) = (bucket.weigh(1), [bucket.limit]);
        let rule = Rule::TokenBucket(bucket);
        assert_eq!(rule.denial(&empty, 7, one, one, 0), Some(Denial::For(1_000_000)));
        assert_eq!(rule.denial(&empty, 7, one, one, 999_999), Some(Denial::For(1)));
        assert_eq!(rule.denial(&empty, 7, one, one, 1_000_000), None);
        assert_eq!(
            rule.denial(&empty, 7, one, 2 * one, 1_000_000),
            Some(Denial::For(1_000_000))
        );
        assert_eq!(rule.denial(&[0], 7, one, 61 * one, MINUTE), Some(Denial::Never));

        let window = Rule::FixedWindow(FixedWindow::new(10, 60));
        assert_eq!(window.denial(&[10], MINUTE - 5, 1, 1, 4), Some(Denial::For(1)));
        assert_eq!(window.denial(&[10], MINUTE - 5, 1, 1, 5), None);
        assert_eq!(window.denial(&[9], MINUTE - 5, 2, 1, 0), None);
    }

    /// A log says when the charge passes that it was asked for; of others it is known less exactly.
    #[test]
    fn a_log_denies_other_charges_only_as_far_as_it_is_certain() {
        let rule = Rule::SlidingLog(SlidingLog::new(10, 60).unwrap());
        let reading = LogReading {
            used: 10,
            wait: 500,
            oldest_leaves: 100,
            sequence: 4,
        }
        .into_numbers();
        assert_eq!(rule.denial(&reading, 0, 3, 3, 499), Some(Denial::For(1)));
        assert_eq!(rule.denial(&reading, 0, 3, 3, 500), None);
        // More waits at least as long, and passes when all has left.
        assert_eq!(rule.denial(&reading, 0, 3, 5, 499), Some(Denial::For(MINUTE - 499)));
        // One unit is there when the oldest entry leaves.
        assert_eq!(rule.denial(&reading, 0, 3, 1, 99), Some(Denial::For(1)));
        assert_eq!(rule.denial(&reading, 0, 3, 1, 100), None);
        assert_eq!(rule.denial(&reading, 0, 3, 2, 100), None);
        assert_eq!(rule.denial(&reading, 0, 3, 11, MINUTE), Some(Denial::Never));
    }
}

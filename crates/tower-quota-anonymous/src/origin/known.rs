//! Address groups with recently accepted tokens, for which half of the verifier is reserved during floods.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
    time::Duration,
};

use ipnet::IpNet;

use crate::mutex::Mutex;
use tower_quota::clock::Timestamp;

/// The current and the last period, as hashes with a random key per period, so that memory contains no addresses,
/// times, counts or tokens.
pub(super) struct KnownGroups {
    state: Mutex<State>,
    period: Duration,
}

struct State {
    number: u64,
    current: Generation,
    last: Generation,
}

/// Failed proofs since the last accepted token.
#[derive(Default)]
struct Generation {
    key: RandomState,
    failures: HashMap<u64, u8>,
}

impl KnownGroups {
    /// In both periods together.
    const MAX: usize = 65_536;
    const MAX_FAILURES: u8 = 3;

    /// Limits the period: requests may be further apart than a window of one second, and within a month, most addresses
    /// send a token.
    pub(super) fn new(window: Duration) -> Self {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        Self {
            state: Mutex::new(State {
                number: 0,
                current: Generation::default(),
                last: Generation::default(),
            }),
            period: window.clamp(minute, hour),
        }
    }

    pub(super) fn contains(&self, group: &IpNet, now: Timestamp) -> bool {
        self.with(now, |state| {
            let mut generations = [&state.current, &state.last].into_iter();
            generations.any(|generation| generation.failures.contains_key(&generation.key.hash_one(group)))
        })
    }

    pub(super) fn accepted(&self, group: &IpNet, now: Timestamp) {
        self.with(now, |state| {
            let known = state.current.failures.len() + state.last.failures.len();
            let hash = state.current.key.hash_one(group);
            if known < Self::MAX || state.current.failures.contains_key(&hash) {
                state.current.failures.insert(hash, 0);
            }
        });
    }

    pub(super) fn failed(&self, group: &IpNet, now: Timestamp) {
        self.with(now, |state| {
            for generation in [&mut state.current, &mut state.last] {
                let hash = generation.key.hash_one(group);
                if let Some(failures) = generation.failures.get_mut(&hash) {
                    *failures += 1;
                    if *failures >= Self::MAX_FAILURES {
                        generation.failures.remove(&hash);
                    }
                }
            }
        });
    }

    fn with<T>(&self, now: Timestamp, act: impl FnOnce(&mut State) -> T) -> T {
        let number = now.as_micros() / self.period.as_micros() as u64;
        let mut state = self.state.lock();
        // Another thread may have read the clock just before the period ended.
        if number.abs_diff(state.number) > 1 || number > state.number {
            let current = mem::take(&mut state.current);
            state.last = match number.checked_sub(state.number) {
                Some(1) => current,
                _ => Generation::default(),
            };
            state.number = number;
        }
        act(&mut state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_040_000_000 + seconds * 1_000_000)
    }

    fn group(number: u32) -> IpNet {
        IpNet::from(std::net::IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn a_group_is_known_in_the_period_of_its_token_and_in_the_next_one() {
        let known = KnownGroups::new(Duration::from_secs(1));
        assert!(!known.contains(&group(1), at(0)));
        known.accepted(&group(1), at(0));
        assert!(known.contains(&group(1), at(59)));
        assert!(!known.contains(&group(2), at(59)));
        assert!(known.contains(&group(1), at(119)));
        assert!(!known.contains(&group(1), at(120)));
    }

    #[test]
    fn three_failed_proofs_without_an_accepted_token_end_it() {
        let known = KnownGroups::new(MINUTE);
        known.accepted(&group(1), at(0));
        for now in [at(0), at(60)] {
            known.failed(&group(1), now);
            known.failed(&group(2), now);
            assert!(known.contains(&group(1), now));
        }
        known.failed(&group(1), at(60));
        assert!(!known.contains(&group(1), at(60)));
        known.accepted(&group(1), at(60));
        for _ in 0..2 {
            known.failed(&group(1), at(61));
        }
        known.accepted(&group(1), at(61));
        known.failed(&group(1), at(61));
        assert!(known.contains(&group(1), at(61)));
    }

    #[test]
    fn a_clock_that_goes_back_by_a_moment_makes_nobody_unknown_and_by_more_everybody() {
        let known = KnownGroups::new(MINUTE);
        known.accepted(&group(1), at(61));
        known.accepted(&group(2), at(59));
        assert!([1, 2].iter().all(|number| known.contains(&group(*number), at(61))));
        assert!(!known.contains(&group(1), Timestamp::from_micros(7)));
        known.accepted(&group(1), Timestamp::from_micros(7));
        assert!(known.contains(&group(1), Timestamp::from_micros(7)));
        assert!(!known.contains(&group(1), at(0)));
    }

    #[test]
    fn at_most_so_many_groups_are_known_and_those_stay() {
        let known = KnownGroups::new(MINUTE);
        let most = u32::try_from(KnownGroups::MAX).unwrap();
        for number in 0..most + 10 {
            known.accepted(&group(number), at(u64::from(number % 2) * 60));
        }
        for number in 0..most + 10 {
            assert_eq!(known.contains(&group(number), at(60)), number < most, "{number}");
        }
    }
}

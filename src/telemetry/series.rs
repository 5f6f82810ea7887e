use std::{hash::BuildHasher, sync::OnceLock};

use foldhash::fast::RandomState;

use super::facade::{Counter, METRICS};

type Names<'a> = [&'a str; 3];

/// A lookup needs neither a lock nor an allocation. The table has a fixed size, because new rules can add names:
/// without a free entry, decisions count under the tier and policy [`OTHER`](Self::OTHER).
#[derive(Debug, Default)]
pub(super) struct Series {
    hasher: RandomState,
    places: OnceLock<Box<[OnceLock<Entry>]>>,
}

#[derive(Debug)]
struct Entry {
    names: [Box<str>; 3],
    counter: Counter,
}

impl Series {
    const PLACES: usize = 512;
    const PROBES: usize = 16;
    const OTHER: &str = "(other)";

    pub(super) fn increment(&self, names: Names<'_>, new: impl Fn(Names<'_>) -> Counter) {
        self.add(names, 1, new);
    }

    pub(super) fn add(&self, names: Names<'_>, count: u64, new: impl Fn(Names<'_>) -> Counter) {
        if !METRICS {
            return;
        }
        let [_, _, outcome] = names;
        match self.entry(names, &new) {
            Some(entry) => entry.counter.increment(count),
            None => new([Self::OTHER, Self::OTHER, outcome]).increment(count),
        }
    }

    fn entry(&self, names: Names<'_>, new: impl Fn(Names<'_>) -> Counter) -> Option<&Entry> {
        let empty = || (0..Self::PLACES).map(|_| OnceLock::new()).collect();
        let places = self.places.get_or_init(empty);
        let first = self.hasher.hash_one(names) as usize;
        let mut probed = (0..Self::PROBES).map(|step| {
            let place = &places[first.wrapping_add(step) % Self::PLACES];
            place.get_or_init(|| Entry {
                names: names.map(Box::from),
                counter: new(names),
            })
        });
        probed.find(|entry| entry.is(names))
    }
}

impl Entry {
    fn is(&self, names: Names<'_>) -> bool {
        // Empty names are not compared: the pointer of an empty box is dangling, and on some processors, comparing zero
        // bytes at that address is slow.
        let is_same = |own: &str, name: &str| own.len() == name.len() && (name.is_empty() || own == name);
        self.names.iter().zip(names).all(|(own, name)| is_same(own, name))
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn counters_are_made_once_and_their_number_is_bounded() {
        let (series, made) = (Series::default(), AtomicUsize::new(0));
        let new = |[tier, policy, outcome]: Names<'_>| {
            let is_other = tier == Series::OTHER && policy == Series::OTHER;
            made.fetch_add(usize::from(!is_other), Ordering::Relaxed);
            assert_eq!(outcome, "allowed");
            Counter::noop()
        };
        for _ in 0..3 {
            series.increment(["free", "", "allowed"], new);
        }
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let tiers: Vec<String> = (0..10_000).map(|tier| tier.to_string()).collect();
        for tier in tiers.iter().chain(&tiers) {
            series.increment([tier, "", "allowed"], new);
        }
        assert!((Series::PLACES / 2..=Series::PLACES).contains(&made.load(Ordering::Relaxed)));
    }

    #[test]
    fn names_that_only_look_alike_when_joined_are_kept_apart() {
        let (series, made) = (Series::default(), AtomicUsize::new(0));
        for names in [["a", "b", "c"], ["ab", "", "c"], ["", "ab", "c"], ["a", "b", "d"]] {
            series.increment(names, |_| {
                made.fetch_add(1, Ordering::Relaxed);
                Counter::noop()
            });
        }
        assert_eq!(made.load(Ordering::Relaxed), 4);
    }
}

use std::{hash::BuildHasher, sync::OnceLock};

use foldhash::fast::RandomState;

use super::{
    facade::{Counter, METRICS},
    metrics::{Family, Metric},
};

/// A lookup needs neither a lock nor an allocation. The table has a fixed size, because new rules can add names:
/// without a free entry, decisions count under the tier and policy [`OTHER`](Self::OTHER).
#[derive(Debug)]
pub(crate) struct Series<const N: usize> {
    family: Family<N>,
    hasher: RandomState,
    places: OnceLock<Box<[OnceLock<Entry<N>>]>>,
}

#[derive(Debug)]
struct Entry<const N: usize> {
    names: [Box<str>; N],
    counter: Counter,
}

impl<const N: usize> Metric for Series<N> {
    type Handle = Counter;
    type Labels = [&'static str; N];

    fn new(name: &'static str, scope: &str, labels: Self::Labels) -> Self {
        Self {
            family: Family::new(name, scope, labels),
            hasher: RandomState::default(),
            places: OnceLock::new(),
        }
    }
}

impl<const N: usize> Series<N> {
    const PLACES: usize = 512;
    const PROBES: usize = 16;
    const OTHER: &str = "(other)";

    pub(crate) fn add(&self, names: [&str; N], count: u64) {
        if !METRICS {
            return;
        }
        match self.entry(names) {
            Some(entry) => entry.counter.increment(count),
            None => self.family.get(self.others(names)).increment(count),
        }
    }

    /// Only rules and custom units add names.
    fn others<'a>(&self, mut names: [&'a str; N]) -> [&'a str; N] {
        for (label, name) in self.family.labels.iter().zip(&mut names) {
            if matches!(*label, "tier" | "policy" | "unit") {
                *name = Self::OTHER;
            }
        }
        names
    }

    fn entry(&self, names: [&str; N]) -> Option<&Entry<N>> {
        let empty = || (0..Self::PLACES).map(|_| OnceLock::new()).collect();
        let places = self.places.get_or_init(empty);
        let first = self.hasher.hash_one(names) as usize;
        let mut probed = (0..Self::PROBES).map(|step| {
            let place = &places[first.wrapping_add(step) % Self::PLACES];
            place.get_or_init(|| Entry {
                names: names.map(Box::from),
                counter: self.family.get(names),
            })
        });
        probed.find(|entry| entry.is(names))
    }
}

impl<const N: usize> Entry<N> {
    fn is(&self, names: [&str; N]) -> bool {
        // Empty names are not compared: the pointer of an empty box is dangling, and on some processors, comparing zero
        // bytes at that address is slow.
        let is_same = |own: &str, name: &str| own.len() == name.len() && (name.is_empty() || own == name);
        self.names.iter().zip(names).all(|(own, name)| is_same(own, name))
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;

    fn decisions() -> Series<3> {
        Series::new("decisions", "scope", ["tier", "policy", "outcome"])
    }

    fn made(series: &Series<3>) -> usize {
        let places = series.places.get().into_iter().flatten();
        places.filter(|place| place.get().is_some()).count()
    }

    #[test]
    fn counters_are_made_once_and_their_number_is_bounded() {
        let series = decisions();
        for _ in 0..3 {
            series.add(["free", "", "allowed"], 1);
        }
        assert_eq!(made(&series), 1);
        let tiers: Vec<String> = (0..10_000).map(|tier| tier.to_string()).collect();
        for tier in tiers.iter().chain(&tiers) {
            series.add([tier, "", "allowed"], 1);
        }
        assert!((Series::<3>::PLACES / 2..=Series::<3>::PLACES).contains(&made(&series)));
        assert_eq!(
            series.others(["10000", "", "allowed"]),
            ["(other)", "(other)", "allowed"]
        );
    }

    #[test]
    fn names_that_only_look_alike_when_joined_are_kept_apart() {
        let series = decisions();
        for names in [["a", "b", "c"], ["ab", "", "c"], ["", "ab", "c"], ["a", "b", "d"]] {
            series.add(names, 1);
        }
        assert_eq!(made(&series), 4);
    }
}

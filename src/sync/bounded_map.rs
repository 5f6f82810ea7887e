use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::{partition::PartitionId, sync::random::Sequence};

/// Each new entry removes up to two expired entries. A full map evicts the entry with the lowest worth in a random
/// sample of eight to 32. Entries from a flood of new keys are never [visited](Self::visit), so the worth should depend
/// on visits.
pub(crate) struct BoundedMap<V> {
    entries: IndexMap<PartitionId, V, RandomState>,
    visited: Vec<bool>,
    cap: usize,
    hand: usize,
    random: Sequence,
    /// Not called for expired entries.
    evicted: fn(),
}

impl<V> BoundedMap<V> {
    const SWEEP: usize = 2;
    const CANDIDATES: usize = 8;
    const MAX_CANDIDATES: usize = 32;

    pub(crate) fn new(cap: usize, evicted: fn()) -> Self {
        Self {
            entries: IndexMap::default(),
            visited: Vec::new(),
            cap,
            hand: 0,
            random: Sequence::new(),
            evicted,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn visit(&mut self, partition: PartitionId) -> Option<&mut V> {
        let (index, _, value) = self.entries.get_full_mut(&partition)?;
        self.visited[index] = true;
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, partition: PartitionId) -> Option<&mut V> {
        self.entries.get_mut(&partition)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut()
    }

    pub(crate) fn remove(&mut self, partition: PartitionId) {
        if let Some(index) = self.entries.get_index_of(&partition) {
            self.remove_index(index);
        }
    }

    fn remove_index(&mut self, index: usize) -> Option<V> {
        let (_, value) = self.entries.swap_remove_index(index)?;
        self.visited.swap_remove(index);
        Some(value)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.visited.clear();
    }

    pub(crate) fn get_or_insert_with<W: Ord>(
        &mut self,
        partition: PartitionId,
        is_expired: impl Fn(&V) -> bool,
        worth: impl Fn(&V, bool) -> W,
        new: impl FnOnce() -> V,
    ) -> &mut V {
        let index = match self.entries.get_index_of(&partition) {
            Some(index) => index,
            None => self.insert(partition, new(), is_expired, worth),
        };
        &mut self.entries[index]
    }

    pub(crate) fn insert<W: Ord>(
        &mut self,
        partition: PartitionId,
        value: V,
        is_expired: impl Fn(&V) -> bool,
        worth: impl Fn(&V, bool) -> W,
    ) -> usize {
        self.sweep(&is_expired);
        if self.entries.len() >= self.cap {
            self.evict(&worth(&value, false), is_expired, worth);
        }
        self.grow();
        self.visited.push(false);
        self.entries.insert_full(partition, value).0
    }

    /// Up to the maximum, which the growth policy of the collections could exceed.
    fn grow(&mut self) {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            let more = len.max(4).min(self.cap - len);
            self.entries.reserve_exact(more);
            self.visited.reserve_exact(more);
        }
    }

    fn sweep(&mut self, is_expired: impl Fn(&V) -> bool) {
        for _ in 0..Self::SWEEP {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            match self.entries.get_index(self.hand) {
                Some((_, value)) if is_expired(value) => {
                    self.remove_index(self.hand);
                }
                _ => self.hand += 1,
            }
        }
    }

    fn evict<W: Ord>(&mut self, new: &W, is_expired: impl Fn(&V) -> bool, worth: impl Fn(&V, bool) -> W) {
        let mut victim: Option<(W, usize)> = None;
        for number in 0..Self::MAX_CANDIDATES {
            if number >= Self::CANDIDATES && victim.as_ref().is_some_and(|(least, _)| least <= new) {
                break;
            }
            let candidate = self.candidate(number % Self::CANDIDATES);
            let Some((_, value)) = self.entries.get_index(candidate) else {
                break;
            };
            let worth = worth(value, self.visited[candidate]);
            if victim.as_ref().is_none_or(|(least, _)| worth < *least) {
                victim = Some((worth, candidate));
            }
        }
        let victim = victim.and_then(|(_, victim)| self.remove_index(victim));
        if victim.is_some_and(|value| !is_expired(&value)) {
            (self.evicted)();
        }
    }

    /// In one eighth of the map.
    fn candidate(&mut self, part: usize) -> usize {
        match self.entries.len() {
            len @ ..=Self::CANDIDATES => part % len.max(1),
            len => (part * len + self.random.below(len)) / Self::CANDIDATES,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::partition::{PartitionKey, Scope};

    thread_local!(static EVICTIONS: Cell<usize> = const { Cell::new(0) });

    struct Numbers(BoundedMap<u64>);

    impl Numbers {
        fn new(cap: usize) -> Self {
            Self(BoundedMap::new(cap, || EVICTIONS.set(EVICTIONS.get() + 1)))
        }

        fn insert(&mut self, numbers: impl IntoIterator<Item = u64>, value: u64) {
            for number in numbers {
                let worth = |value: &u64, is_returning: bool| (is_returning, *value);
                self.0
                    .get_or_insert_with(id(number), |value| *value == 0, worth, || value);
            }
        }

        fn contains(&mut self, number: u64) -> bool {
            self.0.get_mut(id(number)).is_some()
        }
    }

    fn id(number: u64) -> PartitionId {
        Scope::new("numbers").partition(&PartitionKey::new("number", number.to_be_bytes()))
    }

    #[test]
    fn entries_that_are_worth_more_survive_a_flood() {
        let mut map = Numbers::new(1_000);
        map.insert(0..500, 2);
        map.insert(500..20_000, 1);
        assert!((0..500).all(|number| map.contains(number)));
        assert_eq!((map.0.len(), EVICTIONS.get()), (1_000, 19_000));
    }

    #[test]
    fn entries_that_were_visited_survive_a_flood_of_others_that_look_more_valuable() {
        let mut map = Numbers::new(1_000);
        map.insert(0..300, 1);
        for number in 0..300 {
            assert_eq!(map.0.visit(id(number)), Some(&mut 1));
        }
        map.insert(300..20_000, 5);
        assert!((0..300).all(|number| map.contains(number)));
    }

    #[test]
    fn in_a_small_map_all_entries_compete() {
        for cap in 1..=8 {
            let mut map = Numbers::new(cap);
            map.insert(0..cap as u64 - 1, 2);
            map.insert(100..200, 1);
            assert!((0..cap as u64 - 1).all(|number| map.contains(number)), "{cap}");
            assert_eq!(map.0.len(), cap);
        }
    }

    #[test]
    fn a_new_entry_finds_room_even_among_those_that_are_worth_more() {
        let mut map = Numbers::new(100);
        map.insert(0..100, 9);
        for number in 100..200 {
            map.insert([number], 1);
            assert!(map.contains(number) && map.0.len() == 100);
        }
    }

    #[test]
    fn entries_that_have_expired_are_removed_and_not_counted_as_evicted() {
        let mut map = Numbers::new(100);
        map.insert(0..100, 0);
        map.insert(100..200, 1);
        assert_eq!((map.0.len(), EVICTIONS.get()), (100, 0));
    }
}

//! A map with a hard bound on its size, and without a background task.

use foldhash::fast::RandomState;
use indexmap::{IndexMap, map::Entry};

use crate::partition::PartitionId;

/// What is kept about partitions. Each new entry clears away up to two that are of no use any more; where there is no
/// room, it takes the place of the one, among eight, that is worth least.
pub(crate) struct BoundedMap<V> {
    entries: IndexMap<PartitionId, V, RandomState>,
    cap: usize,
    /// Where the next look for useless entries begins; it goes round and round.
    hand: usize,
    /// Told when an entry is thrown out that was still of use.
    evicted: fn(),
}

impl<V> BoundedMap<V> {
    /// How many entries a new one looks at to find those that are of no use.
    const SWEEP: usize = 2;
    /// How many entries compete for being thrown out when the map is full.
    const CANDIDATES: usize = 8;

    pub(crate) fn new(cap: usize, evicted: fn()) -> Self {
        Self {
            entries: IndexMap::default(),
            cap,
            hand: 0,
            evicted,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, partition: PartitionId) -> Option<&mut V> {
        self.entries.get_mut(&partition)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut()
    }

    pub(crate) fn remove(&mut self, partition: PartitionId) {
        self.entries.swap_remove(&partition);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The entry of a partition; a new one, made by `new`, finds room.
    pub(crate) fn get_or_insert_with<W: Ord>(
        &mut self,
        partition: PartitionId,
        is_useless: impl Fn(&V) -> bool,
        worth: impl Fn(&V) -> W,
        new: impl FnOnce() -> V,
    ) -> &mut V {
        if !self.entries.contains_key(&partition) {
            self.sweep(is_useless);
            if self.entries.len() >= self.cap {
                self.evict(worth);
            }
            self.grow();
        }
        match self.entries.entry(partition) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(new()),
        }
    }

    /// By doubling, but never beyond the cap: a map that grows by itself would end with nearly twice the memory.
    fn grow(&mut self) {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            self.entries.reserve_exact(len.max(4).min(self.cap - len));
        }
    }

    fn sweep(&mut self, is_useless: impl Fn(&V) -> bool) {
        for _ in 0..Self::SWEEP {
            let hand = self.next();
            match self.entries.get_index(hand) {
                Some((_, value)) if is_useless(value) => {
                    self.entries.swap_remove_index(hand);
                }
                _ => self.hand += 1,
            }
        }
    }

    fn evict<W: Ord>(&mut self, worth: impl Fn(&V) -> W) {
        let mut victim = None;
        for _ in 0..Self::CANDIDATES {
            let candidate = self.next();
            let worth = self.entries.get_index(candidate).map(|(_, value)| worth(value));
            if victim.as_ref().is_none_or(|(least, _)| worth < *least) {
                victim = Some((worth, candidate));
            }
            self.hand += 1;
        }
        if let Some((_, victim)) = victim {
            self.entries.swap_remove_index(victim);
            (self.evicted)();
        }
    }

    fn next(&mut self) -> usize {
        if self.hand >= self.entries.len() {
            self.hand = 0;
        }
        self.hand
    }
}

use std::mem;

use crate::{
    algorithm::EvictionPriority,
    clock::Timestamp,
    decision::{Charged, PlanRef},
    ledger::PartitionState,
    partition::PartitionId,
    policy::{MAX_PLAIN, PolicySet},
    sync::random::Sequence,
    telemetry,
};

/// Open addressing and linear probing.
///
/// In a full table, a new partition replaces an expired one that its search has passed, or one in the next few slots.
/// If none has expired, the table grows. At its maximum, it evicts the partition with the lowest priority among eight,
/// one from each eighth of the table, or among up to 32 while all rank above the new one. The choice is random, so
/// clients cannot predict it.
pub(super) struct Table {
    slots: Vec<Slot>,
    len: usize,
    cap: usize,
    hand: usize,
    random: Sequence,
}

#[repr(align(64))]
struct Slot {
    id: PartitionId,
    content: Content,
}

/// A partition is *visited* if it was charged after its insertion. Those of a flood of new keys never are.
#[derive(Default)]
enum Content {
    #[default]
    Free,
    /// Up to three policies with a level each, without an allocation.
    Levels {
        at: Timestamp,
        levels: [u64; MAX_PLAIN],
        policies: PolicySet,
        birth: u32,
        is_visited: bool,
    },
    Any {
        state: Box<PartitionState>,
        is_visited: bool,
    },
}

impl Content {
    fn new(state: PartitionState, is_visited: bool) -> Self {
        match state.levels() {
            Some((at, birth, policies, levels)) => Self::Levels {
                at,
                levels,
                policies: policies.clone(),
                birth,
                is_visited,
            },
            None => Self::Any {
                state: Box::new(state),
                is_visited,
            },
        }
    }

    #[inline]
    fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// Afterwards, the state may have become one of levels, or no longer be.
    fn with<T>(&mut self, is_visit: bool, step: impl FnOnce(&mut PartitionState) -> T) -> Option<T> {
        let (result, replaced) = match self {
            Self::Free => return None,
            Self::Levels {
                at,
                levels,
                policies,
                birth,
                is_visited,
            } => {
                let mut state = PartitionState::of_levels(*at, *birth, policies, *levels);
                let result = step(&mut state);
                *is_visited |= is_visit;
                (result, Self::new(state, *is_visited))
            }
            Self::Any { state, is_visited } => {
                let result = step(state);
                *is_visited |= is_visit;
                if state.levels().is_none() {
                    return Some(result);
                }
                (result, Self::new(PartitionState::clone(state), *is_visited))
            }
        };
        *self = replaced;
        Some(result)
    }

    fn is_empty(&self, now: Timestamp) -> bool {
        match self {
            Self::Free => true,
            Self::Levels {
                at, levels, policies, ..
            } => policies.iter().zip(levels).all(|(policy, level)| {
                let counter = policy.counter().plain();
                counter.is_none_or(|counter| counter.empty_at(*level, at.as_micros()) <= now.as_micros())
            }),
            Self::Any { state, .. } => state.is_empty(now),
        }
    }

    fn eviction_priority(&self, now: Timestamp) -> Option<EvictionPriority> {
        match self {
            Self::Free => None,
            Self::Levels {
                at,
                levels,
                policies,
                birth,
                is_visited,
            } => PartitionState::of_levels(*at, *birth, policies, *levels).eviction_priority(now, *is_visited),
            Self::Any { state, is_visited } => state.eviction_priority(now, *is_visited),
        }
    }
}

impl Table {
    /// Slots searched for expired partitions before the table grows.
    const SWEEP: usize = 32;
    /// The same before a partition is evicted; many evictions may follow each other.
    const SWEEP_AT_MAXIMUM: usize = 8;
    const CANDIDATES: usize = 8;
    const MAX_CANDIDATES: usize = 32;

    pub(super) fn new(cap: usize) -> Self {
        Self {
            slots: Vec::new(),
            len: 0,
            cap,
            hand: 0,
            random: Sequence::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Depends only on the lower 32 bits of the hash, because the upper ones select the shard.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        match index + 1 {
            next if next == self.slots.len() => 0,
            next => next,
        }
    }

    #[inline]
    fn find(&self, hash: u64, id: PartitionId) -> Option<usize> {
        let mut index = self.home(hash);
        loop {
            let slot = self.slots.get(index)?;
            if slot.id == id || slot.content.is_free() {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    /// Returns `None` if the state of the partition has other policies, or a later time.
    #[inline]
    pub(super) fn charge(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        hash: u64,
        now: Timestamp,
        plan: &PlanRef<'_>,
        call: u32,
    ) -> Option<Charged> {
        let found = self.find(hash, plan.partition());
        match found.map(|found| &mut self.slots[found].content) {
            None | Some(Content::Free) => Some(self.charge_new(hash_of, hash, now, plan, call)),
            Some(Content::Levels {
                at,
                levels,
                policies,
                birth,
                is_visited,
            }) if *at <= now && policies.is_same(plan.policies()) => {
                *is_visited = true;
                Some(plan.charge(at, now, levels, birth, call))
            }
            Some(_) => None,
        }
    }

    /// A plan that does not fit even a new partition leaves no state.
    #[inline(never)]
    fn charge_new(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        hash: u64,
        now: Timestamp,
        plan: &PlanRef<'_>,
        call: u32,
    ) -> Charged {
        let (mut at, mut levels, mut birth) = (now, [0; MAX_PLAIN], call);
        let charged = plan.charge(&mut at, now, &mut levels, &mut birth, call);
        if charged.fits {
            let content = Content::Levels {
                at,
                levels,
                policies: plan.policies().clone(),
                birth,
                is_visited: false,
            };
            self.insert_content(hash_of, hash, now, plan.partition(), content);
        }
        charged
    }

    pub(super) fn with<T>(
        &mut self,
        hash: u64,
        id: PartitionId,
        is_visit: bool,
        step: impl FnOnce(&mut PartitionState) -> T,
    ) -> Option<T> {
        let index = self.find(hash, id)?;
        self.slots[index].content.with(is_visit, step)
    }

    pub(super) fn insert(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        now: Timestamp,
        id: PartitionId,
        state: PartitionState,
    ) {
        let hash = hash_of(id);
        self.insert_content(hash_of, hash, now, id, Content::new(state, false));
    }

    fn insert_content(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        hash: u64,
        now: Timestamp,
        id: PartitionId,
        content: Content,
    ) {
        if self.len >= self.room() {
            if let Some(index) = self.find_expired(hash, now) {
                self.slots[index] = Slot { id, content };
                return;
            }
            self.make_room(&hash_of, now, &content);
        }
        if let Some(index) = self.find(hash, id) {
            self.slots[index] = Slot { id, content };
            self.len += 1;
        }
    }

    fn find_expired(&self, hash: u64, now: Timestamp) -> Option<usize> {
        let mut index = self.home(hash);
        loop {
            let content = &self.slots.get(index)?.content;
            if content.is_free() {
                return None;
            }
            if content.is_empty(now) {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    fn make_room(&mut self, hash_of: &impl Fn(PartitionId) -> u64, now: Timestamp, new: &Content) {
        self.sweep(hash_of, now);
        if self.len < self.room() {
            return;
        }
        match self.len < self.cap {
            true => self.grow(hash_of),
            false => self.evict(hash_of, now, new.eviction_priority(now)),
        }
    }

    /// At most four fifths of the slots are in use, so that searches are short.
    fn room(&self) -> usize {
        (self.slots.len() / 5 * 4).min(self.cap)
    }

    /// Grows by half, so that at least half of the slots are in use.
    fn grow(&mut self, hash_of: &impl Fn(PartitionId) -> u64) {
        let most = self.cap.div_ceil(4).saturating_mul(5);
        let slots = (self.slots.len() / 2 * 3).max(10).min(most.max(5));
        let free = || Slot {
            id: PartitionId::from_bytes([0; 16]),
            content: Content::Free,
        };
        let mut bigger = Vec::new();
        bigger.reserve_exact(slots);
        bigger.resize_with(slots, free);
        for slot in mem::replace(&mut self.slots, bigger) {
            if !slot.content.is_free()
                && let Some(index) = self.find(hash_of(slot.id), slot.id)
            {
                self.slots[index] = slot;
            }
        }
    }

    /// Moves later partitions forward, so that searches do not end at the free slot.
    fn remove(&mut self, hash_of: &impl Fn(PartitionId) -> u64, index: usize) {
        self.slots[index].content = Content::Free;
        self.len -= 1;
        let (mut free, mut next) = (index, self.after(index));
        while !self.slots[next].content.is_free() {
            let home = self.home(hash_of(self.slots[next].id));
            if self.distance(home, next) >= self.distance(free, next) {
                self.slots.swap(free, next);
                free = next;
            }
            next = self.after(next);
        }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        match to.checked_sub(from) {
            Some(distance) => distance,
            None => to + self.slots.len() - from,
        }
    }

    fn sweep(&mut self, hash_of: &impl Fn(PartitionId) -> u64, now: Timestamp) {
        let mut left = match self.len < self.cap {
            true => Self::SWEEP,
            false => Self::SWEEP_AT_MAXIMUM,
        };
        // Removals leave free slots together, before which the hand must not stop.
        for _ in 0..self.slots.len() {
            if left == 0 {
                break;
            }
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let content = &self.slots[self.hand].content;
            if !content.is_free() {
                if content.is_empty(now) {
                    return self.remove(hash_of, self.hand);
                }
                left -= 1;
            }
            self.hand += 1;
        }
    }

    fn evict(&mut self, hash_of: &impl Fn(PartitionId) -> u64, now: Timestamp, new: Option<EvictionPriority>) {
        let mut victim: Option<(Option<EvictionPriority>, usize)> = None;
        for number in 0..Self::MAX_CANDIDATES {
            if number >= Self::CANDIDATES && victim.as_ref().is_some_and(|(least, _)| *least <= new) {
                break;
            }
            let candidate = self.candidate(number % Self::CANDIDATES);
            let priority = self.slots[candidate].content.eviction_priority(now);
            if victim.as_ref().is_none_or(|(least, _)| priority < *least) {
                victim = Some((priority, candidate));
            }
        }
        if let Some((_, victim)) = victim {
            if !self.slots[victim].content.is_empty(now) {
                telemetry::evictions().increment(1);
            }
            self.remove(hash_of, victim);
        }
    }

    /// A random partition in one eighth of the table, or the next one; at most eight partitions are returned in turn.
    fn candidate(&mut self, part: usize) -> usize {
        let slots = self.slots.len();
        if self.len <= Self::CANDIDATES {
            let taken = |index: &usize| !self.slots[*index].content.is_free();
            let mut all = (0..slots).filter(taken);
            return all.nth(part % self.len.max(1)).unwrap_or(0);
        }
        let mut index = (part * slots + self.random.below(slots)) / Self::CANDIDATES;
        while self.slots[index].content.is_free() {
            index = self.after(index);
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, hash::BuildHasher};

    use foldhash::fast::RandomState;

    use super::*;
    use crate::{
        policy::{Algorithm, QuotaPolicy},
        sync::random::for_many,
    };

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn id(number: u64) -> PartitionId {
        PartitionId::from_bytes(u128::from(number).to_be_bytes())
    }

    fn policies(count: usize) -> PolicySet {
        let names = ["a", "b", "c", "d"].into_iter().take(count);
        PolicySet::new(names.map(|name| QuotaPolicy::per_hour(name, 3_600))).unwrap()
    }

    fn state(policies: &PolicySet, level: u64) -> PartitionState {
        match policies.iter().len() {
            ..=MAX_PLAIN => PartitionState::of_levels(NOW, 1, policies, [level; MAX_PLAIN]),
            _ => PartitionState::new(NOW, policies),
        }
    }

    struct Numbers(Table, RandomState);

    impl Numbers {
        fn new(cap: usize) -> Self {
            Self(Table::new(cap), RandomState::default())
        }

        fn insert(&mut self, number: u64, now: Timestamp, state: PartitionState) {
            self.0.insert(|id| self.1.hash_one(id), now, id(number), state);
        }

        fn level(&mut self, number: u64, is_visit: bool) -> Option<u64> {
            let level = |state: &mut PartitionState| state.levels().map(|(_, _, _, [level, ..])| level);
            let hash = self.1.hash_one(id(number));
            self.0.with(hash, id(number), is_visit, level).flatten()
        }

        fn probes(&self, number: u64) -> usize {
            let hash = self.1.hash_one(id(number));
            let found = self.0.find(hash, id(number)).unwrap();
            self.0.distance(self.0.home(hash), found) + 1
        }
    }

    #[test]
    fn a_slot_is_one_cache_line_and_a_full_table_takes_80_bytes_per_caller() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
        let (policies, cap) = (policies(3), 50_000);
        let mut table = Numbers::new(cap);
        for number in 0..cap as u64 {
            table.insert(number, NOW, state(&policies, 1));
            let bytes = size_of::<Slot>() * table.0.slots.len() / table.0.len();
            assert!(bytes <= 140 || number < 20, "{bytes} bytes for {number}");
        }
        assert_eq!(size_of::<Slot>() * table.0.slots.capacity() / table.0.len(), 80);
    }

    /// An attacker could choose such keys without the secret of the hash.
    #[test]
    fn searches_in_a_full_table_are_short_whatever_the_keys_are() {
        let policies = policies(1);
        for key in [|number| number, |number: u64| number << 40, |number| number * 4_096] {
            let mut table = Numbers::new(4_096);
            (0..4_096).for_each(|number| table.insert(key(number), NOW, state(&policies, 1)));
            for keys in [0..4_096, 1_000_000..1_004_096] {
                let probes: Vec<usize> = keys.map(|number| table.probes(key(number))).collect();
                let (usual, most) = (probes.iter().sum::<usize>() / probes.len(), probes.iter().max());
                assert!(usual < 100 && most < Some(&1_000), "{usual} {most:?}");
            }
        }
    }

    #[test]
    fn expired_partitions_make_room_before_the_table_grows_or_evicts() {
        let policies = policies(2);
        let mut table = Numbers::new(1_000);
        (0..700).for_each(|number| table.insert(number, NOW, state(&policies, 1_000_000)));
        let slots = table.0.slots.len();
        let later = Timestamp::from_micros(NOW.as_micros() + 1_000_000);
        for number in 1_000..3_000 {
            let (before, level) = (table.0.len(), if number < 1_050 { 2_000_000 } else { 1 });
            table.insert(number, later, state(&policies, level));
            assert!(table.0.len() <= before + 1 && table.0.slots.len() == slots);
        }
        let mut kept = (1_000..1_050).map(|number| table.level(number, false));
        assert!(kept.all(|level| level == Some(2_000_000)));
    }

    #[test]
    fn a_new_partition_replaces_one_expired_partition_and_keeps_the_others() {
        let policies = policies(1);
        let mut table = Numbers::new(1_000);
        (0..1_000).for_each(|number| table.insert(number, NOW, state(&policies, 1_000)));
        let later = Timestamp::from_micros(NOW.as_micros() + 1_000);
        for number in 1_000..1_500 {
            table.insert(number, later, state(&policies, 2_000));
            assert_eq!(table.0.len(), 1_000);
        }
    }

    #[test]
    fn live_partitions_are_found_while_others_expire() {
        let policies = policies(1);
        for_many(100, |sequence| {
            let (mut table, mut known, mut now) = (Numbers::new(1_000_000), HashMap::new(), NOW);
            for _ in 0..3_000 {
                now = Timestamp::from_micros(now.as_micros() + sequence.within(0..10));
                let (number, level) = (sequence.within(0..600), sequence.within(1..2_000));
                if table.level(number, false).is_none() {
                    let new = PartitionState::of_levels(now, 1, &policies, [level; MAX_PLAIN]);
                    table.insert(number, now, new);
                    known.insert(number, (level, now.as_micros() + level));
                }
            }
            known.retain(|_, (_, end)| *end > now.as_micros());
            for (number, (level, _)) in known {
                assert_eq!(table.level(number, false), Some(level), "{number}");
            }
        });
    }

    #[test]
    fn windows_make_room_when_they_end() {
        let window = QuotaPolicy::per_second("window", 10).with_algorithm(Algorithm::FixedWindow);
        let policies = PolicySet::new([window]).unwrap();
        let mut table = Numbers::new(1_000);
        (0..700).for_each(|number| table.insert(number, NOW, state(&policies, 9)));
        let slots = table.0.slots.len();
        let later = Timestamp::from_micros(NOW.as_micros() + 1_000_000);
        for number in 1_000..1_700 {
            let new = PartitionState::of_levels(later, 1, &policies, [1; MAX_PLAIN]);
            table.insert(number, later, new);
        }
        assert_eq!(table.0.slots.len(), slots);
        assert!((1_000..1_700).all(|number| table.level(number, false) == Some(1)));
    }

    #[test]
    fn partitions_that_were_visited_survive_a_flood_of_others() {
        let policies = policies(1);
        let mut table = Numbers::new(1_000);
        (0..300).for_each(|number| table.insert(number, NOW, state(&policies, 1_900_000_000)));
        for number in 0..300 {
            assert_eq!(table.level(number, true), Some(1_900_000_000));
        }
        (300..20_000).for_each(|number| table.insert(number, NOW, state(&policies, 3_600_000_000)));
        assert!((0..300).all(|number| table.level(number, false).is_some()));
        assert_eq!(table.0.len(), 1_000);
    }

    #[test]
    fn in_a_small_table_all_partitions_compete() {
        let policies = policies(1);
        for cap in 1..=8 {
            let mut table = Numbers::new(cap);
            (1..cap as u64).for_each(|number| table.insert(number, NOW, state(&policies, 3_000_000_000)));
            (100..200).for_each(|number| table.insert(number, NOW, state(&policies, 1_000)));
            let mut kept = (1..cap as u64).map(|number| table.level(number, false));
            assert!(kept.all(|level| level.is_some()), "{cap}");
            assert_eq!(table.0.len(), cap);
        }
    }

    #[test]
    fn whatever_happens_each_partition_is_found_with_its_own_level() {
        let sets = [1, 2, 3].map(policies);
        for_many(200, |sequence| {
            let (mut table, mut known) = (Numbers::new(1_000_000), HashMap::new());
            for _ in 0..sequence.within(1..600) {
                let number = sequence.within(0..300);
                let level = sequence.within(1..9);
                let hash = table.1.hash_one(id(number));
                if sequence.below(3) == 0 {
                    let found = table.0.find(hash, id(number));
                    if let Some(index) = found.filter(|_| known.remove(&number).is_some()) {
                        let hasher = table.1.clone();
                        table.0.remove(&|id| hasher.hash_one(id), index);
                    }
                } else if known.insert(number, level).is_none() {
                    table.insert(number, NOW, state(&sequence.any_of(&sets), level));
                } else {
                    let new = state(&sequence.any_of(&sets), level);
                    assert!(table.0.with(hash, id(number), true, |state| *state = new).is_some());
                }
                assert_eq!(table.0.len(), known.len());
            }
            for number in 0..300 {
                assert_eq!(table.level(number, false), known.get(&number).copied(), "{number}");
            }
        });
    }

    #[test]
    fn a_partition_moves_into_its_slot_and_out_of_it_as_its_state_becomes_plain_or_not() {
        let (three, four) = (policies(3), policies(4));
        let mut table = Numbers::new(10);
        table.insert(1, NOW, state(&three, 5));
        let hash = table.1.hash_one(id(1));
        let is_boxed = |table: &Numbers| {
            let index = table.0.find(hash, id(1)).unwrap();
            matches!(table.0.slots[index].content, Content::Any { .. })
        };
        assert!(!is_boxed(&table));
        let _ = table.0.with(hash, id(1), true, |own| *own = state(&four, 5));
        assert!(is_boxed(&table));
        let _ = table.0.with(hash, id(1), true, |own| *own = state(&three, 6));
        assert!(!is_boxed(&table));
        assert_eq!(table.level(1, false), Some(6));
    }
}

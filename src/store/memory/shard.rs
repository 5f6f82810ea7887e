//! One part of the partitions, under one lock.

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::partition::PartitionState;
use crate::{
    algorithm::Readings, clock::Timestamp, lease::LeaseId, partition::PartitionId, plan::PartPlan,
    settlement::PartSettlement,
};

pub(super) struct Shard {
    partitions: IndexMap<PartitionId, PartitionState, RandomState>,
    cap: usize,
    /// Where the next look for idle partitions begins; it goes round and round.
    hand: usize,
}

impl Shard {
    /// How many partitions a new one looks at to find those that are idle.
    const SWEEP: usize = 2;
    /// How many partitions compete for being thrown out when the shard is full.
    const CANDIDATES: usize = 8;

    pub(super) fn new(cap: usize) -> Self {
        Self {
            partitions: IndexMap::default(),
            cap,
            hand: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Decides a plan and charges it if all of it fits. Returns what was used before.
    pub(super) fn acquire(&mut self, now: Timestamp, plan: PartPlan<'_>, lease: Option<LeaseId>) -> Readings {
        if let Some(state) = self.partitions.get_mut(&plan.partition()) {
            return state.acquire(now, plan, lease).0;
        }
        let mut state = PartitionState::new(now, plan.policies());
        let (readings, _) = state.acquire(now, plan, lease);
        self.keep(now, plan.partition(), state);
        readings
    }

    /// What a partition would be charged on, if all others of a plan are, too.
    pub(super) fn candidate(&mut self, now: Timestamp, plan: PartPlan<'_>) -> PartitionState {
        match self.partitions.get_mut(&plan.partition()) {
            Some(state) => {
                state.rebase_to(now);
                state.clone()
            }
            None => PartitionState::new(now, plan.policies()),
        }
    }

    /// Puts a candidate in its place.
    pub(super) fn replace(&mut self, now: Timestamp, partition: PartitionId, state: PartitionState) {
        match self.partitions.get_mut(&partition) {
            Some(present) => *present = state,
            None => self.keep(now, partition, state),
        }
    }

    pub(super) fn settle(&mut self, now: Timestamp, settlement: PartSettlement<'_>) {
        let partition = settlement.part.partition();
        if let Some(state) = self.partitions.get_mut(&partition) {
            return state.settle(now, settlement);
        }
        let mut state = PartitionState::new(now, settlement.part.policies());
        state.settle(now, settlement);
        self.keep(now, partition, state);
    }

    pub(super) fn reset(&mut self, now: Timestamp, partition: PartitionId) {
        if let Some((index, _, state)) = self.partitions.get_full_mut(&partition) {
            state.reset();
            if state.empty_at() <= now {
                self.partitions.swap_remove_index(index);
            }
        }
    }

    /// Keeps a new partition unless it is as good as one never seen.
    fn keep(&mut self, now: Timestamp, partition: PartitionId, state: PartitionState) {
        if state.empty_at() > now {
            self.insert(now, partition, state);
        }
    }

    fn insert(&mut self, now: Timestamp, partition: PartitionId, state: PartitionState) {
        self.sweep(now);
        if self.partitions.len() >= self.cap {
            self.evict();
        }
        self.partitions.insert(partition, state);
    }

    fn sweep(&mut self, now: Timestamp) {
        for _ in 0..Self::SWEEP {
            let hand = self.next();
            match self.partitions.get_index(hand) {
                Some((_, state)) if state.empty_at() <= now => {
                    self.partitions.swap_remove_index(hand);
                }
                _ => self.hand += 1,
            }
        }
    }

    /// Throws out the partition, among some, that is nearest to being as good as new.
    fn evict(&mut self) {
        let mut victim = None;
        for _ in 0..Self::CANDIDATES {
            let candidate = self.next();
            let empty_at = self.partitions.get_index(candidate).map(|(_, state)| state.empty_at());
            if victim.is_none_or(|(earliest, _)| empty_at < earliest) {
                victim = Some((empty_at, candidate));
            }
            self.hand += 1;
        }
        if let Some((_, victim)) = victim {
            self.partitions.swap_remove_index(victim);
        }
    }

    fn next(&mut self) -> usize {
        if self.hand >= self.partitions.len() {
            self.hand = 0;
        }
        self.hand
    }
}

//! One part of the partitions, under one lock.

use super::partition::PartitionState;
use crate::{
    algorithm::Readings, bounded_map::BoundedMap, clock::Timestamp, lease::LeaseId, partition::PartitionId,
    plan::PartPlan, settlement::PartSettlement, telemetry,
};

pub(super) struct Shard(BoundedMap<PartitionState>);

impl Shard {
    pub(super) fn new(cap: usize) -> Self {
        Self(BoundedMap::new(cap, telemetry::partition_evicted))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Decides a plan and charges it if all of it fits. Returns what was used before.
    pub(super) fn acquire(&mut self, now: Timestamp, plan: PartPlan<'_>, lease: Option<LeaseId>) -> Readings {
        if let Some(state) = self.find(plan) {
            return state.acquire(now, plan, lease).0;
        }
        let mut state = PartitionState::new(now, plan.policies());
        let (readings, _) = state.acquire(now, plan, lease);
        self.keep(now, plan.partition(), state);
        readings
    }

    /// A request has come for the partition, or somebody only looks.
    #[inline]
    fn find(&mut self, plan: PartPlan<'_>) -> Option<&mut PartitionState> {
        if plan.is_charged() {
            self.0.visit(plan.partition())
        } else {
            self.0.get_mut(plan.partition())
        }
    }

    /// What was used before, and whether the plan fits, without charging it.
    pub(super) fn read(&mut self, now: Timestamp, plan: PartPlan<'_>) -> (Readings, bool) {
        match self.find(plan) {
            Some(state) => state.read(now, plan),
            None => PartitionState::new(now, plan.policies()).read(now, plan),
        }
    }

    pub(super) fn settle(&mut self, now: Timestamp, settlement: PartSettlement<'_>) {
        let partition = settlement.part.partition();
        if let Some(state) = self.0.get_mut(partition) {
            return state.settle(now, settlement);
        }
        let mut state = PartitionState::new(now, settlement.part.policies());
        state.settle(now, settlement);
        self.keep(now, partition, state);
    }

    pub(super) fn reset(&mut self, now: Timestamp, part: PartPlan<'_>) {
        if let Some(state) = self.0.get_mut(part.partition()) {
            state.reset(part.policies());
            if state.empty_at() <= now {
                self.0.remove(part.partition());
            }
        }
    }

    /// Keeps a new partition unless it is like one never seen. If there is no room, it replaces one of which the least
    /// is used.
    fn keep(&mut self, now: Timestamp, partition: PartitionId, state: PartitionState) {
        if state.empty_at() > now {
            let is_expired = |state: &PartitionState| state.empty_at() <= now;
            let worth = |state: &PartitionState, is_returning: bool| state.worth(now, is_returning);
            self.0.get_or_insert_with(partition, is_expired, worth, || state);
        }
    }
}

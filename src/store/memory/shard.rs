use crate::{
    clock::Timestamp,
    decision::{PartPlan, PartSettlement, Reads},
    ledger::{Found, PartitionState, Step},
    partition::PartitionId,
    sync::bounded_map::BoundedMap,
    telemetry,
};

pub(super) struct Shard {
    partitions: BoundedMap<PartitionState>,
    /// The number of the current call. New states derive their birth and log entries from it.
    call: u32,
}

impl Shard {
    pub(super) fn new(cap: usize) -> Self {
        Self {
            partitions: BoundedMap::new(cap, telemetry::partition_evicted),
            call: 0,
        }
    }

    /// Skips 0, which marks a state that no call has created.
    pub(super) fn begin_call(&mut self) {
        self.call = self.call.wrapping_add(1).max(1);
    }

    pub(super) fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Appends the usage before this step to `reads`.
    pub(super) fn acquire(&mut self, now: Timestamp, plan: PartPlan<'_>, step: Step, reads: &mut Reads) -> Found {
        let call = self.call;
        if let Some(state) = self.find(plan) {
            return state.acquire(now, plan, step, call, reads);
        }
        let mut state = PartitionState::new(now, plan.policies());
        let found = state.acquire(now, plan, step, call, reads);
        self.keep(now, plan.partition(), state);
        found
    }

    /// Only a charge marks the partition as visited, so that a peek does not raise its eviction priority.
    #[inline]
    fn find(&mut self, plan: PartPlan<'_>) -> Option<&mut PartitionState> {
        if plan.is_charged() {
            self.partitions.visit(plan.partition())
        } else {
            self.partitions.get_mut(plan.partition())
        }
    }

    pub(super) fn settle(&mut self, now: Timestamp, settlement: PartSettlement<'_>) {
        let partition = settlement.part.partition();
        if let Some(state) = self.partitions.get_mut(partition) {
            return state.settle(now, settlement, self.call);
        }
        let mut state = PartitionState::new(now, settlement.part.policies());
        state.settle(now, settlement, self.call);
        self.keep(now, partition, state);
    }

    pub(super) fn reset(&mut self, part: PartPlan<'_>) {
        if let Some(state) = self.partitions.get_mut(part.partition()) {
            state.reset(part.policies());
        }
    }

    /// Discards an empty state, which is equivalent to an unknown partition.
    fn keep(&mut self, now: Timestamp, partition: PartitionId, state: PartitionState) {
        if !state.is_empty(now) {
            let is_expired = |state: &PartitionState| state.is_empty(now);
            let worth = |state: &PartitionState, is_returning: bool| state.eviction_priority(now, is_returning);
            self.partitions.insert(partition, state, is_expired, worth);
        }
    }
}

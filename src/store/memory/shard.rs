use super::table::Table;
use crate::{
    clock::Timestamp,
    decision::{Charged, PartPlan, PartSettlement, PlanRef, Reads},
    ledger::{Found, PartitionState, Step},
    partition::PartitionId,
};

pub(super) struct Shard {
    table: Table,
    /// New states derive their birth and log entries from it.
    call: u32,
}

impl Shard {
    pub(super) fn new(cap: usize) -> Self {
        Self {
            table: Table::new(cap),
            call: 0,
        }
    }

    /// Skips 0, which marks a state that no call has created.
    #[inline]
    pub(super) fn begin_call(&mut self) {
        self.call = self.call.wrapping_add(1).max(1);
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(super) fn charge(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        hash: u64,
        now: Timestamp,
        plan: &PlanRef<'_>,
    ) -> Option<Charged> {
        self.table.charge(hash_of, hash, now, plan, self.call)
    }

    pub(super) fn acquire(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        now: Timestamp,
        plan: PartPlan<'_>,
        step: Step,
        reads: &mut Reads,
    ) -> Found {
        let (call, partition) = (self.call, plan.partition());
        // A peek does not raise the eviction priority.
        let known = self
            .table
            .with(hash_of(partition), partition, plan.is_charged(), |state| {
                state.acquire(now, plan, step, call, reads)
            });
        known.unwrap_or_else(|| {
            let mut state = PartitionState::new(now, plan.policies());
            let found = state.acquire(now, plan, step, call, reads);
            self.keep(hash_of, now, partition, state);
            found
        })
    }

    pub(super) fn settle(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        now: Timestamp,
        settlement: PartSettlement<'_>,
    ) {
        let (call, partition) = (self.call, settlement.part.partition());
        let step = |state: &mut PartitionState| state.settle(now, settlement, call);
        if self.table.with(hash_of(partition), partition, false, step).is_none() {
            let mut state = PartitionState::new(now, settlement.part.policies());
            state.settle(now, settlement, call);
            self.keep(hash_of, now, partition, state);
        }
    }

    pub(super) fn reset(&mut self, hash: u64, part: PartPlan<'_>) {
        let step = |state: &mut PartitionState| state.reset(part.policies());
        let _ = self.table.with(hash, part.partition(), false, step);
    }

    /// An empty state is equivalent to an unknown partition.
    fn keep(
        &mut self,
        hash_of: impl Fn(PartitionId) -> u64,
        now: Timestamp,
        partition: PartitionId,
        state: PartitionState,
    ) {
        if !state.is_empty(now) {
            self.table.insert(hash_of, now, partition, state);
        }
    }
}

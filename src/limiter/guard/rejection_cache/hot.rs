//! The partitions that are rejected at the moment, to be read without a lock.
//!
//! Threads that reject one key would write the lock of its shard in turn, and one core would reject as many requests as two.
//! So a rejection leaves a copy of the partition's records here, which others only read. A copy never changes: a task
//! that changes the records, under the lock of their shard, removes it.

use arc_swap::ArcSwapOption;

use super::{records::Records, shard::Found};
use crate::{clock::Timestamp, decision::PartPlan, partition::PartitionId};

/// Copies of the records of some partitions, each in the place that its hash says.
pub(super) struct HotPartitions(Box<[ArcSwapOption<Copied>]>);

#[derive(Debug)]
struct Copied {
    partition: PartitionId,
    records: Records,
}

impl HotPartitions {
    /// Few keys are under attack at a time. Those that share a place with another one take the lock.
    pub(super) const PLACES: usize = 256;

    pub(super) fn new() -> Self {
        Self((0..Self::PLACES).map(|_| ArcSwapOption::empty()).collect())
    }

    fn place(&self, hash: u64) -> &ArcSwapOption<Copied> {
        &self.0[hash as usize % Self::PLACES]
    }

    /// The cached rejection of a plan for one partition, or `None` if the plan needs a call.
    #[inline]
    pub(super) fn rejection(&self, hash: u64, part: PartPlan<'_>, now: Timestamp) -> Option<Found> {
        let copied = self.place(hash).load();
        let copied = copied.as_ref().filter(|copied| copied.partition == part.partition())?;
        let mut found = Found::default();
        found.add(part, Some(&copied.records), now);
        found.is_rejected().then_some(found)
    }

    /// Shows the records of a partition, unless the place has another one's that may still reject. The caller has locked the
    /// partition's shard.
    pub(super) fn show(&self, hash: u64, partition: PartitionId, records: &Records, now: Timestamp) {
        let place = self.place(hash);
        let is_free = match &*place.load() {
            Some(copied) => copied.records.are_expired(now),
            None => true,
        };
        if is_free {
            let records = records.clone();
            place.store(Some(Copied { partition, records }.into()));
        }
    }

    /// Forgets a partition, whose records change. The caller has locked its shard.
    pub(super) fn hide(&self, hash: u64, partition: PartitionId) {
        let place = self.place(hash);
        let is_there = place
            .load()
            .as_ref()
            .is_some_and(|copied| copied.partition == partition);
        if is_there {
            place.store(None);
        }
    }
}

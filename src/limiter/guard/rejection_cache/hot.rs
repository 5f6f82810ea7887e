//! Rejections of some partitions, read without a lock.
//!
//! If threads contended for the lock of one key's shard, two cores would reject no more requests than one. A rejection
//! therefore stores a copy of the partition's record, which a change under the lock of the shard removes.

use arc_swap::ArcSwapOption;

use super::{answer::Found, record::Record};
use crate::{clock::Timestamp, decision::PartPlan, partition::PartitionId};

pub(super) struct HotPartitions(Box<[ArcSwapOption<Copied>]>);

struct Copied {
    partition: PartitionId,
    record: Record,
}

impl HotPartitions {
    /// Few keys are under attack at a time. A key whose slot is occupied uses the lock.
    pub(super) const PLACES: usize = 256;

    pub(super) fn new() -> Self {
        Self((0..Self::PLACES).map(|_| ArcSwapOption::empty()).collect())
    }

    fn place(&self, hash: u64) -> &ArcSwapOption<Copied> {
        &self.0[hash as usize % Self::PLACES]
    }

    #[inline]
    pub(super) fn rejection(&self, hash: u64, part: PartPlan<'_>, now: Timestamp) -> Option<Found> {
        let copied = self.place(hash).load();
        let copied = copied.as_ref().filter(|copied| copied.partition == part.partition())?;
        let mut found = Found::default();
        copied.record.judge(part, now, &mut found);
        found.is_rejected().then_some(found)
    }

    /// The caller holds the lock of the shard.
    pub(super) fn show(&self, hash: u64, partition: PartitionId, record: &Record, now: Timestamp) {
        let place = self.place(hash);
        let is_free = match &*place.load() {
            Some(copied) => copied.record.is_expired(now),
            None => true,
        };
        if is_free {
            let record = record.clone();
            place.store(Some(Copied { partition, record }.into()));
        }
    }

    /// The caller holds the lock of the shard.
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

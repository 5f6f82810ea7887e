use super::{answer::Found, record::Record};
use crate::{clock::Timestamp, decision::PartPlan, partition::PartitionId, sync::bounded_map::BoundedMap};

pub(super) struct Shard {
    pub(super) partitions: BoundedMap<Record>,
    /// The last settlement by partition hash. With few entries, settlements of one partition could keep a partition
    /// under attack out of the cache.
    settled_at: Box<[Option<Timestamp>]>,
}

impl Shard {
    /// The entries of all shards, far more than the partitions settled during one call.
    pub(super) const MOMENTS: usize = 1 << 12;

    pub(super) fn new(part: usize, capacity: usize) -> Self {
        let moments = (Self::MOMENTS * part).checked_div(capacity).unwrap_or(0);
        Self {
            partitions: BoundedMap::new(part, || {}),
            settled_at: vec![None; moments].into(),
        }
    }

    pub(super) fn settled(&mut self, partition: PartitionId, hash: u64, is_refund: bool, now: Timestamp) {
        let settled_at = self.settled_at(hash);
        *settled_at = (*settled_at).max(Some(now));
        self.change(partition, |record| record.settled(is_refund));
    }

    pub(super) fn was_settled(&mut self, hash: u64, since: Timestamp) -> bool {
        self.settled_at(hash).is_some_and(|settled_at| since <= settled_at)
    }

    /// Partitions may share an entry.
    fn settled_at(&mut self, hash: u64) -> &mut Option<Timestamp> {
        let moment = hash as u32 as usize % self.settled_at.len();
        &mut self.settled_at[moment]
    }

    #[inline]
    pub(super) fn judge(&mut self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) -> Option<&Record> {
        let record = self.partitions.visit(part.partition());
        match &record {
            Some(record) => record.judge(part, now, found),
            None => found.rejections.extend(part.charges().map(|_| None)),
        }
        record.map(|record| &*record)
    }

    /// `None` if nothing is known about the partition.
    pub(super) fn change<T>(&mut self, partition: PartitionId, change: impl FnOnce(&mut Record) -> T) -> Option<T> {
        let record = self.partitions.get_mut(partition)?;
        let changed = change(record);
        if record.is_empty() {
            self.partitions.remove(partition);
        }
        Some(changed)
    }

    pub(super) fn knows(&mut self, partition: PartitionId) -> bool {
        self.partitions.get_mut(partition).is_some()
    }

    /// Unlike [`change`](Self::change), adds the partition if it is unknown.
    pub(super) fn learn(
        &mut self,
        partition: PartitionId,
        now: Timestamp,
        learn: impl FnOnce(&mut Record) -> bool,
    ) -> bool {
        if self.knows(partition) {
            return self.change(partition, learn) == Some(true);
        }
        let mut record = Record::default();
        let is_lost = learn(&mut record);
        if !record.is_empty() {
            let is_over = |record: &Record| record.is_over(now);
            // Callers that continued after a rejection are likely to continue.
            let worth = |record: &Record, goes_on: bool| (!record.is_expired(now), goes_on, record.asked_at());
            self.partitions.insert(partition, record, is_over, worth);
        }
        is_lost
    }
}

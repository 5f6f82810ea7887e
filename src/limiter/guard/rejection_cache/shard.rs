use super::{
    record::{Finding, Standing},
    records::Records,
};
use crate::{
    clock::Timestamp,
    decision::{ChargeRejections, PartPlan},
    partition::PartitionId,
    sync::bounded_map::BoundedMap,
};

pub(super) struct Shard {
    pub(super) partitions: BoundedMap<Records>,
    /// The last settlement by partition hash. With few entries, settlements of one partition could keep a partition
    /// under attack out of the cache.
    settled_at: Box<[Option<Timestamp>]>,
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) rejections: ChargeRejections,
    pub(super) now: Timestamp,
    is_rejecting: bool,
    /// One request may check whether the rejection still applies.
    pub(super) is_stale: bool,
    is_known: bool,
    /// Only the store can determine whether a policy rejects the plan.
    is_open: bool,
}

impl Found {
    #[inline]
    pub(super) fn add(&mut self, part: PartPlan<'_>, records: Option<&Records>, now: Timestamp) {
        let Some(records) = records else {
            self.rejections.extend(part.charges().map(|_| None));
            return;
        };
        self.is_known = true;
        for (index, charge) in part.charges().enumerate() {
            let standing = match records.rejecting(part.policies(), index, now) {
                Some(record) => {
                    self.now = self.now.max(record.store_time(now));
                    let standing = record.standing(charge.weight(), now);
                    self.is_open |= standing == Standing::Open && !record.tells_room();
                    standing
                }
                None => {
                    self.is_open |= records.may_reject(&charge, now);
                    Standing::Open
                }
            };
            self.is_rejecting |= matches!(standing, Standing::Rejected(_));
            self.is_stale |= matches!(standing, Standing::Stale(_));
            self.rejections.push(match standing {
                Standing::Rejected(rejection) | Standing::Stale(rejection) => Some(rejection),
                Standing::Open => None,
            });
        }
    }

    #[inline]
    pub(super) fn is_rejected(&self) -> bool {
        self.is_rejecting && !self.is_open
    }

    pub(super) fn goes_to_store(&self) -> bool {
        self.is_known && !self.is_rejected()
    }

    /// The plan will probably be rejected and so not charged.
    pub(super) fn only_asks(&self) -> bool {
        self.is_stale || self.is_rejecting
    }
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
        let Some(records) = self.partitions.get_mut(partition) else {
            return;
        };
        records.settled(is_refund);
        if records.is_empty() {
            self.partitions.remove(partition);
        }
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
    pub(super) fn look_up(&mut self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) -> Option<&Records> {
        let records = self.partitions.visit(part.partition()).map(|records| &*records);
        found.add(part, records, now);
        records
    }

    pub(super) fn asks(&mut self, part: PartPlan<'_>, now: Timestamp, only_asks: bool) {
        let Some(records) = self.partitions.get_mut(part.partition()) else {
            return;
        };
        for (index, charge) in part.charges().enumerate() {
            if let Some(record) = records.rejecting_mut(part.policies(), index) {
                record.asks(charge.weight(), now, only_asks);
            }
        }
    }

    pub(super) fn unsent(&mut self, partition: PartitionId) {
        if let Some(records) = self.partitions.get_mut(partition) {
            records.unsent();
        }
    }

    pub(super) fn has_lost(&mut self, partition: PartitionId, findings: &[Finding<'_>]) -> bool {
        let known = self.partitions.get_mut(partition);
        known.is_some_and(|known| known.are_lost(findings))
    }

    /// New records replace older ones for the same policies.
    pub(super) fn replace(
        &mut self,
        partition: PartitionId,
        findings: &[Finding<'_>],
        new: Records,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        let known = self.partitions.get_mut(partition).map(std::mem::take);
        let mut records = known.unwrap_or_default();
        records.replace(findings, new, asked_at, now);
        if records.is_empty() {
            self.partitions.remove(partition);
            return;
        }
        if let Some(known) = self.partitions.get_mut(partition) {
            *known = records;
            return;
        }
        let are_over = |records: &Records| records.are_over(now);
        // Callers that continued after a rejection are likely to continue.
        let worth = |records: &Records, goes_on: bool| (!records.are_expired(now), goes_on, records.asked_at());
        self.partitions
            .get_or_insert_with(partition, are_over, worth, || records);
    }
}

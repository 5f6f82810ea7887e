//! The cached readings of a part of all partitions.

use smallvec::SmallVec;

use super::record::{Finding, Record, Standing};
use crate::{
    bounded_map::BoundedMap,
    clock::Timestamp,
    exchange::{ChargeDenials, PartPlan},
    partition::PartitionId,
    policy::MAX_POLICIES,
};

pub(super) struct Shard {
    pub(super) partitions: BoundedMap<Records>,
    /// The moment of the last refund to a partition. Answers to earlier calls are not cached. Partitions share these moments
    /// by chance, and few of them do: a refund to another partition must not keep a key under attack out of the cache.
    refunded_at: Box<[Option<Timestamp>]>,
}

/// The records of one partition, at most one for each policy.
pub(super) type Records = SmallVec<[Record; 1]>;

/// The state of the cache about a plan.
#[derive(Default)]
pub(super) struct Found {
    pub(super) denials: ChargeDenials,
    pub(super) now: Timestamp,
    /// True if the plan is rejected without a call.
    pub(super) is_rejected: bool,
    /// True if the plan is rejected, and one request may ask whether it still is.
    pub(super) is_stale: bool,
    /// True if any of its partitions is cached.
    is_known: bool,
}

impl Found {
    /// Adds what the records of a partition say about its part of the plan; `None` if it is not cached.
    #[inline]
    pub(super) fn add(&mut self, part: PartPlan<'_>, records: Option<&[Record]>, now: Timestamp) {
        let Some(records) = records else {
            self.denials.extend(part.charges().map(|_| None));
            return;
        };
        self.is_known = true;
        for (index, charge) in part.charges().enumerate() {
            let record = records.iter().find(|record| record.is_about(part.policies(), index));
            let standing = record.map_or(Standing::Open, |record| {
                self.now = self.now.max(record.store_time(now));
                record.standing(charge.weight(), now)
            });
            self.is_rejected |= matches!(standing, Standing::Rejected(_));
            self.is_stale |= matches!(standing, Standing::Stale(_));
            self.denials.push(match standing {
                Standing::Rejected(denial) | Standing::Stale(denial) => Some(denial),
                Standing::Open => None,
            });
        }
    }

    /// Returns `true` if the store is asked about something that is cached.
    pub(super) fn goes_to_store(&self) -> bool {
        self.is_known && !self.is_rejected
    }
}

impl Shard {
    /// Number of moments of refunds in all shards: many more than there are partitions with a refund while one answer is on
    /// its way.
    pub(super) const MOMENTS: usize = 1 << 12;

    /// A shard for a part of the whole capacity.
    pub(super) fn new(part: usize, capacity: usize) -> Self {
        let moments = (Self::MOMENTS * part).checked_div(capacity).unwrap_or(0);
        Self {
            partitions: BoundedMap::new(part, || {}),
            refunded_at: vec![None; moments].into(),
        }
    }

    /// A partition has had a refund.
    pub(super) fn forget(&mut self, partition: PartitionId, hash: u64, now: Timestamp) {
        let refunded_at = self.refunded_at(hash);
        *refunded_at = (*refunded_at).max(Some(now));
        self.partitions.remove(partition);
    }

    pub(super) fn was_refunded(&mut self, hash: u64, since: Timestamp) -> bool {
        self.refunded_at(hash).is_some_and(|refunded_at| since <= refunded_at)
    }

    /// The moment of the last refund to the partition of this hash, or to another one that shares the moment.
    fn refunded_at(&mut self, hash: u64) -> &mut Option<Timestamp> {
        let moment = hash as u32 as usize % self.refunded_at.len();
        &mut self.refunded_at[moment]
    }

    /// Looks a part of a plan up. Returns the records of its partition, if it is cached.
    #[inline]
    pub(super) fn look_up(&mut self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) -> Option<&[Record]> {
        let records = self.partitions.visit(part.partition()).map(|records| &**records);
        found.add(part, records, now);
        records
    }

    /// A request goes to the store.
    pub(super) fn asks(&mut self, part: PartPlan<'_>, now: Timestamp, is_stale: bool) {
        let Some(records) = self.partitions.get_mut(part.partition()) else {
            return;
        };
        for (index, charge) in part.charges().enumerate() {
            let mut about = records.iter_mut();
            if let Some(record) = about.find(|record| record.is_about(part.policies(), index)) {
                record.asks(charge.weight(), now, is_stale);
            }
        }
    }

    /// Puts new records in the place of older ones about the same policies.
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
        records.retain(|record| {
            let mut findings = findings.iter();
            let is_answered = findings.any(|finding| record.is_about(finding.policies, finding.index));
            !record.is_expired(now) && (record.is_newer_than(asked_at) || !is_answered)
        });
        for record in new {
            let is_known = records.iter().any(|known| known.policy() == record.policy());
            if !is_known && records.len() < MAX_POLICIES {
                records.push(record);
            }
        }
        if records.is_empty() {
            self.partitions.remove(partition);
            return;
        }
        if let Some(known) = self.partitions.get_mut(partition) {
            *known = records;
            return;
        }
        let is_expired = |records: &Records| records.iter().all(|record| record.is_expired(now));
        // A client that has gone on after a rejection will go on again.
        let worth = |records: &Records, goes_on: bool| (goes_on, records.iter().map(Record::asked_at).max());
        self.partitions
            .get_or_insert_with(partition, is_expired, worth, || records);
    }
}

//! A decision must include the refunds of earlier requests of the client. Settlements, and decisions about partitions
//! with pending ones, therefore use one connection per server, and a decision first sends unsent settlements. A
//! repeated call loses its order.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;
use tokio::sync::{oneshot, watch};

use super::{
    keyspace::Key,
    script::{Call, Reply},
};
use crate::{decision::Plan, error::StoreError, partition::PartitionId, sync::mutex::Mutex};

pub(super) type Settled = Result<(), StoreError>;

pub(super) type SettlementReply = Result<Reply, StoreError>;

pub(super) struct UnsentSettlement {
    pub(super) call: Call,
    pub(super) releases: bool,
    pub(super) done: oneshot::Sender<SettlementReply>,
    pub(super) _settling: watch::Receiver<u64>,
}

#[derive(Default)]
pub(super) struct Order {
    count: AtomicUsize,
    partitions: Mutex<Partitions>,
}

type Partitions = HashMap<PartitionId, Partition, RandomState>;

#[derive(Default)]
struct Partition {
    unsent: VecDeque<UnsentSettlement>,
    sent: usize,
}

pub(super) struct Unacknowledged<'a> {
    order: &'a Order,
    partition: PartitionId,
}

/// Must be written before the [`WriteLock`] is dropped, because later calls assume that it was.
type Next<'a> = (UnsentSettlement, Unacknowledged<'a>, WriteLock<'a>);

pub(super) struct BlockedRelease;

#[must_use = "others may write when this is dropped"]
pub(super) struct WriteLock<'a>(#[allow(dead_code, reason = "held for its `Drop`")] MutexGuard<'a, Partitions>);

impl Drop for Unacknowledged<'_> {
    fn drop(&mut self) {
        let mut partitions = self.order.partitions.lock();
        if let Some(partition) = partitions.get_mut(&self.partition) {
            partition.sent -= 1;
        }
        self.order.removed(&mut partitions, self.partition);
    }
}

impl Order {
    #[inline]
    pub(super) fn is_before(&self, plan: &Plan) -> bool {
        // Relaxed, because a settlement is counted before its client receives the response.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let partitions = self.partitions.lock();
        plan.parts().any(|part| partitions.contains_key(&part.partition()))
    }

    pub(super) fn add(&self, partition: PartitionId, unsent: UnsentSettlement) {
        let mut partitions = self.partitions.lock();
        self.count.fetch_add(1, Ordering::Relaxed);
        partitions.entry(partition).or_default().unsent.push_back(unsent);
    }

    pub(super) fn unsent(&self, partition: PartitionId) -> usize {
        let partitions = self.partitions.lock();
        partitions
            .get(&partition)
            .map_or(0, |settlements| settlements.unsent.len())
    }

    pub(super) fn all_unsent(&self) -> Vec<(PartitionId, Key)> {
        let partitions = self.partitions.lock();
        let unsent = partitions.iter().flat_map(|(partition, settlements)| {
            let keys = settlements.unsent.iter().map(|unsent| unsent.call.key().clone());
            keys.map(|key| (*partition, key))
        });
        unsent.collect()
    }

    pub(super) fn next(&self, partition: PartitionId, may_release: bool) -> Result<Option<Next<'_>>, BlockedRelease> {
        let mut partitions = self.partitions.lock();
        let Some(settlements) = partitions.get_mut(&partition) else {
            return Ok(None);
        };
        if !may_release && settlements.unsent.front().is_some_and(|unsent| unsent.releases) {
            return Err(BlockedRelease);
        }
        let Some(unsent) = settlements.unsent.pop_front() else {
            return Ok(None);
        };
        settlements.sent += 1;
        let order = self;
        Ok(Some((
            unsent,
            Unacknowledged { order, partition },
            WriteLock(partitions),
        )))
    }

    pub(super) fn cancel_next(&self, partition: PartitionId) -> Option<UnsentSettlement> {
        let mut partitions = self.partitions.lock();
        let unsent = partitions.get_mut(&partition)?.unsent.pop_front()?;
        self.removed(&mut partitions, partition);
        Some(unsent)
    }

    fn removed(&self, partitions: &mut Partitions, partition: PartitionId) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let is_over = |settlements: &Partition| settlements.sent == 0 && settlements.unsent.is_empty();
        if partitions.get(&partition).is_some_and(is_over) {
            partitions.remove(&partition);
        }
    }
}

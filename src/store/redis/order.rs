//! Tracks unacknowledged settlements, so that later decisions are sent after them.
//!
//! A client may send its next request as soon as the response has arrived, and the decision must then include the
//! refunds. Settlements, and decisions about partitions with pending settlements, therefore use one connection per
//! server, on which the server executes calls in the order in which they are sent. No call waits for an
//! acknowledgement: a decision that finds unsent settlements sends them first.
//!
//! A repeated call loses its order. Calls are repeated if their connection ended, their slot moved, or the server did
//! not know the script.

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

/// The reply contains the readings before the settlement.
pub(super) type SettlementReply = Result<Reply, StoreError>;

pub(super) struct UnsentSettlement {
    pub(super) call: Call,
    /// True if the settlement releases slots.
    pub(super) releases: bool,
    pub(super) done: oneshot::Sender<SettlementReply>,
    /// A receiver of [`Server::settling`](super::Server::settling).
    pub(super) _settling: watch::Receiver<u64>,
}

#[derive(Default)]
pub(super) struct Order {
    /// The settlements of all partitions.
    count: AtomicUsize,
    partitions: Mutex<Partitions>,
}

type Partitions = HashMap<PartitionId, Partition, RandomState>;

#[derive(Default)]
struct Partition {
    unsent: VecDeque<UnsentSettlement>,
    sent: usize,
}

/// Counts a sent settlement until dropped.
pub(super) struct Unacknowledged<'a> {
    order: &'a Order,
    partition: PartitionId,
}

/// Blocks other ordered writes until dropped.
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
    /// Returns `true` if a decision about the plan must be sent after a settlement.
    #[inline]
    pub(super) fn is_before(&self, plan: &Plan) -> bool {
        // A relaxed load is sufficient: a settlement is counted before its client receives the response.
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

    /// Returns the number of unsent settlements of the partition, and `true` if any of them releases slots.
    pub(super) fn unsent(&self, partition: PartitionId) -> (usize, bool) {
        let partitions = self.partitions.lock();
        partitions
            .get(&partition)
            .map_or((0, false), |Partition { unsent, .. }| {
                (unsent.len(), unsent.iter().any(|unsent| unsent.releases))
            })
    }

    /// Returns the partition and the key of each unsent settlement.
    pub(super) fn all_unsent(&self) -> Vec<(PartitionId, Key)> {
        let partitions = self.partitions.lock();
        let unsent = partitions.iter().flat_map(|(partition, settlements)| {
            let keys = settlements.unsent.iter().map(|unsent| unsent.call.key().clone());
            keys.map(|key| (*partition, key))
        });
        unsent.collect()
    }

    /// Takes the oldest unsent settlement of the partition. The settlement must be written before the [`WriteLock`] is
    /// dropped, because later calls then assume that it was written.
    pub(super) fn next(&self, partition: PartitionId) -> Option<(UnsentSettlement, Unacknowledged<'_>, WriteLock<'_>)> {
        let mut partitions = self.partitions.lock();
        let settlements = partitions.get_mut(&partition)?;
        let unsent = settlements.unsent.pop_front()?;
        settlements.sent += 1;
        let order = self;
        Some((unsent, Unacknowledged { order, partition }, WriteLock(partitions)))
    }

    /// Removes the oldest unsent settlement of the partition, which will not be sent.
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

//! Settlements that the server has not acknowledged, and the order of later decisions behind them.
//!
//! A client may send its next request as soon as it has its response, and must find the units that were given back. So
//! settlements, and the decisions about partitions that have some under way, are sent on one connection to a server, on
//! which what is sent later is carried out later. Nothing waits for an acknowledgement: a decision that finds settlements
//! unsent sends them itself, before it.
//!
//! The order does not hold for calls that the server carries out late: a call that is repeated because the
//! connection has ended, the slot has moved, or the server does not know the script yet.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;
use tokio::sync::{oneshot, watch};

use super::{keyspace::Key, script::Call};
use crate::{decision::Plan, error::StoreError, partition::PartitionId, sync::mutex::Mutex};

pub(super) type Settled = Result<(), StoreError>;

/// A settlement of one partition that was not sent yet.
pub(super) struct UnsentSettlement {
    pub(super) call: Call,
    /// True if it gives slots back.
    pub(super) releases: bool,
    pub(super) done: oneshot::Sender<Settled>,
    /// One of [`Server::settling`](super::Server::settling).
    pub(super) _settling: watch::Receiver<u64>,
}

/// The settlements that are not acknowledged.
#[derive(Default)]
pub(super) struct Order {
    /// The number of settlements in all partitions.
    count: AtomicUsize,
    partitions: Mutex<Partitions>,
}

type Partitions = HashMap<PartitionId, Partition, RandomState>;

#[derive(Default)]
struct Partition {
    unsent: VecDeque<UnsentSettlement>,
    sent: usize,
}

/// Counts a settlement that was sent, until this is dropped.
pub(super) struct Unacknowledged<'a> {
    order: &'a Order,
    partition: PartitionId,
}

/// Keeps others from sending in order, until it is dropped.
#[must_use = "others may write when this is dropped"]
pub(super) struct WriteLock<'a>(#[allow(dead_code, reason = "it is held, not read")] MutexGuard<'a, Partitions>);

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
    /// Returns `true` if a decision about the plan has to come behind a settlement.
    #[inline]
    pub(super) fn is_before(&self, plan: &Plan) -> bool {
        // A client that has its response comes after this count: the settlement was counted before.
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

    /// Returns the number of unsent settlements of the partition, and `true` if any of them gives slots back.
    pub(super) fn unsent(&self, partition: PartitionId) -> (usize, bool) {
        let partitions = self.partitions.lock();
        partitions
            .get(&partition)
            .map_or((0, false), |Partition { unsent, .. }| {
                (unsent.len(), unsent.iter().any(|unsent| unsent.releases))
            })
    }

    /// The partition and the key of each settlement that is unsent.
    pub(super) fn all_unsent(&self) -> Vec<(PartitionId, Key)> {
        let partitions = self.partitions.lock();
        let unsent = partitions.iter().flat_map(|(partition, settlements)| {
            let keys = settlements.unsent.iter().map(|unsent| unsent.call.key().clone());
            keys.map(|key| (*partition, key))
        });
        unsent.collect()
    }

    /// The oldest settlement of the partition that is unsent. It has to be written before the [`WriteLock`] is dropped: then
    /// others find it sent, and may write behind it.
    pub(super) fn next(&self, partition: PartitionId) -> Option<(UnsentSettlement, Unacknowledged<'_>, WriteLock<'_>)> {
        let mut partitions = self.partitions.lock();
        let settlements = partitions.get_mut(&partition)?;
        let unsent = settlements.unsent.pop_front()?;
        settlements.sent += 1;
        let order = self;
        Some((unsent, Unacknowledged { order, partition }, WriteLock(partitions)))
    }

    /// Takes the same settlement out of the order: it will not be sent.
    pub(super) fn cancel_next(&self, partition: PartitionId) -> Option<UnsentSettlement> {
        let mut partitions = self.partitions.lock();
        let unsent = partitions.get_mut(&partition)?.unsent.pop_front()?;
        self.removed(&mut partitions, partition);
        Some(unsent)
    }

    /// One settlement less.
    fn removed(&self, partitions: &mut Partitions, partition: PartitionId) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let is_over = |settlements: &Partition| settlements.sent == 0 && settlements.unsent.is_empty();
        if partitions.get(&partition).is_some_and(is_over) {
            partitions.remove(&partition);
        }
    }
}

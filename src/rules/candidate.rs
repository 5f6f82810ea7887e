//! Rules that are tried on a part of the callers.

use std::sync::Arc;

use super::Sets;
use crate::partition::PartitionId;

/// Rules that are tried on a part of the callers.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) percent: u8,
    /// Callers who are named, in order.
    pub(super) partitions: Arc<[PartitionId]>,
    pub(super) sets: Arc<Sets>,
}

impl Candidate {
    pub(super) fn new(percent: u8, partitions: &[PartitionId], sets: Arc<Sets>) -> Self {
        let mut partitions = Arc::<[PartitionId]>::from(partitions);
        Arc::make_mut(&mut partitions).sort_unstable();
        Self {
            percent,
            partitions,
            sets,
        }
    }

    /// Always the same callers, on every instance: their digests are spread evenly.
    pub(super) fn takes(&self, partition: Option<PartitionId>) -> bool {
        let Some(partition) = partition else {
            return false;
        };
        let number = u128::from_be_bytes(partition.to_bytes());
        number % 100 < u128::from(self.percent) || self.partitions.binary_search(&partition).is_ok()
    }
}

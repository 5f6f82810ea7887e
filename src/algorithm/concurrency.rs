//! Requests in progress: a slot is held from admission to the end of the response.

use indexmap::IndexSet;

use crate::lease::LeaseId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    /// How many slots there are.
    pub(crate) limit: u64,
}

impl Concurrency {
    /// How long a client should wait that found no slot: nobody knows when one becomes free.
    pub(crate) const RETRY_MICROS: u64 = 1_000_000;

    pub(crate) fn admits(&self, held: u64, charge: u64) -> bool {
        held + charge <= self.limit
    }
}

/// The slots that are held, each by a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots(IndexSet<LeaseId, foldhash::fast::RandomState>);

impl Slots {
    pub(crate) fn held(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn hold(&mut self, lease: LeaseId) {
        self.0.insert(lease);
    }

    pub(crate) fn release(&mut self, lease: LeaseId) {
        self.0.swap_remove(&lease);
    }
}

//! Each waiting request occupies memory, even after its client has disconnected.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{StoreError, StoreErrorKind};

pub(super) struct WaiterLimit {
    /// Lower half: current waiters. Upper half: all since the start, modulo 2³². One atomic write updates both.
    taken: AtomicU64,
    max: u32,
}

impl WaiterLimit {
    const ONE: u64 = 1;
    const ONE_BEGUN: u64 = 1 << 32;

    pub(super) fn new(max: u32) -> Self {
        Self {
            taken: AtomicU64::new(0),
            max,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.taken() >= self.max
    }

    pub(super) fn take(&self) {
        self.taken.fetch_add(Self::ONE_BEGUN + Self::ONE, Ordering::Relaxed);
    }

    pub(super) fn release(&self) {
        self.taken.fetch_sub(Self::ONE, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed) as u32
    }

    /// Counts all waiters since the start, modulo 2³².
    pub(super) fn begun(&self) -> u32 {
        (self.taken.load(Ordering::Relaxed) >> 32) as u32
    }

    pub(super) fn overloaded(&self) -> StoreError {
        let message = format!("limit of {} waiting requests reached", self.max);
        StoreError::new(StoreErrorKind::Overloaded, message)
    }
}

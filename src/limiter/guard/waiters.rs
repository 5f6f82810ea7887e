//! The places in which requests wait for the store. A request that waits holds memory, also after its client has gone, so
//! their number is bounded.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::{StoreError, StoreErrorKind};

/// All places of one layer.
pub(super) struct WaiterLimit {
    /// The lower half counts the places that are taken, the upper half those ever taken, modulo 2³²: one write for both.
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

    /// Returns `true` if no other request may wait. Requests of several threads at the same moment may be a few more.
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

    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed) as u32
    }

    /// The number of requests that have waited so far, modulo 2³².
    pub(super) fn begun(&self) -> u32 {
        (self.taken.load(Ordering::Relaxed) >> 32) as u32
    }

    pub(super) fn overloaded(&self) -> StoreError {
        let message = format!("{} requests wait for it already", self.max);
        StoreError::new(StoreErrorKind::Overloaded, message)
    }
}

impl fmt::Debug for WaiterLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaiterLimit({} of {})", self.taken(), self.max)
    }
}

//! Where requests wait for the store. Each that waits holds memory, and goes on doing so when its client has gone, so
//! places are bounded.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Guard;
use crate::error::{StoreError, StoreErrorKind};

/// All places of one layer.
pub(super) struct Places {
    /// The lower half says how many are taken, the upper half how many were ever taken, modulo 2³²: one write for both.
    taken: AtomicU64,
    most: u32,
}

impl Places {
    const ONE: u64 = 1;
    const ONE_BEGUN: u64 = 1 << 32;

    pub(super) fn new(most: u32) -> Self {
        Self {
            taken: AtomicU64::new(0),
            most,
        }
    }

    /// Whether nobody else may wait. Requests of different threads that ask at the same moment may be a few more.
    #[inline]
    pub(super) fn are_taken(&self) -> bool {
        self.taken() >= self.most
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed) as u32
    }

    /// How many requests have waited so far, modulo 2³².
    pub(super) fn begun(&self) -> u32 {
        (self.taken.load(Ordering::Relaxed) >> 32) as u32
    }

    pub(super) fn overloaded(&self) -> StoreError {
        let message = format!("{} requests wait for it already", self.most);
        StoreError::new(StoreErrorKind::Overloaded, message)
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Places({} of {})", self.taken(), self.most)
    }
}

/// The place of one request, until it is dropped.
pub(super) struct Place(Arc<Guard>);

impl Place {
    pub(super) fn take(guard: &Arc<Guard>) -> Self {
        let one = Places::ONE_BEGUN + Places::ONE;
        guard.places.taken.fetch_add(one, Ordering::Relaxed);
        Self(Arc::clone(guard))
    }

    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.places.taken.fetch_sub(Places::ONE, Ordering::Relaxed);
    }
}

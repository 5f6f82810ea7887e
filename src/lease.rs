//! Names of leases: who holds a slot of a concurrency limit.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU128,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The name of one held slot, unlike that of any other in any process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(NonZeroU128);

impl LeaseId {
    /// A name never given before: a random half for the process and a number within it.
    pub(crate) fn unique() -> Self {
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = (u128::from(*PROCESS) << 64) | u128::from(number);
        Self(NonZeroU128::new(id).unwrap_or(NonZeroU128::MAX))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({:032x})", self.0)
    }
}

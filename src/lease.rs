//! Names of leases: who holds a slot of a concurrency limit.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU64,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// A random number, so that the leases of no two processes have the same name.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// The name of one held slot, unlike that of any other in any process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(NonZeroU64);

impl LeaseId {
    /// A name never given before.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }

    /// The process and the number within it.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let id = (u128::from(*PROCESS) << 64) | u128::from(self.0.get());
        id.to_be_bytes()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({:032x})", u128::from_be_bytes(self.to_bytes()))
    }
}

//! Names of leases: a lease holds a slot of a concurrency limit.

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
pub(crate) struct LeaseId {
    process: u64,
    number: NonZeroU64,
}

/// A slot that is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    /// The moment at which it becomes free if no request gives it back, in microseconds.
    pub(crate) until: u64,
}

impl LeaseId {
    /// A name never given before.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let number = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            process: *PROCESS,
            number: number.unwrap_or(NonZeroU64::MAX),
        }
    }

    /// The process and the number within it.
    pub(crate) fn to_numbers(self) -> [u64; 2] {
        [self.process, self.number.get()]
    }

    pub(crate) fn from_numbers([process, number]: [u64; 2]) -> Option<Self> {
        let number = NonZeroU64::new(number)?;
        Some(Self { process, number })
    }

    /// The same in 16 bytes.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let [process, number] = self.to_numbers();
        let id = (u128::from(process) << 64) | u128::from(number);
        id.to_be_bytes()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({:032x})", u128::from_be_bytes(self.to_bytes()))
    }
}

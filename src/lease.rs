use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU64,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Leases of different processes must have different IDs.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId {
    process: u64,
    number: NonZeroU64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    /// When an unreleased slot expires, in microseconds.
    pub(crate) until: u64,
}

impl LeaseId {
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let number = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            process: *PROCESS,
            number: number.unwrap_or(NonZeroU64::MAX),
        }
    }

    pub(crate) fn to_numbers(self) -> [u64; 2] {
        [self.process, self.number.get()]
    }

    pub(crate) fn from_numbers([process, number]: [u64; 2]) -> Option<Self> {
        let number = NonZeroU64::new(number)?;
        Some(Self { process, number })
    }

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

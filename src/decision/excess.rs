use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The units of a late charge above its bound, for each part of the plan, as recorded by the store.
#[derive(Clone, Debug)]
pub(crate) struct Excess(Arc<[AtomicU64]>);

impl Excess {
    pub(super) fn of_parts(parts: usize) -> Self {
        Self((0..parts).map(|_| AtomicU64::new(0)).collect())
    }

    /// Replaced instead of added, because stores can repeat a transaction.
    pub(super) fn set(&self, part: usize, units: u64) {
        self.0[part].store(units, Ordering::Release);
    }

    /// The highest excess of a part.
    pub(crate) fn units(&self) -> u64 {
        let parts = self.0.iter().map(|units| units.load(Ordering::Acquire));
        parts.max().unwrap_or(0)
    }
}

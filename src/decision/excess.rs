use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The units of a late charge above its bound, for each part of the plan.
#[derive(Clone, Debug)]
pub(crate) struct Excess(Arc<[AtomicU64]>);

impl Excess {
    pub(super) fn of_parts(parts: usize) -> Self {
        Self((0..parts).map(|_| AtomicU64::new(0)).collect())
    }

    /// Stores can repeat a transaction, so nothing is added.
    pub(super) fn set(&self, part: usize, units: u64) {
        self.0[part].store(units, Ordering::Release);
    }

    pub(crate) fn units(&self) -> u64 {
        let parts = self.0.iter().map(|units| units.load(Ordering::Acquire));
        parts.max().unwrap_or(0)
    }
}

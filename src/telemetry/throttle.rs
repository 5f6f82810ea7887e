//! Bounds on the number of events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Timestamp;

/// Something that is told once for each layer.
#[derive(Debug, Default)]
pub(super) struct Once(AtomicBool);

impl Once {
    pub(super) fn is_first(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// At most one line in ten seconds about the same thing, with the number of those that had none.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Sparse {
    const PAUSE_MICROS: u64 = 10_000_000;

    /// Calls `line` with the number of lines that were left out, if one is due.
    pub(super) fn record(&self, now: Timestamp, line: impl FnOnce(u64)) {
        let (now, next) = (now.as_micros(), self.next.load(Ordering::Relaxed));
        let until = now.saturating_add(Self::PAUSE_MICROS);
        let is_due = now >= next
            && self
                .next
                .compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            line(self.suppressed.swap(0, Ordering::Relaxed));
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

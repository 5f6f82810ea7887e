use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{clock::Timestamp, mistake::Mistake};

#[derive(Debug, Default)]
pub(super) struct OnceFlags(AtomicU32);

impl OnceFlags {
    pub(super) fn is_first(&self, mistake: Mistake) -> bool {
        let bit = 1 << mistake as u32;
        self.0.load(Ordering::Relaxed) & bit == 0 && self.0.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

/// One event per ten seconds.
#[derive(Debug, Default)]
pub(super) struct EventThrottle {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl EventThrottle {
    const PAUSE_MICROS: u64 = 10_000_000;

    pub(super) const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

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

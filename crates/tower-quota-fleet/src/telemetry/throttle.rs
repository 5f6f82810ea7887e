use std::sync::atomic::{AtomicU64, Ordering};

use tower_quota::clock::Timestamp;

/// At most one event in ten seconds, with a count of suppressed ones.
#[derive(Debug, Default)]
pub(super) struct EventThrottle {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl EventThrottle {
    const PAUSE_MICROS: u64 = 10_000_000;

    pub(super) fn record(&self, now: Timestamp, event: impl FnOnce(u64)) {
        let (now, next) = (now.as_micros(), self.next.load(Ordering::Relaxed));
        let until = now.saturating_add(Self::PAUSE_MICROS);
        let take = |next| {
            self.next
                .compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed)
        };
        match now >= next && take(next).is_ok() {
            true => event(self.suppressed.swap(0, Ordering::Relaxed)),
            false => drop(self.suppressed.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

//! What operators are told: a line when something changes, never one per request, and never who the caller is.
//!
//! All events have the target `tower_quota`.

#[macro_use]
mod macros;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{
    clock::Timestamp,
    error::{StoreError, StoreErrorKind},
};

pub(crate) fn circuit_opened(error: &StoreError) {
    event!(ERROR, error = %error, "the quota store does not answer; the circuit is open");
}

pub(crate) fn circuit_closed(undecided: u64) {
    event!(WARN, undecided = %undecided, "the quota store answers again; the circuit is closed");
}

#[cfg(feature = "redis")]
pub(crate) fn connection_failed(error: &dyn std::fmt::Display) {
    event!(DEBUG, error = %error, "a connection to Redis failed");
}

/// Requests that a store gave no decision for while the circuit was not open: at most one line in ten seconds, with the
/// number of those that had none.
#[derive(Debug, Default)]
pub(crate) struct UndecidedLog {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl UndecidedLog {
    const PAUSE_MICROS: u64 = 10_000_000;

    pub(crate) fn record(&self, now: Timestamp, error: &StoreError) {
        if error.kind() == StoreErrorKind::CircuitOpen {
            return;
        }
        let (now, next) = (now.as_micros(), self.next.load(Ordering::Relaxed));
        let until = now.saturating_add(Self::PAUSE_MICROS);
        let is_due = now >= next
            && self
                .next
                .compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_due {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
        event!(WARN, error = %error, suppressed = %suppressed, "the quota store gave no decision");
    }
}

/// A warning that is given once for each layer.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    fn first(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn no_key(&self, scope: &str) {
        if self.first() {
            event!(
                WARN,
                scope = %scope,
                "a request could not be attributed to a caller; \
                 is the peer address or the user id missing from its extensions?"
            );
        }
    }

    pub(crate) fn unknown_tier(&self, scope: &str) {
        if self.first() {
            event!(WARN, scope = %scope, "a request is of a tier that is not configured; the first tier is used");
        }
    }
}

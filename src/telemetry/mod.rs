//! What operators are told: a line when something changes, never one per request, and never who the caller is.
//!
//! All events have the target `tower_quota`.

#[macro_use]
mod macros;

use std::{
    fmt::Display,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    clock::Timestamp,
    error::{StoreError, StoreErrorKind},
    quota::QuotaPolicy,
};

pub(crate) fn circuit_opened(error: &StoreError) {
    event!(ERROR, error = %error, "the quota store does not answer; the circuit is open");
}

pub(crate) fn circuit_closed(undecided: u64) {
    event!(WARN, undecided = %undecided, "the quota store answers again; the circuit is closed");
}

pub(crate) fn lone_large_window(scope: &str, window: Duration) {
    event!(
        WARN,
        scope = %scope,
        window_seconds = %window.as_secs(),
        "the shortest window is longer than an hour, so that a caller may use up all of it at once; \
         add a policy with a short window"
    );
}

#[cfg(feature = "redis")]
pub(crate) fn connection_failed(error: &dyn Display) {
    event!(DEBUG, error = %error, "a connection to Redis failed");
}

/// At most one line in ten seconds about the same thing, with the number of those that had none.
#[derive(Debug, Default)]
struct Sparse {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Sparse {
    const PAUSE_MICROS: u64 = 10_000_000;

    /// Calls `line` with the number of lines that were left out, if one is due.
    fn record(&self, now: Timestamp, line: impl FnOnce(u64)) {
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

/// Requests that a store gave no decision for while the circuit was not open.
#[derive(Debug, Default)]
pub(crate) struct UndecidedLog(Sparse);

impl UndecidedLog {
    pub(crate) fn record(&self, now: Timestamp, error: &StoreError) {
        if error.kind() == StoreErrorKind::CircuitOpen {
            return;
        }
        self.0.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "the quota store gave no decision");
        });
    }
}

/// Changes of charges that were given up: charges stand as they are, and leases end by themselves.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct UnsettledLog(Sparse);

#[cfg(feature = "redis")]
impl UnsettledLog {
    pub(crate) fn record(&self, now: Timestamp, error: &StoreError) {
        self.0.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "a charge could not be settled");
        });
    }
}

/// Requests that wait for their turn in a leaky bucket.
#[derive(Debug, Default)]
pub(crate) struct QueueLog(Sparse);

impl QueueLog {
    pub(crate) fn record(&self, now: Timestamp, scope: &str, delay: Duration) {
        self.0.record(now, |suppressed| {
            event!(
                DEBUG,
                scope = %scope,
                delay_seconds = %delay.as_secs_f64(),
                suppressed = %suppressed,
                "a request waits for its turn"
            );
        });
    }
}

/// Requests that a policy in shadow mode would have refused.
#[derive(Debug, Default)]
pub(crate) struct ShadowLog(Sparse);

impl ShadowLog {
    pub(crate) fn record(&self, now: Timestamp, scope: &str, policy: &str) {
        self.0.record(now, |suppressed| {
            event!(
                INFO,
                scope = %scope,
                policy = %policy,
                suppressed = %suppressed,
                "a policy in shadow mode would have refused a request"
            );
        });
    }
}

/// Users whose tier could not be looked up: they keep the one they had, or have none.
#[derive(Debug, Default)]
pub(crate) struct TierLog(Sparse);

impl TierLog {
    pub(crate) fn record(&self, now: Timestamp, error: &dyn Display) {
        self.0.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "the tier of a user could not be looked up");
        });
    }
}

/// What one layer has told already.
#[derive(Debug, Default)]
pub(crate) struct LayerLog {
    pub(crate) content: Once,
    pub(crate) cost: Once,
    pub(crate) no_key: Once,
    pub(crate) queue: QueueLog,
    pub(crate) shadow: ShadowLog,
    pub(crate) unknown_tier: Once,
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

    pub(crate) fn cost_above_capacity(&self, scope: &str, policy: &QuotaPolicy, cost: u64) {
        if self.first() {
            event!(
                WARN,
                scope = %scope,
                policy = %policy.name(),
                cost = %cost,
                capacity = %policy.burst_capacity(),
                "a request costs more than its policy ever lets pass and is refused for good"
            );
        }
    }

    pub(crate) fn uncounted_content(&self, scope: &str) {
        if self.first() {
            event!(
                WARN,
                scope = %scope,
                "the content of a request has no known length and is not counted; \
                 is `RequestContentLayer` missing outside of the rate limit?"
            );
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn streamed_refusal(&self) {
        if self.first() {
            event!(
                WARN,
                "the body of a refusal is a stream, which is not waited for; the usual response is given instead"
            );
        }
    }

    pub(crate) fn unknown_tier(&self, scope: &str) {
        if self.first() {
            event!(WARN, scope = %scope, "a request is of a tier that is not configured; the first tier is used");
        }
    }
}

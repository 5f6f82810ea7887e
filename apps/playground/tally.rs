//! Counts of requests by outcome, since the last message to the page.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};
use tower_quota::{Decision, Outcome};

/// The callers of the page.
pub(crate) const CALLERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: AtomicU64,
    rejected: AtomicU64,
    /// Admitted uncounted, without a decision of the store.
    uncounted: AtomicU64,
    /// Rejected without a decision of the store.
    failed: AtomicU64,
    /// Not decided yet, or queued.
    waiting: AtomicU64,
}

/// A request in progress, which counts as waiting until it is dropped.
#[derive(Debug)]
#[must_use = "it counts as waiting until it is dropped"]
pub(crate) struct UnderWay<'a>(&'a Tally);

impl Tally {
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.waiting.fetch_add(1, Relaxed);
        UnderWay(self)
    }

    /// Returns the counts since the last call, and the number of waiting requests.
    pub(crate) fn take(&self) -> Value {
        json!({
            "passed": self.passed.swap(0, Relaxed),
            "rejected": self.rejected.swap(0, Relaxed),
            "uncounted": self.uncounted.swap(0, Relaxed),
            "failed": self.failed.swap(0, Relaxed),
            "waiting": self.waiting.load(Relaxed),
        })
    }
}

impl UnderWay<'_> {
    pub(crate) fn end(self, decision: Option<&Decision>) {
        let count = match decision.map(Decision::outcome) {
            Some(Outcome::Allowed) => &self.0.passed,
            Some(Outcome::FailedOpen) => &self.0.uncounted,
            Some(Outcome::FailedClosed) => &self.0.failed,
            Some(outcome) if outcome.is_admitted() => &self.0.uncounted,
            _ => &self.0.rejected,
        };
        count.fetch_add(1, Relaxed);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

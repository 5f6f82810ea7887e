use std::{fmt::Display, sync::OnceLock};

use super::{metrics::Each, process, throttle::EventThrottle};
use crate::clock::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    Failed,
    Full,
    Unanswered,
}

metrics! {
    struct TierMetrics {
        unresolved: Each<Unresolved> = "tower_quota_tier_unresolved_total",
            "Requests that proceeded while the tier of their user was unknown",
            ("reason", &[
                (Unresolved::Failed, "failed"),
                (Unresolved::Full, "full"),
                (Unresolved::Unanswered, "unanswered"),
            ]);
    }
}

#[derive(Debug, Default)]
pub(crate) struct TierTelemetry {
    failures: EventThrottle,
    metrics: OnceLock<TierMetrics>,
}

impl TierTelemetry {
    pub(crate) fn metrics(&self) -> &TierMetrics {
        self.metrics.get_or_init(|| {
            process::start();
            TierMetrics::new("")
        })
    }

    pub(crate) fn failed(&self, now: Timestamp, error: &dyn Display) {
        throttled!(self.failures, at now, WARN, error = %error, "tier lookup failed");
    }

    pub(crate) fn waits(&self) {
        self.metrics();
        process::tier_waits().increment(1);
    }
}

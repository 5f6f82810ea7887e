//! Events and metrics of a layer that looks up tiers.

use std::fmt::Display;

use super::{labels::Unresolved, meters::TierMeters, throttle::EventThrottle};
use crate::clock::Timestamp;

/// Telemetry of one layer that looks up tiers.
#[derive(Debug, Default)]
pub(crate) struct TierTelemetry {
    failures: EventThrottle,
    meters: TierMeters,
}

impl TierTelemetry {
    /// Users whose tier could not be looked up: they keep the one they had, or are unknown.
    pub(crate) fn failed(&self, now: Timestamp, error: &dyn Display) {
        self.failures.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "the tier of a user could not be looked up");
        });
    }

    /// A request waits for a look-up.
    pub(crate) fn waits(&self) {
        self.meters.waits();
    }

    pub(crate) fn unresolved(&self, reason: Unresolved) {
        self.meters.unresolved(reason);
    }
}

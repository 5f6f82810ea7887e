use std::fmt::Display;

use super::{labels::Unresolved, meters::TierMeters, throttle::EventThrottle};
use crate::clock::Timestamp;

#[derive(Debug, Default)]
pub(crate) struct TierTelemetry {
    failures: EventThrottle,
    meters: TierMeters,
}

impl TierTelemetry {
    pub(crate) fn failed(&self, now: Timestamp, error: &dyn Display) {
        self.failures.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "tier lookup failed");
        });
    }

    pub(crate) fn waits(&self) {
        self.meters.waits();
    }

    pub(crate) fn unresolved(&self, reason: Unresolved) {
        self.meters.unresolved(reason);
    }
}

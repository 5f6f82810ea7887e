//! Events and metrics of a layer that looks up tiers.

use std::fmt::Display;

use super::{meters::TierMeters, throttle::EventThrottle};
use crate::clock::Timestamp;

/// The reason why a request goes on although the tier of its user is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The look-up has failed, or one has a moment ago.
    Failed,
    /// There are too many look-ups, or too many requests that wait for them.
    Full,
    /// The look-up goes on, and the request waits no longer.
    Unanswered,
}

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

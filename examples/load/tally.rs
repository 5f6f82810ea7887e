//! What has been answered, and how long it took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tower_quota::Outcome;

/// A microsecond to a minute, to three digits.
const RANGE: (u64, u64) = (1_000, 60_000_000_000);

/// Nanoseconds from the moment at which a request was due to its response.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Self {
        Self(Histogram::new_with_bounds(RANGE.0, RANGE.1, 3).expect("the range is sound"))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time within which so many percent were answered.
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos() as u64);
    }

    fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the ranges are the same");
    }
}

/// The responses of a time.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) allowed: Latencies,
    pub(crate) refused: Latencies,
    /// Passed on without a decision.
    pub(crate) failed_open: Latencies,
    pub(crate) last_failed_open: Option<Instant>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            allowed: Latencies::new(),
            refused: Latencies::new(),
            failed_open: Latencies::new(),
            last_failed_open: None,
        }
    }

    pub(crate) fn record(&mut self, outcome: Outcome, due: Instant, answered: Instant) {
        let latencies = match outcome {
            Outcome::Allowed => &mut self.allowed,
            Outcome::Refused => &mut self.refused,
            // No layer of this program does anything else.
            _ => {
                self.last_failed_open = self.last_failed_open.max(Some(answered));
                &mut self.failed_open
            }
        };
        latencies.record(answered.saturating_duration_since(due));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.allowed.add(&other.allowed);
        self.refused.add(&other.refused);
        self.failed_open.add(&other.failed_open);
        self.last_failed_open = self.last_failed_open.max(other.last_failed_open);
    }

    /// Of all responses, whatever they say.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut all = self.allowed.clone();
        all.add(&self.refused);
        all.add(&self.failed_open);
        all
    }

    pub(crate) fn decided(&self) -> u64 {
        self.allowed.count() + self.refused.count()
    }

    pub(crate) fn answered(&self) -> u64 {
        self.decided() + self.failed_open.count()
    }
}

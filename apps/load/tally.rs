//! Counts and latencies of responses.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tower_quota::Outcome;

/// From 1 µs to 1 minute. Two significant digits keep the histogram small, because reading it every second disturbs the
/// load.
const RANGE: (u64, u64) = (1_000, 60_000_000_000);

/// Nanoseconds from the due time of a request to its response.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Self {
        Self(Histogram::new_with_bounds(RANGE.0, RANGE.1, 2).expect("the range is valid"))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    fn record(&mut self, latency: Duration, requests: u64) {
        self.0.saturating_record_n(latency.as_nanos() as u64, requests);
    }

    fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the ranges are the same");
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) allowed: Latencies,
    pub(crate) rejected: Latencies,
    /// Admitted without a decision.
    pub(crate) failed_open: Latencies,
    pub(crate) last_failed_open: Option<Instant>,
    /// Never sent. Counted with their waiting time, which underestimates their latency.
    given_up: Latencies,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            allowed: Latencies::new(),
            rejected: Latencies::new(),
            failed_open: Latencies::new(),
            last_failed_open: None,
            given_up: Latencies::new(),
        }
    }

    pub(crate) fn record(&mut self, outcome: Outcome, due: Instant, answered: Instant) {
        let latencies = match outcome {
            Outcome::Allowed => &mut self.allowed,
            Outcome::Rejected => &mut self.rejected,
            // The layers of this program have no other outcomes.
            _ => {
                self.last_failed_open = self.last_failed_open.max(Some(answered));
                &mut self.failed_open
            }
        };
        latencies.record(answered.saturating_duration_since(due), 1);
    }

    pub(crate) fn give_up(&mut self, requests: u32, due: Instant) {
        self.given_up.record(due.elapsed(), requests.into());
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.allowed.add(&other.allowed);
        self.rejected.add(&other.rejected);
        self.failed_open.add(&other.failed_open);
        self.given_up.add(&other.given_up);
        self.last_failed_open = self.last_failed_open.max(other.last_failed_open);
    }

    /// The latencies of all requests, regardless of the outcome.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut all = self.allowed.clone();
        all.add(&self.rejected);
        all.add(&self.failed_open);
        all.add(&self.given_up);
        all
    }

    pub(crate) fn decided(&self) -> u64 {
        self.allowed.count() + self.rejected.count()
    }

    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.count()
    }

    pub(crate) fn answered(&self) -> u64 {
        self.decided() + self.failed_open.count()
    }
}

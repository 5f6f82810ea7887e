//! Reasons for undecided requests, from the crate's counter. Only with the feature `metrics`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(feature = "metrics")]
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SetRecorderError, SharedString, Unit,
    set_global_recorder,
};

/// The undecided requests by reason, since the start of the process.
#[derive(Clone, Default)]
pub(crate) struct Undecided(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Undecided {
    /// Starts counting. Can be called once per process.
    #[cfg(feature = "metrics")]
    pub(crate) fn count() -> Result<Self, SetRecorderError<Self>> {
        let counters = Self::default();
        set_global_recorder(counters.clone()).map(|()| counters)
    }
}

/// Formats `12 timed_out, 3 circuit_open`, or nothing without undecided requests.
impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counters
            .iter()
            .map(|(reason, count)| (count.load(Ordering::Relaxed), reason));
        for (number, (count, reason)) in counts.filter(|(count, _)| *count > 0).enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{count} {reason}")?;
        }
        Ok(())
    }
}

#[cfg(feature = "metrics")]
impl Recorder for Undecided {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let reason = key.labels().find(|label| label.key() == "reason");
        let Some(reason) = reason.filter(|_| key.name() == "tower_quota_undecided_total") else {
            return Counter::noop();
        };
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Counter::from_arc(Arc::clone(counters.entry(reason.value().to_owned()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

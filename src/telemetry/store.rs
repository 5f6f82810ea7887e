use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tracing::{Instrument, debug_span, instrument::Instrumented};

use super::{
    facade::{Counter, Gauge, Histogram, METRICS},
    growth::Growth,
    layer::MODES,
    metrics::{Each, OneMore},
    process,
    series::Series,
    throttle::{EventThrottle, OnceFlags},
};
use crate::{
    breaker::CircuitTelemetry,
    clock::{Clock, Timestamp},
    decision::Outcome,
    error::{StoreError, StoreErrorKind},
    sync::mutex::Mutex,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateBatch {
    Kept,
    Returned,
    Unknown,
}

metrics! {
    struct StoreMetrics {
        circuit_open: Gauge = "tower_quota_circuit_open", "Open circuit breakers";
        failed_while_closed: Each<Outcome> = "tower_quota_failed_while_closed_total",
            "Requests undecided while the circuit was closed, by failure mode", ("mode", &MODES);
        late_batches: Each<LateBatch> = "tower_quota_late_batches_total",
            "Prefetched batches whose call missed the deadline or failed, by result",
            ("fate", &[
                (LateBatch::Kept, "kept"),
                (LateBatch::Returned, "returned"),
                (LateBatch::Unknown, "unknown"),
            ]);
        new_partitions: Counter = "tower_quota_new_partitions_total",
            "Charges to partitions without state in a remote store";
        rejection_cache_hits: Counter = "tower_quota_rejection_cache_hits_total",
            "Requests rejected without a store call";
        seconds: Histogram = "tower_quota_store_seconds", "Time until the store responded or the deadline passed";
        slots_held: Gauge = "tower_quota_slots_held", "Requests that hold a slot of a concurrency limit";
        state_lost: Counter = "tower_quota_state_lost_total", "Exhausted partitions whose state the store lost";
        undecided: Each<StoreErrorKind> = "tower_quota_undecided_total",
            "Requests undecided by the store, by reason",
            ("reason", &[
                (StoreErrorKind::CircuitOpen, "circuit_open"),
                (StoreErrorKind::Failed, "failed"),
                (StoreErrorKind::OutOfMemory, "out_of_memory"),
                (StoreErrorKind::Overloaded, "overloaded"),
                (StoreErrorKind::TimedOut, "timed_out"),
                (StoreErrorKind::Unavailable, "unavailable"),
                (StoreErrorKind::Unreachable, "unreachable"),
            ]);
        units: Series<2> = "tower_quota_units_total", "Custom units, estimated and actual", ["unit", "amount"];
    }
}

#[derive(Debug)]
pub(crate) struct StoreTelemetry {
    scope: Box<str>,
    told: OnceFlags,
    undecided: EventThrottle,
    state_lost: EventThrottle,
    leak: Mutex<Leak>,
    growth: Arc<Growth>,
    metrics: OnceLock<StoreMetrics>,
    /// Set while the circuit is open. Layers of the same scope share the gauge.
    circuit_open: Mutex<Option<OneMore>>,
}

#[derive(Debug, Default)]
struct Leak {
    since: Timestamp,
    last: Timestamp,
    undecided: u64,
    waited: u32,
}

impl Leak {
    const PERIOD_MICROS: u64 = 10_000_000;

    /// If undecided requests continue for a period, calls `line` with their number, the elapsed seconds, and the number
    /// of requests that waited.
    fn record(&mut self, now: Timestamp, waited: u32, line: impl FnOnce(u64, u64, u32)) {
        if self.undecided == 0 || now.micros_since(self.last) >= Self::PERIOD_MICROS {
            *self = Self {
                since: now,
                waited,
                ..Self::default()
            };
        }
        self.undecided += 1;
        self.last = now;
        let micros = now.micros_since(self.since);
        if micros >= Self::PERIOD_MICROS {
            line(self.undecided, micros / 1_000_000, waited.wrapping_sub(self.waited));
            self.undecided = 0;
        }
    }
}

impl StoreTelemetry {
    pub(crate) fn new(scope: &str, identity: Option<u64>) -> Self {
        let log = Self {
            scope: scope.into(),
            told: OnceFlags::default(),
            undecided: EventThrottle::default(),
            state_lost: EventThrottle::default(),
            leak: Mutex::default(),
            growth: Growth::new(scope, identity),
            metrics: OnceLock::new(),
            circuit_open: Mutex::default(),
        };
        // Not kept, because a recorder may be installed until the first request.
        drop(log.new_metrics());
        log
    }

    fn new_metrics(&self) -> StoreMetrics {
        process::start();
        StoreMetrics::new(&self.scope)
    }

    #[inline]
    pub(crate) fn metrics(&self) -> &StoreMetrics {
        self.metrics.get_or_init(|| self.new_metrics())
    }

    /// Recorded as 0, because reading the clock takes as long as the call itself.
    pub(crate) fn answered_at_once(&self) {
        self.metrics().seconds.record(Duration::ZERO);
    }

    pub(crate) fn answered(&self, asked: Option<Timestamp>, clock: &Clock) {
        let micros = asked.map_or(0, |asked| clock.now().micros_since(asked));
        self.metrics().seconds.record(Duration::from_micros(micros));
    }

    pub(crate) fn created(&self) {
        self.metrics().new_partitions.increment(1);
        self.growth.created();
    }

    pub(crate) fn state_lost(&self, now: Timestamp) {
        self.metrics().state_lost.increment(1);
        throttled!(
            self.state_lost, at now, WARN,
            scope = %self.scope,
            "quota store lost the state of an exhausted caller; the caller has a full quota again"
        );
    }

    pub(crate) fn undecided(&self, now: Timestamp, error: &StoreError) {
        self.metrics().undecided.increment(error.kind());
        match error.kind() {
            StoreErrorKind::CircuitOpen => return,
            StoreErrorKind::OutOfMemory => return self.growth.out_of_memory(error),
            _ => {}
        }
        throttled!(
            self.undecided, at now, WARN,
            scope = %self.scope,
            error = %error,
            "quota store made no decision"
        );
    }

    /// `waited` is modulo 2³².
    pub(crate) fn failed(&self, now: Timestamp, error: &StoreError, outcome: Outcome, waited: u32) {
        // While the circuit is open, probe calls and calls from before the outage fail with other errors. The error of
        // a server with its own circuit says nothing about the others.
        if error.kind() == StoreErrorKind::CircuitOpen || self.circuit_open.lock().is_some() {
            return;
        }
        self.metrics().failed_while_closed.increment(outcome);
        if is_forbidden(error) {
            let requests = match outcome {
                Outcome::FailedClosed => "get a 503",
                _ => "pass unlimited",
            };
            mistake!(
                once by self, NoPermission,
                requests = %requests,
                error = %error,
                "Redis ACL denies a command or key that the limits require, so requests are undecided; grant the \
                 store's user the documented permissions"
            );
        }
        let mut leak = self.leak.lock();
        leak.record(now, waited, |undecided, seconds, waited| {
            event!(
                WARN,
                scope = %self.scope,
                error = %error,
                undecided = %undecided,
                waited = %waited,
                seconds = %seconds,
                "requests undecided while the circuit is closed"
            );
        });
    }

    pub(crate) fn slots_held(&self) -> OneMore {
        OneMore::on(&self.metrics().slots_held)
    }

    pub(crate) fn units(&self, unit: &str, expected: u64, used: u64) {
        self.metrics().units.add([unit, "expected"], expected);
        self.metrics().units.add([unit, "used"], used);
    }

    pub(crate) fn waiting<F: Future>(&self, decision: F) -> Instrumented<F> {
        decision.instrument(debug_span!(target: "tower_quota", "quota_decision", scope = %self.scope))
    }
}

/// `None` without metrics, to save reading the clock.
pub(crate) fn stopwatch(clock: &Clock) -> Option<Timestamp> {
    METRICS.then(|| clock.now())
}

/// The wording for errors within scripts depends on the version of the server.
fn is_forbidden(error: &StoreError) -> bool {
    let words = [
        "NoPerm",
        "NOPERM",
        "executing the script can't",
        "ACL failure in script",
    ];
    let text = error.to_string();
    error.kind() == StoreErrorKind::Failed && words.iter().any(|words| text.contains(words))
}

impl CircuitTelemetry for StoreTelemetry {
    fn opened(&self, error: &StoreError) {
        let open = || OneMore::on(&self.metrics().circuit_open);
        self.circuit_open.lock().get_or_insert_with(open);
        event!(ERROR, scope = %self.scope, error = %error, "circuit opened: quota store not responding");
    }

    fn closed(&self, unsent: u64) {
        *self.circuit_open.lock() = None;
        event!(WARN, scope = %self.scope, unsent = %unsent, "circuit closed: quota store responding again");
    }
}

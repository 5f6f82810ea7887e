use std::{sync::Arc, time::Duration};

use super::{
    HeldSlots, InSpan, Stopwatch,
    growth::Growth,
    labels::LateBatch,
    meters::StoreMeters,
    throttle::{EventThrottle, OnceFlags},
};
use crate::{
    breaker::CircuitTelemetry,
    clock::{Clock, Timestamp},
    decision::Outcome,
    error::{StoreError, StoreErrorKind},
    mistake::Mistake,
    sync::mutex::Mutex,
};

#[derive(Debug)]
pub(crate) struct StoreTelemetry {
    scope: Box<str>,
    told: OnceFlags,
    undecided: EventThrottle,
    state_lost: EventThrottle,
    leak: Mutex<Leak>,
    growth: Arc<Growth>,
    meters: StoreMeters,
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
        Self {
            scope: scope.into(),
            told: OnceFlags::default(),
            undecided: EventThrottle::default(),
            state_lost: EventThrottle::default(),
            leak: Mutex::default(),
            growth: Growth::new(scope, identity),
            meters: StoreMeters::new(scope),
        }
    }

    /// Recorded as 0, because reading the clock takes as long as the call itself.
    pub(crate) fn answered_at_once(&self) {
        self.meters.answered(&self.scope, Duration::ZERO);
    }

    pub(crate) fn answered(&self, asked: Stopwatch, clock: &Clock) {
        self.meters.answered(&self.scope, asked.elapsed(clock));
    }

    pub(crate) fn remembered(&self) {
        self.meters.remembered(&self.scope);
    }

    pub(crate) fn late_batch(&self, fate: LateBatch) {
        self.meters.late_batch(&self.scope, fate);
    }

    pub(crate) fn created(&self) {
        self.meters.created(&self.scope);
        self.growth.created();
    }

    pub(crate) fn state_lost(&self, now: Timestamp) {
        self.meters.state_lost(&self.scope);
        self.state_lost.record(now, |suppressed| {
            event!(
                WARN,
                scope = %self.scope,
                suppressed = %suppressed,
                "quota store lost the state of an exhausted caller; the caller has a full quota again"
            );
        });
    }

    pub(crate) fn undecided(&self, now: Timestamp, error: &StoreError) {
        self.meters.undecided(&self.scope, error.kind());
        match error.kind() {
            StoreErrorKind::CircuitOpen => return,
            StoreErrorKind::OutOfMemory => return self.growth.out_of_memory(error),
            _ => {}
        }
        self.undecided.record(now, |suppressed| {
            event!(
                WARN,
                scope = %self.scope,
                error = %error,
                suppressed = %suppressed,
                "quota store made no decision"
            );
        });
    }

    /// `waited` is modulo 2³².
    pub(crate) fn failed(&self, now: Timestamp, error: &StoreError, outcome: Outcome, waited: u32) {
        // While the circuit is open, probe calls and calls from before the outage fail with other errors. The error of
        // a server with its own circuit says nothing about the others.
        if error.kind() == StoreErrorKind::CircuitOpen || self.meters.is_circuit_open() {
            return;
        }
        self.meters.failed_while_closed(&self.scope, outcome);
        if is_forbidden(error) && self.told.is_first(Mistake::NoPermission) {
            let requests = match outcome {
                Outcome::FailedClosed => "get a 503",
                _ => "pass unlimited",
            };
            mistake!(
                NoPermission,
                scope = %self.scope,
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

    pub(crate) fn slots_held(&self) -> HeldSlots {
        self.meters.slots_held(&self.scope)
    }

    pub(crate) fn units(&self, unit: &str, expected: u64, used: u64) {
        self.meters.units(&self.scope, unit, expected, used);
    }

    pub(crate) fn waiting<F: Future>(&self, decision: F) -> InSpan<F> {
        in_span!("quota_decision", scope = self.scope, decision)
    }
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
        self.meters.circuit_opened(&self.scope);
        event!(ERROR, scope = %self.scope, error = %error, "circuit opened: quota store not responding");
    }

    fn closed(&self, unsent: u64) {
        self.meters.circuit_closed(&self.scope);
        event!(WARN, scope = %self.scope, unsent = %unsent, "circuit closed: quota store responding again");
    }
}

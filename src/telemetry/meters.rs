//! Numbers for operators, through the `metrics` facade.
//!
//! Handles are made at the first use and kept: nothing is looked up or allocated for a request afterwards.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::{outcome_name, rejecting_policy, series::Series};
use crate::{
    clock::{Clock, Timestamp},
    error::StoreErrorKind,
    exchange::{Decision, Outcome},
};

const CIRCUIT_OPEN: &str = "tower_quota_circuit_open";
const CONNECTION_FAILURES: &str = "tower_quota_connection_failures_total";
#[cfg(feature = "privacy-pass")]
const CREDENTIALS: &str = "tower_quota_credentials_total";
const DECISIONS: &str = "tower_quota_decisions_total";
const DENIAL_CACHE_HITS: &str = "tower_quota_denial_cache_hits_total";
const EVICTIONS: &str = "tower_quota_evictions_total";
const FAILED: &str = "tower_quota_failed_total";
const FAILED_WHILE_CLOSED: &str = "tower_quota_failed_while_closed_total";
const LOST_NODES: &str = "tower_quota_lost_nodes";
const NEVER_FITS: &str = "tower_quota_never_fits_total";
const QUEUE_WAIT: &str = "tower_quota_queue_wait_seconds";
const SHADOW_REJECTIONS: &str = "tower_quota_shadow_rejections_total";
const SLOTS_HELD: &str = "tower_quota_slots_held";
const STORE: &str = "tower_quota_store_seconds";
#[cfg(feature = "privacy-pass")]
const TOKENS: &str = "tower_quota_tokens_total";
const UNATTRIBUTED: &str = "tower_quota_unattributed_total";
const UNCOUNTED_CONTENT: &str = "tower_quota_uncounted_content_total";
const UNDECIDED: &str = "tower_quota_undecided_total";
const UNKNOWN_TIER: &str = "tower_quota_unknown_tier_total";
const UNSETTLED: &str = "tower_quota_unsettled_total";

const COUNTERS: [(&str, &str); 13] = [
    (CONNECTION_FAILURES, "Connections to Redis that could not be opened"),
    (DECISIONS, "Requests by what was decided about them"),
    (
        DENIAL_CACHE_HITS,
        "Requests that were rejected without asking the store",
    ),
    (EVICTIONS, "Partitions that a full memory store has evicted"),
    (FAILED, "Requests that no store decided, by the failure mode"),
    (
        FAILED_WHILE_CLOSED,
        "Requests that no store decided although the circuit was closed, by the failure mode",
    ),
    (NEVER_FITS, "Requests that cost more than a policy ever lets pass"),
    (
        SHADOW_REJECTIONS,
        "Requests that a policy in shadow mode would have rejected",
    ),
    (UNATTRIBUTED, "Requests without a key"),
    (
        UNCOUNTED_CONTENT,
        "Requests whose content has no known length and is not counted",
    ),
    (UNDECIDED, "Requests that the store gave no decision for, by the reason"),
    (UNKNOWN_TIER, "Requests of a tier that is not configured"),
    (UNSETTLED, "Settlements that a store has dropped"),
];

const GAUGES: [(&str, &str); 3] = [
    (CIRCUIT_OPEN, "Circuit breakers that are open"),
    (
        LOST_NODES,
        "Nodes of Redis clusters that are not asked because they do not answer",
    ),
    (
        SLOTS_HELD,
        "Requests that hold a slot of a limit of concurrent requests",
    ),
];

const HISTOGRAMS: [(&str, &str); 2] = [
    (QUEUE_WAIT, "How long requests in a leaky bucket wait for their turn"),
    (STORE, "Time until the store answered or the deadline passed"),
];

/// Tells the recorder what there is. What can be there is there from the beginning, with a 0: what appears with its
/// first count looks as if it had never risen.
fn register() {
    for (name, description) in COUNTERS {
        describe_counter!(name, Unit::Count, description);
    }
    for (name, description) in GAUGES {
        describe_gauge!(name, Unit::Count, description);
    }
    for (name, description) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, description);
    }
    for name in [CONNECTION_FAILURES, EVICTIONS, UNSETTLED] {
        counter!(name).increment(0);
    }
    gauge!(LOST_NODES).increment(0.0);
}

/// One more of something that is rare and that no layer is known of.
fn count(name: &'static str) {
    counter!(name).increment(1);
}

#[cfg(feature = "redis")]
pub(super) fn connection_failed() {
    count(CONNECTION_FAILURES);
}

/// Counted as long as what is returned.
#[cfg(feature = "redis")]
pub(super) fn node_lost() -> LostNode {
    LostNode {
        _one: One::more(gauge!(LOST_NODES)),
    }
}

pub(super) fn evicted() {
    count(EVICTIONS);
}

#[cfg(feature = "redis")]
pub(super) fn unsettled() {
    count(UNSETTLED);
}

fn scoped(scope: &str) -> Vec<Label> {
    vec![Label::new("scope", scope.to_owned())]
}

fn by_mode(scope: &str, outcome: Outcome) -> Vec<Label> {
    let mut labels = scoped(scope);
    let mode = if outcome == Outcome::FailedClosed {
        "closed"
    } else {
        "open"
    };
    labels.push(Label::from_static_parts("mode", mode));
    labels
}

/// The counters of one layer.
#[derive(Debug, Default)]
pub(super) struct LayerMeters(OnceLock<LayerHandles>);

#[derive(Debug)]
struct LayerHandles {
    decisions: Series,
    failed_closed: Counter,
    failed_open: Counter,
    never_fits: Counter,
    queue_wait: Histogram,
    shadow_rejections: Series,
    unattributed: Counter,
    uncounted_content: Counter,
    unknown_tier: Counter,
}

impl LayerHandles {
    fn new(scope: &str) -> Self {
        register();
        let failed = |outcome| counter!(FAILED, by_mode(scope, outcome));
        Self {
            decisions: Series::default(),
            failed_closed: failed(Outcome::FailedClosed),
            failed_open: failed(Outcome::FailedOpen),
            never_fits: counter!(NEVER_FITS, scoped(scope)),
            queue_wait: histogram!(QUEUE_WAIT, scoped(scope)),
            shadow_rejections: Series::default(),
            unattributed: counter!(UNATTRIBUTED, scoped(scope)),
            uncounted_content: counter!(UNCOUNTED_CONTENT, scoped(scope)),
            unknown_tier: counter!(UNKNOWN_TIER, scoped(scope)),
        }
    }
}

impl LayerMeters {
    fn handles(&self, scope: &str) -> &LayerHandles {
        self.0.get_or_init(|| LayerHandles::new(scope))
    }

    pub(super) fn decided(&self, scope: &str, tier: &str, decision: &Decision) {
        let handles = self.handles(scope);
        let names = [tier, rejecting_policy(decision), outcome_name(decision.outcome())];
        handles.decisions.increment(names, |[tier, policy, outcome]| {
            let mut labels = scoped(scope);
            labels.push(Label::new("tier", tier.to_owned()));
            labels.push(Label::new("policy", policy.to_owned()));
            labels.push(Label::new("outcome", outcome.to_owned()));
            counter!(DECISIONS, labels)
        });
        match decision.outcome() {
            Outcome::FailedClosed => handles.failed_closed.increment(1),
            Outcome::FailedOpen => handles.failed_open.increment(1),
            _ => {}
        }
    }

    pub(super) fn never_fits(&self, scope: &str) {
        self.handles(scope).never_fits.increment(1);
    }

    pub(super) fn queue_wait(&self, scope: &str, wait: Duration) {
        self.handles(scope).queue_wait.record(wait);
    }

    pub(super) fn would_reject(&self, scope: &str, tier: &str, policy: &str) {
        let names = [tier, policy, "rejected"];
        let rejections = &self.handles(scope).shadow_rejections;
        rejections.increment(names, |[tier, policy, _]| {
            let mut labels = scoped(scope);
            labels.push(Label::new("tier", tier.to_owned()));
            labels.push(Label::new("policy", policy.to_owned()));
            counter!(SHADOW_REJECTIONS, labels)
        });
    }

    pub(super) fn unattributed(&self, scope: &str) {
        self.handles(scope).unattributed.increment(1);
    }

    pub(super) fn uncounted_content(&self, scope: &str) {
        self.handles(scope).uncounted_content.increment(1);
    }

    pub(super) fn unknown_tier(&self, scope: &str) {
        self.handles(scope).unknown_tier.increment(1);
    }
}

/// What one origin of anonymous tokens counts.
#[cfg(feature = "privacy-pass")]
#[derive(Debug, Default)]
pub(super) struct TokenMeters(OnceLock<Series>);

#[cfg(feature = "privacy-pass")]
impl TokenMeters {
    pub(super) fn judged(&self, policy: &str, outcome: &str) {
        let series = self.0.get_or_init(|| {
            describe_counter!(
                TOKENS,
                Unit::Count,
                "Requests by what an origin of anonymous tokens says about them"
            );
            Series::default()
        });
        series.increment(["", policy, outcome], |[_, policy, outcome]| {
            let label = |name, value: &str| Label::new(name, value.to_owned());
            counter!(TOKENS, vec![label("policy", policy), label("outcome", outcome)])
        });
    }
}

/// The counters of one issuer of anonymous credentials.
#[cfg(feature = "privacy-pass")]
#[derive(Debug, Default)]
pub(super) struct CredentialMeters(OnceLock<Series>);

#[cfg(feature = "privacy-pass")]
impl CredentialMeters {
    pub(super) fn answered(&self, outcome: &str) {
        let series = self.0.get_or_init(|| {
            describe_counter!(
                CREDENTIALS,
                Unit::Count,
                "Requests for anonymous credentials by the answer"
            );
            Series::default()
        });
        series.increment(
            ["", "", outcome],
            |[.., outcome]| counter!(CREDENTIALS, "outcome" => outcome.to_owned()),
        );
    }
}

/// The counters for the store of one layer.
#[derive(Debug, Default)]
pub(super) struct StoreMeters {
    handles: OnceLock<StoreHandles>,
    is_open: AtomicBool,
}

#[derive(Debug)]
struct StoreHandles {
    circuit_open: Gauge,
    denial_cache_hits: Counter,
    failed_while_closed: [(Outcome, Counter); 2],
    seconds: Histogram,
    slots_held: Gauge,
    undecided: [(StoreErrorKind, Counter); 6],
}

impl StoreHandles {
    fn new(scope: &str) -> Self {
        register();
        let undecided = |kind: StoreErrorKind| {
            let mut labels = scoped(scope);
            labels.push(Label::from_static_parts("reason", reason(kind)));
            (kind, counter!(UNDECIDED, labels))
        };
        Self {
            circuit_open: gauge!(CIRCUIT_OPEN, scoped(scope)),
            denial_cache_hits: counter!(DENIAL_CACHE_HITS, scoped(scope)),
            failed_while_closed: [Outcome::FailedClosed, Outcome::FailedOpen]
                .map(|outcome| (outcome, counter!(FAILED_WHILE_CLOSED, by_mode(scope, outcome)))),
            seconds: histogram!(STORE, scoped(scope)),
            slots_held: gauge!(SLOTS_HELD, scoped(scope)),
            undecided: [
                undecided(StoreErrorKind::CircuitOpen),
                undecided(StoreErrorKind::Overloaded),
                undecided(StoreErrorKind::Failed),
                undecided(StoreErrorKind::TimedOut),
                undecided(StoreErrorKind::Unavailable),
                undecided(StoreErrorKind::Unreachable),
            ],
        }
    }
}

const fn reason(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::CircuitOpen => "circuit_open",
        StoreErrorKind::Overloaded => "overloaded",
        StoreErrorKind::Failed => "failed",
        StoreErrorKind::TimedOut => "timed_out",
        StoreErrorKind::Unavailable => "unavailable",
        StoreErrorKind::Unreachable => "unreachable",
    }
}

impl StoreMeters {
    fn handles(&self, scope: &str) -> &StoreHandles {
        self.handles.get_or_init(|| StoreHandles::new(scope))
    }

    /// Layers of the same scope have a gauge together, so each of them adds and takes away.
    pub(super) fn circuit_opened(&self, scope: &str) {
        if !self.is_open.swap(true, Ordering::Relaxed) {
            self.handles(scope).circuit_open.increment(1.0);
        }
    }

    pub(super) fn circuit_closed(&self, scope: &str) {
        if self.is_open.swap(false, Ordering::Relaxed) {
            self.handles(scope).circuit_open.decrement(1.0);
        }
    }

    pub(super) fn remembered(&self, scope: &str) {
        self.handles(scope).denial_cache_hits.increment(1);
    }

    pub(super) fn undecided(&self, scope: &str, kind: StoreErrorKind) {
        let undecided = &self.handles(scope).undecided;
        if let Some((_, counter)) = undecided.iter().find(|(reason, _)| *reason == kind) {
            counter.increment(1);
        }
    }

    pub(super) fn failed_while_closed(&self, scope: &str, outcome: Outcome) {
        let failed = &self.handles(scope).failed_while_closed;
        if let Some((_, counter)) = failed.iter().find(|(own, _)| *own == outcome) {
            counter.increment(1);
        }
    }

    pub(super) fn answered(&self, scope: &str, after: Stopwatch, clock: &Clock) {
        let micros = clock.now().micros_since(after.0);
        let seconds = &self.handles(scope).seconds;
        seconds.record(Duration::from_micros(micros));
    }

    pub(super) fn slots_held(&self, scope: &str) -> HeldSlots {
        HeldSlots {
            _one: One::more(self.handles(scope).slots_held.clone()),
        }
    }
}

impl Drop for StoreMeters {
    /// A layer that is dropped takes its circuit with it.
    fn drop(&mut self) {
        if let Some(handles) = self.handles.get()
            && *self.is_open.get_mut()
        {
            handles.circuit_open.decrement(1.0);
        }
    }
}

/// When the store was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Timestamp);

impl Stopwatch {
    pub(crate) fn start(clock: &Clock) -> Self {
        Self(clock.now())
    }
}

/// One more on a gauge, until it is dropped.
#[derive(Debug)]
struct One(Gauge);

impl One {
    fn more(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A request that holds slots, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldSlots {
    _one: One,
}

/// A node that is not asked, until it is dropped.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct LostNode {
    _one: One,
}

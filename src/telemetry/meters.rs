//! Handles are created on first use and kept, so that later requests need neither lookups nor allocations.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    catalog::{
        CIRCUIT_OPEN, DECISIONS, EVICTIONS, EXCESS_UNITS, FAILED, FAILED_WHILE_CLOSED, LATE_BATCHES, LATE_CHARGES,
        LIMITS_OFF, NEVER_FITS, NEW_PARTITIONS, OVER_QUOTA, QUEUE_WAIT, REFUNDS, REJECTION_CACHE_HITS,
        SHADOW_REJECTIONS, SLOTS_HELD, STATE_LOST, STORE, UNATTRIBUTED, UNCOUNTED_CONTENT, UNDECIDED, UNITS,
        UNKNOWN_TIER, UNREAD_BODIES, register,
    },
    facade::{Counter, Gauge, Histogram, Label, METRICS, counter, gauge, histogram},
    labels::{LateBatch, LayerCount, Unresolved, outcome_name},
    series::Series,
};
use crate::{
    clock::{Clock, Timestamp},
    decision::Outcome,
    error::StoreErrorKind,
    sync::mutex::Mutex,
};

fn count(name: &'static str) {
    counter!(name).increment(1);
}

#[cfg(feature = "redis")]
pub(super) fn connection_failed() {
    count(super::catalog::CONNECTION_FAILURES);
}

#[cfg(feature = "redis")]
pub(super) fn node_lost() -> OneMore {
    OneMore::on(gauge!(super::catalog::LOST_NODES))
}

pub(super) fn body_unread() {
    count(UNREAD_BODIES);
}

pub(super) fn evicted() {
    count(EVICTIONS);
}

#[cfg(feature = "redis")]
pub(super) fn unsettled() {
    count(super::catalog::UNSETTLED);
}

fn labels<const N: usize>(scope: &str, others: [(&'static str, &str); N]) -> Vec<Label> {
    let all = [("scope", scope)].into_iter().chain(others);
    all.map(|(name, value)| Label::new(name, value.to_owned())).collect()
}

#[derive(Debug)]
struct Each<K, const N: usize>([(K, Counter); N]);

impl<K: Copy + PartialEq, const N: usize> Each<K, N> {
    fn new(names: [(K, &'static str); N], counter: impl Fn(&'static str) -> Counter) -> Self {
        Self(names.map(|(value, name)| (value, counter(name))))
    }

    fn count(&self, value: K) {
        if let Some((_, counter)) = self.0.iter().find(|(own, _)| *own == value) {
            counter.increment(1);
        }
    }
}

fn by_mode(name: &'static str, scope: &str) -> Each<Outcome, 2> {
    let modes = [(Outcome::FailedClosed, "closed"), (Outcome::FailedOpen, "open")];
    Each::new(modes, |mode| counter!(name, labels(scope, [("mode", mode)])))
}

#[derive(Debug, Default)]
pub(super) struct LayerMeters(OnceLock<LayerHandles>);

#[derive(Debug)]
struct LayerHandles {
    counts: Each<LayerCount, 4>,
    decisions: Series,
    failed: Each<Outcome, 2>,
    queue_wait: Histogram,
    shadow_rejections: Series,
    over_quota: Series,
}

impl LayerHandles {
    fn new(scope: &str) -> Self {
        register();
        // Set again, because the recorder may have been installed after the layer was built.
        show_switch(scope, 0);
        let counts = [
            (LayerCount::NeverFits, NEVER_FITS),
            (LayerCount::Unattributed, UNATTRIBUTED),
            (LayerCount::UncountedContent, UNCOUNTED_CONTENT),
            (LayerCount::UnknownTier, UNKNOWN_TIER),
        ];
        Self {
            counts: Each::new(counts, |name| counter!(name, labels(scope, []))),
            decisions: Series::default(),
            failed: by_mode(FAILED, scope),
            queue_wait: histogram!(QUEUE_WAIT, labels(scope, [])),
            shadow_rejections: Series::default(),
            over_quota: Series::default(),
        }
    }
}

impl LayerMeters {
    /// Series with known labels start at 0, because Prometheus rates ignore the first value. Handles are not kept,
    /// because a recorder may be installed until the first request.
    pub(super) fn announce(scope: &str) {
        drop(LayerHandles::new(scope));
    }

    fn handles(&self, scope: &str) -> &LayerHandles {
        self.0.get_or_init(|| LayerHandles::new(scope))
    }

    pub(super) fn decided<'a>(&self, scope: &str, tier: &str, outcome: Outcome, policy: impl Fn() -> &'a str) {
        if !METRICS {
            return;
        }
        let handles = self.handles(scope);
        let names = [tier, policy(), outcome_name(outcome)];
        handles.decisions.increment(names, |[tier, policy, outcome]| {
            let names = [("tier", tier), ("policy", policy), ("outcome", outcome)];
            counter!(DECISIONS, labels(scope, names))
        });
        handles.failed.count(outcome);
    }

    pub(super) fn count(&self, scope: &str, count: LayerCount) {
        self.handles(scope).counts.count(count);
    }

    pub(super) fn refunded(&self, scope: &str, outcome: &str) {
        self.handles(scope);
        counter!(REFUNDS, labels(scope, [("outcome", outcome)])).increment(1);
    }

    pub(super) fn charged_late(&self, scope: &str, outcome: &str, excess: u64) {
        self.handles(scope);
        counter!(LATE_CHARGES, labels(scope, [("outcome", outcome)])).increment(1);
        counter!(EXCESS_UNITS, labels(scope, [])).increment(excess);
    }

    pub(super) fn queue_wait(&self, scope: &str, wait: Duration) {
        self.handles(scope).queue_wait.record(wait);
    }

    pub(super) fn would_reject(&self, scope: &str, tier: &str, policy: &str) {
        let names = [tier, policy, "rejected"];
        let rejections = &self.handles(scope).shadow_rejections;
        rejections.increment(names, |[tier, policy, _]| {
            counter!(SHADOW_REJECTIONS, labels(scope, [("tier", tier), ("policy", policy)]))
        });
    }

    pub(super) fn over_quota(&self, scope: &str, tier: &str, policy: &str) {
        let names = [tier, policy, "over"];
        self.handles(scope).over_quota.increment(names, |[tier, policy, _]| {
            counter!(OVER_QUOTA, labels(scope, [("tier", tier), ("policy", policy)]))
        });
    }
}

#[derive(Debug, Default)]
pub(super) struct TierMeters(OnceLock<TierHandles>);

#[derive(Debug)]
struct TierHandles {
    unresolved: Each<Unresolved, 3>,
    waits: Counter,
}

impl TierMeters {
    pub(super) fn waits(&self) {
        self.handles().waits.increment(1);
    }

    pub(super) fn unresolved(&self, reason: Unresolved) {
        self.handles().unresolved.count(reason);
    }

    fn handles(&self) -> &TierHandles {
        use super::catalog::{TIER_UNRESOLVED, TIER_WAITS};

        self.0.get_or_init(|| {
            register();
            let reasons = [
                (Unresolved::Failed, "failed"),
                (Unresolved::Full, "full"),
                (Unresolved::Unanswered, "unanswered"),
            ];
            TierHandles {
                unresolved: Each::new(reasons, |reason| {
                    counter!(TIER_UNRESOLVED, vec![Label::new("reason", reason.to_owned())])
                }),
                waits: counter!(TIER_WAITS),
            }
        })
    }
}

/// Disabled layers per scope. The gauge is set, not incremented, because a recorder may be installed while some layers
/// are disabled.
static OFF: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
pub(crate) struct SwitchMeter {
    scope: String,
    /// Locked while the gauge is updated, so that updates cannot overtake each other.
    is_off: Mutex<bool>,
}

impl SwitchMeter {
    pub(crate) fn new(scope: &str) -> Self {
        register();
        let meter = Self {
            scope: scope.to_owned(),
            is_off: Mutex::new(false),
        };
        show_switch(scope, 0);
        meter
    }

    pub(crate) fn turned(&self, is_off: impl FnOnce() -> bool) {
        if !METRICS {
            return;
        }
        let mut shown = self.is_off.lock();
        let is_off = is_off();
        if std::mem::replace(&mut *shown, is_off) != is_off {
            show_switch(&self.scope, if is_off { 1 } else { -1 });
        }
    }
}

impl Drop for SwitchMeter {
    fn drop(&mut self) {
        self.turned(|| false);
    }
}

fn show_switch(scope: &str, change: i32) {
    if !METRICS {
        return;
    }
    let mut off = OFF.lock();
    let count = off.get(scope).copied().unwrap_or(0).saturating_add_signed(change);
    match count {
        0 => drop(off.remove(scope)),
        _ => drop(off.insert(scope.to_owned(), count)),
    }
    gauge!(LIMITS_OFF, labels(scope, [])).set(f64::from(count));
}

#[derive(Debug, Default)]
pub(super) struct StoreMeters {
    handles: OnceLock<StoreHandles>,
    is_open: AtomicBool,
}

#[derive(Debug)]
struct StoreHandles {
    circuit_open: Gauge,
    rejection_cache_hits: Counter,
    failed_while_closed: Each<Outcome, 2>,
    late_batches: Each<LateBatch, 3>,
    new_partitions: Counter,
    seconds: Histogram,
    slots_held: Gauge,
    state_lost: Counter,
    undecided: Each<StoreErrorKind, 7>,
    units: Series,
}

impl StoreHandles {
    fn new(scope: &str) -> Self {
        register();
        let reasons = [
            (StoreErrorKind::CircuitOpen, "circuit_open"),
            (StoreErrorKind::Failed, "failed"),
            (StoreErrorKind::OutOfMemory, "out_of_memory"),
            (StoreErrorKind::Overloaded, "overloaded"),
            (StoreErrorKind::TimedOut, "timed_out"),
            (StoreErrorKind::Unavailable, "unavailable"),
            (StoreErrorKind::Unreachable, "unreachable"),
        ];
        let fates = [
            (LateBatch::Kept, "kept"),
            (LateBatch::Returned, "returned"),
            (LateBatch::Unknown, "unknown"),
        ];
        Self {
            circuit_open: gauge!(CIRCUIT_OPEN, labels(scope, [])),
            rejection_cache_hits: counter!(REJECTION_CACHE_HITS, labels(scope, [])),
            failed_while_closed: by_mode(FAILED_WHILE_CLOSED, scope),
            late_batches: Each::new(fates, |fate| counter!(LATE_BATCHES, labels(scope, [("fate", fate)]))),
            new_partitions: counter!(NEW_PARTITIONS, labels(scope, [])),
            seconds: histogram!(STORE, labels(scope, [])),
            slots_held: gauge!(SLOTS_HELD, labels(scope, [])),
            state_lost: counter!(STATE_LOST, labels(scope, [])),
            undecided: Each::new(reasons, |reason| {
                counter!(UNDECIDED, labels(scope, [("reason", reason)]))
            }),
            units: Series::default(),
        }
    }
}

impl StoreMeters {
    pub(super) fn new(scope: &str) -> Self {
        drop(StoreHandles::new(scope));
        Self::default()
    }

    fn handles(&self, scope: &str) -> &StoreHandles {
        self.handles.get_or_init(|| StoreHandles::new(scope))
    }

    /// Layers of the same scope share a gauge.
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

    pub(super) fn is_circuit_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(super) fn remembered(&self, scope: &str) {
        self.handles(scope).rejection_cache_hits.increment(1);
    }

    pub(super) fn late_batch(&self, scope: &str, fate: LateBatch) {
        self.handles(scope).late_batches.count(fate);
    }

    pub(super) fn created(&self, scope: &str) {
        self.handles(scope).new_partitions.increment(1);
    }

    pub(super) fn state_lost(&self, scope: &str) {
        self.handles(scope).state_lost.increment(1);
    }

    pub(super) fn undecided(&self, scope: &str, kind: StoreErrorKind) {
        self.handles(scope).undecided.count(kind);
    }

    pub(super) fn failed_while_closed(&self, scope: &str, outcome: Outcome) {
        self.handles(scope).failed_while_closed.count(outcome);
    }

    pub(super) fn answered(&self, scope: &str, after: Duration) {
        self.handles(scope).seconds.record(after);
    }

    pub(super) fn units(&self, scope: &str, unit: &str, expected: u64, used: u64) {
        let units = &self.handles(scope).units;
        for (amount, count) in [("expected", expected), ("used", used)] {
            units.add(["", unit, amount], count, |[_, unit, amount]| {
                counter!(UNITS, labels(scope, [("unit", unit), ("amount", amount)]))
            });
        }
    }

    pub(super) fn slots_held(&self, scope: &str) -> OneMore {
        OneMore::on(self.handles(scope).slots_held.clone())
    }
}

impl Drop for StoreMeters {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.get()
            && *self.is_open.get_mut()
        {
            handles.circuit_open.decrement(1.0);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Option<Timestamp>);

impl Stopwatch {
    pub(crate) fn start(clock: &Clock) -> Self {
        Self(METRICS.then(|| clock.now()))
    }

    pub(super) fn elapsed(self, clock: &Clock) -> Duration {
        self.0.map_or(Duration::ZERO, |start| {
            Duration::from_micros(clock.now().micros_since(start))
        })
    }
}

#[derive(Debug)]
pub(crate) struct OneMore(Gauge);

impl OneMore {
    fn on(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

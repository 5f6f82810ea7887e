use std::{
    fmt,
    sync::{Arc, MutexGuard, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{config::LayerView, select::Active, set::QuotaSet};
use crate::{policy::Policy, sync::mutex::Mutex, telemetry::SwitchMeter};

/// The rules of a limiter, which can be replaced while requests are in progress.
pub(crate) struct Policies {
    pub(super) scope: Box<str>,
    /// Names of all keys except the main key.
    pub(super) keys: Vec<String>,
    /// Set if the rules were loaded as data. Such rules need not use every key and unit of the program.
    pub(super) has_data: AtomicBool,
    pub(super) active: ArcSwap<Active>,
    /// See [`begin_change`](Self::begin_change).
    pub(super) changing: Mutex<()>,
    pub(super) switch_meter: SwitchMeter,
}

/// Held from validation until rules take effect, because a layer added in between would invalidate the check.
///
/// Also holds all layers, and drops them after the lock: closures of a layer may own a claim of these rules, which takes
/// the lock when it is dropped.
pub(super) struct Changing<'a> {
    /// The first field, which is dropped first.
    _lock: MutexGuard<'a, ()>,
    _layers: Vec<Arc<LayerView>>,
}

impl Policies {
    pub(super) fn begin_change(&self) -> Changing<'_> {
        let lock = self.changing.lock();
        Changing {
            _layers: self.active.load().config.layers().collect(),
            _lock: lock,
        }
    }

    /// Repeats `change` if another change interferes, so that no change is lost.
    pub(super) fn change(&self, mut change: impl FnMut(&mut Active)) {
        self.active.rcu(|active| {
            let mut changed = Active::clone(active);
            change(&mut changed);
            changed
        });
        self.switch_meter.turned(|| !self.active.load().is_on());
    }

    /// The current rules. A request keeps the rules that it began with.
    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<Active>> {
        self.active.load()
    }

    /// Names of all keys except the main key.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// All policies: of each tier and of a rollout.
    pub(crate) fn all_sets(&self) -> Vec<Arc<QuotaSet>> {
        let active = self.active.load();
        let sets = active.rules.all().flat_map(|sets| sets.all()).cloned();
        sets.collect()
    }

    /// The shortest window of the first set whose windows are all longer than one hour.
    pub(crate) fn lone_large_window(&self) -> Option<Duration> {
        self.all_sets().iter().find_map(|set| set.lone_large_window())
    }

    /// The name of a policy that shows its partition key and whose key is `of_interest` (`None` is the main key).
    pub(crate) fn showing_key(&self, of_interest: impl Fn(Option<usize>) -> bool) -> Option<String> {
        let sets = self.all_sets();
        let parts = sets.iter().flat_map(|set| &set.parts);
        let policies = parts
            .filter(|part| of_interest(part.key))
            .flat_map(|part| &part.policies);
        let mut policies = policies.map(Policy::policy);
        let shown = policies.find(|policy| policy.shows_partition_key && !policy.is_hidden())?;
        Some(shown.name().to_owned())
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.active.load().rules.current.rules.fmt(f)
    }
}

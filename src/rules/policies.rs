use std::{
    fmt,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{
    checked::{AppliedRules, CheckedRules},
    config::{LayerView, RulesConfig},
    data::Rules,
    select::Active,
    set::QuotaSet,
    switch::Switch,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    sync::mutex::Mutex,
    telemetry::SwitchMeter,
};

pub(crate) struct Policies {
    pub(super) scope: Box<str>,
    pub(super) keys: Vec<String>,
    pub(super) active: ArcSwap<Active>,
    /// See [`begin_change`](Self::begin_change).
    pub(super) changing: Mutex<()>,
    pub(super) switch_meter: SwitchMeter,
}

impl Policies {
    pub(crate) fn new(
        scope: &str,
        keys: Vec<String>,
        mut rules: Rules,
        tiers: Option<Rules>,
        has_data: bool,
    ) -> Result<Self, ConfigError> {
        let has_tiers = tiers.is_some();
        rules.append(tiers.unwrap_or_default());
        if has_tiers && rules.is_empty() {
            let message = "tiers: at least one is required";
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        let config = RulesConfig {
            keys: keys.iter().cloned().collect(),
            views: Vec::new(),
        };
        let current = Arc::new(CheckedRules::new(rules, &config)?);
        if !has_data {
            check_keys_are_used(&keys, &current)?;
        }
        let active = Active {
            config: Arc::new(config),
            switch: Switch::default(),
            rules: AppliedRules { current, rollout: None },
            has_data,
            is_claimed: false,
            overridden: None,
        };
        Ok(Self {
            scope: scope.into(),
            keys,
            active: ArcSwap::from_pointee(active),
            changing: Mutex::default(),
            switch_meter: SwitchMeter::new(scope),
        })
    }

    /// Held from validation until rules take effect, because a layer added in between would invalidate the check.
    /// Layers are dropped after the lock: their closures may own a claim of these rules, which takes the lock when it
    /// is dropped.
    pub(super) fn begin_change(&self) -> (MutexGuard<'_, ()>, Vec<Arc<LayerView>>) {
        let lock = self.changing.lock();
        let layers = self.active.load().config.layers().collect();
        (lock, layers)
    }

    pub(super) fn check(&self, rules: Rules) -> Result<Arc<CheckedRules>, ConfigError> {
        CheckedRules::new(rules, &self.active.load().config).map(Arc::new)
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

    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<Active>> {
        self.active.load()
    }

    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    pub(crate) fn all_sets(&self) -> Vec<Arc<QuotaSet>> {
        let active = self.active.load();
        let sets = active.rules.all().flat_map(|sets| sets.all()).cloned();
        sets.collect()
    }

    pub(crate) fn lone_large_window(&self) -> Option<Duration> {
        self.all_sets().iter().find_map(|set| set.lone_large_window())
    }
}

fn check_keys_are_used(keys: &[String], rules: &CheckedRules) -> Result<(), ConfigError> {
    let is_used = |index| {
        let mut parts = rules.all().iter().flat_map(|set| &set.parts);
        parts.any(|part| part.key == Some(index))
    };
    if let Some((_, name)) = keys.iter().enumerate().find(|(index, _)| !is_used(*index)) {
        let message = format!("key {name:?}: not used by any policy; use `keyed_by`, or remove the key");
        return Err(ConfigError::new(ConfigErrorKind::Key, message));
    }
    Ok(())
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.active.load().rules.current.rules.fmt(f)
    }
}

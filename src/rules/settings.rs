//! The rules of a limiter's builder: `policy`, `tiers` and `rules` are merged into one [`Rules`].

use std::sync::{Arc, atomic::AtomicBool};

use arc_swap::ArcSwap;

use super::{
    applied::AppliedRules, config::RulesConfig, data::Rules, policies::Policies, select::Active, sets::Sets,
    switch::Switch,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::QuotaPolicy,
    sync::mutex::Mutex,
    telemetry::SwitchMeter,
};

#[derive(Debug, Default)]
pub(crate) struct RulesSettings {
    rules: Rules,
    tiers: Vec<Rules>,
    /// Set if the rules were loaded as data. Such rules need not use every key of the program.
    has_data: bool,
}

impl RulesSettings {
    pub(crate) fn policy(&mut self, policy: QuotaPolicy) {
        self.rules.policies.push(policy);
    }

    pub(crate) fn rules(&mut self, rules: Rules) {
        self.rules.append(rules);
        self.has_data = true;
    }

    pub(crate) fn tiers(&mut self, tiers: Rules) {
        self.tiers.push(tiers);
    }

    /// `keys` are the names of all keys except the main key.
    pub(crate) fn build(mut self, scope: &str, keys: Vec<String>) -> Result<Policies, ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Policies, message));
        let has_tiers = !self.tiers.is_empty();
        for tiers in self.tiers {
            self.rules.append(tiers);
        }
        if has_tiers && self.rules.is_empty() {
            return error("tiers: at least one is required");
        }
        let config = RulesConfig {
            keys: keys.iter().cloned().collect(),
            views: Vec::new(),
        };
        let sets = Sets::new(self.rules, &config)?;
        if !self.has_data {
            check_keys_are_used(&keys, &sets)?;
        }
        let active = Active {
            config: Arc::new(config),
            switch: Switch::default(),
            claim: None,
            rules: AppliedRules {
                current: Arc::new(sets),
                candidate: None,
            },
        };
        Ok(Policies {
            scope: scope.into(),
            keys,
            has_data: AtomicBool::new(self.has_data),
            changing: Mutex::default(),
            switch_meter: SwitchMeter::new(scope),
            active: ArcSwap::from_pointee(active),
        })
    }
}

fn check_keys_are_used(keys: &[String], sets: &Sets) -> Result<(), ConfigError> {
    let is_used = |index| {
        let mut parts = sets.all().iter().flat_map(|set| &set.parts);
        parts.any(|part| part.key == Some(index))
    };
    if let Some((_, name)) = keys.iter().enumerate().find(|(index, _)| !is_used(*index)) {
        let message = format!("key {name:?}: not used by any policy; use `keyed_by`, or remove the key");
        return Err(ConfigError::new(ConfigErrorKind::Key, message));
    }
    Ok(())
}

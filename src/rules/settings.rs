//! The rules in a layer's builder: `policy`, `tiers` and `rules` meet in one [`Rules`].

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{
    Active, LayerConfig, Policies, Rules, Sets, Tiers,
    switch::{Holder, Switch},
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::{QuotaPolicy, QuotaUnit, UnitName},
    response::fields::ResponseFields,
    telemetry::SwitchMeter,
};

#[derive(Debug, Default)]
pub(crate) struct RulesSettings {
    rules: Rules,
    pub(crate) tiers: Vec<Tiers>,
    /// True if rules came as data, which need not use every key of the program.
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

    pub(crate) fn has_tiers(&self) -> bool {
        !self.rules.tiers.is_empty()
    }

    /// The custom units that policies count, each once.
    pub(crate) fn custom_units(&self) -> Vec<UnitName> {
        let of_tiers = self.rules.tiers.iter().filter_map(|(_, policies)| policies.as_ref());
        let mut units = Vec::new();
        for policy in self.rules.policies.iter().chain(of_tiers.flatten()) {
            if let QuotaUnit::Custom(unit) = policy.unit()
                && !units.contains(&unit)
            {
                units.push(unit);
            }
        }
        units
    }

    /// `keys` are the names of all keys but the main one, `units` those of the program's own units that have a cost.
    pub(crate) fn build(
        mut self,
        scope: &str,
        keys: Vec<String>,
        units: Vec<UnitName>,
        fixed_cost: Option<u64>,
        fields: ResponseFields,
    ) -> Result<Policies, ConfigError> {
        let tiers = self.tiers.pop().map(|tiers| (tiers.source, tiers.rules));
        if !self.tiers.is_empty() {
            let message = "tiers: they are set twice; only one closure can tell the tier of a request";
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        let (tiers, rules) = tiers.unwrap_or_default();
        self.rules.append(rules);
        let config = LayerConfig {
            tiers,
            keys,
            units,
            fixed_cost,
            fields,
        };
        let sets = Sets::new(self.rules, &config)?;
        if !self.has_data {
            check_keys_are_used(&config.keys, &sets)?;
            check_units_are_used(&config.units, &sets)?;
        }
        let active = Active {
            switch: Switch::default(),
            holder: Holder::default(),
            current: Arc::new(sets),
            candidate: None,
            grants: Arc::default(),
        };
        Ok(Policies {
            config,
            switch_meter: SwitchMeter::new(scope),
            active: ArcSwap::from_pointee(active),
        })
    }
}

fn check_keys_are_used(keys: &[String], sets: &Sets) -> Result<(), ConfigError> {
    let is_used = |index| {
        let mut parts = sets.all().flat_map(|set| &set.parts);
        parts.any(|part| part.key == Some(index))
    };
    if let Some((_, name)) = keys.iter().enumerate().find(|(index, _)| !is_used(*index)) {
        let message = format!("key {name:?}: no policy counts by it; use `keyed_by`, or leave it out");
        return Err(ConfigError::new(ConfigErrorKind::Key, message));
    }
    Ok(())
}

fn check_units_are_used(units: &[UnitName], sets: &Sets) -> Result<(), ConfigError> {
    let is_used = |index| sets.all().any(|set| set.units.contains(&index));
    match units.iter().enumerate().find(|(index, _)| !is_used(*index)) {
        Some((_, unit)) => {
            let message = format!("unit {unit:?}: no policy counts it; use `with_unit`, or leave it out");
            Err(ConfigError::new(ConfigErrorKind::Unit, message))
        }
        None => Ok(()),
    }
}

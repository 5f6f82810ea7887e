//! The parts of a limiter and of its layers that rules must fit.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
};

use super::{Candidate, CheckedTier, Policies, QuotaSet, Rules, Sets};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::{QuotaPolicy, QuotaUnit, UnitName},
    response::fields::ResponseFields,
};

/// All that rules must fit.
#[derive(Clone, Debug, Default)]
pub(super) struct RulesConfig {
    /// The names of all keys but the main one.
    pub(super) keys: Vec<String>,
    /// A layer keeps its position. That of one which is gone is the next one's.
    pub(super) views: Vec<(Weak<()>, Arc<LayerView>)>,
}

/// The settings of a layer that rules must fit: they stay when rules are replaced.
#[derive(Debug, Default)]
pub(crate) struct LayerView {
    pub(crate) has_tiers: bool,
    /// The custom units that have a cost.
    pub(crate) units: Vec<UnitName>,
    /// The cost of every request, if it is fixed.
    pub(crate) fixed_cost: Option<u64>,
    pub(crate) fields: ResponseFields,
}

/// The position of a layer among the views of its limiter, for as long as it is kept.
#[derive(Debug)]
pub(crate) struct ViewClaim {
    pub(crate) position: usize,
    _alive: Arc<()>,
}

impl Policies {
    /// Adds a layer, if the rules fit it.
    pub(crate) fn add_view(&self, view: LayerView) -> Result<ViewClaim, ConfigError> {
        let _changing = self.changing.lock();
        let active = self.active.load_full();
        let (alive, view) = (Arc::default(), Arc::new(view));
        let mut config = RulesConfig::clone(&active.config);
        let entry = (Arc::downgrade(&alive), Arc::clone(&view));
        let gone = config.views.iter().position(|(alive, _)| alive.strong_count() == 0);
        let position = gone.unwrap_or(config.views.len());
        match config.views.get_mut(position) {
            Some(gone) => *gone = entry,
            None => config.views.push(entry),
        }
        let anew = |sets: &Sets| Sets::new(sets.rules.clone(), &config).map(Arc::new);
        let current = anew(&active.current)?;
        if !self.has_data {
            check_units_are_used(&view.units, &current.rules)?;
        }
        let candidate = active.candidate.as_ref().map(|candidate| {
            let sets = anew(&candidate.sets)?;
            Ok(Candidate {
                sets,
                ..candidate.clone()
            })
        });
        let (candidate, config) = (candidate.transpose()?, Arc::new(config));
        self.change(|active| {
            active.config = Arc::clone(&config);
            active.current = Arc::clone(&current);
            active.candidate.clone_from(&candidate);
        });
        Ok(ViewClaim {
            position,
            _alive: alive,
        })
    }
}

impl RulesConfig {
    fn layers(&self) -> impl Iterator<Item = &LayerView> {
        let alive = self.views.iter().filter(|(alive, _)| alive.strong_count() > 0);
        alive.map(|(_, view)| &**view)
    }

    /// Returns `true` if each layer knows the tier of a request.
    pub(super) fn can_tell_tiers(&self) -> bool {
        self.layers().all(|layer| layer.has_tiers)
    }

    /// Returns `true` if there are layers that ask for tiers.
    pub(super) fn expects_tiers(&self) -> bool {
        self.layers().any(|layer| layer.has_tiers)
    }

    /// Policies that hold together, if they are valid and leave room for what every request costs.
    pub(super) fn check(&self, policies: &[QuotaPolicy]) -> Result<QuotaSet, ConfigError> {
        let set = QuotaSet::new(policies.to_vec(), self)?;
        let is_asked = |policy: &&QuotaPolicy| policy.unit() == QuotaUnit::Requests && !policy.is_closed();
        for policy in policies.iter().filter(is_asked) {
            let (name, capacity) = (policy.name(), policy.burst_capacity());
            let mut costs = self.layers().filter_map(|layer| layer.fixed_cost);
            if let Some(cost) = costs.find(|cost| *cost > capacity) {
                let message = format!("policy {name:?}: cost {cost} of every request is above its capacity {capacity}");
                return Err(ConfigError::new(ConfigErrorKind::Cost, message));
            }
        }
        Ok(set)
    }

    pub(super) fn check_tiers(
        &self,
        tiers: &[(String, Option<Vec<QuotaPolicy>>)],
    ) -> Result<Vec<CheckedTier>, ConfigError> {
        let mut names = HashSet::new();
        let checked = tiers.iter().map(|(name, policies)| {
            let within = |error: ConfigError| error.within(format_args!("tier {name:?}"));
            let error = |kind, problem: &str| Err(within(ConfigError::new(kind, problem)));
            if name.is_empty() {
                return error(ConfigErrorKind::Policies, "the name is empty");
            }
            if !names.insert(name) {
                let problem = "the name is used twice; names must be unique";
                return error(ConfigErrorKind::DuplicateTier, problem);
            }
            let set = policies.as_deref().map(|policies| self.check(policies));
            match set.transpose() {
                Ok(set) => Ok((Some(Arc::from(&**name)), set.map(Arc::new))),
                Err(error) => Err(within(error)),
            }
        });
        checked.collect()
    }
}

fn check_units_are_used(units: &[UnitName], rules: &Rules) -> Result<(), ConfigError> {
    let is_used = |unit: &&UnitName| {
        let mut policies = rules.all_policies();
        policies.any(|(_, policy)| policy.unit() == QuotaUnit::Custom(**unit))
    };
    match units.iter().find(|unit| !is_used(unit)) {
        Some(unit) => {
            let message = format!("unit {unit:?}: no policy counts it; use `with_unit`, or leave it out");
            Err(ConfigError::new(ConfigErrorKind::Unit, message))
        }
        None => Ok(()),
    }
}

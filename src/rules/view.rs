//! The parts of a limiter and of its layers that rules must fit.

use std::{
    collections::HashSet,
    sync::{Arc, Weak, atomic::Ordering},
};

use super::{AppliedRules, Candidate, CheckedTier, Policies, QuotaSet, Rules, Sets};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::{Policy, PolicySet, QuotaPolicy, QuotaUnit, UnitName},
    response::fields::ResponseFields,
    sync::per_thread::PerThread,
};

/// All that rules must fit.
#[derive(Clone, Debug, Default)]
pub(super) struct RulesConfig {
    /// The names of all keys but the main one.
    pub(super) keys: Vec<String>,
    /// A layer keeps its position. That of one which is gone is the next one's.
    pub(super) views: Vec<Weak<LayerView>>,
}

/// The settings of a layer that rules must fit: they stay when rules are replaced. The layer owns them, because closures among
/// them may hold the limiter.
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
    view: Arc<LayerView>,
}

impl ViewClaim {
    #[inline]
    pub(crate) fn fields(&self) -> &ResponseFields {
        &self.view.fields
    }
}

impl Policies {
    /// Adds a layer, if the rules in force fit it, and those of a source that the program overrides.
    pub(crate) fn add_view(&self, view: LayerView) -> Result<ViewClaim, ConfigError> {
        let _changing = self.changing.lock();
        let (active, view) = (self.active.load_full(), Arc::new(view));
        let mut config = RulesConfig::clone(&active.config);
        let gone = config.views.iter().position(|view| view.strong_count() == 0);
        let position = gone.unwrap_or(config.views.len());
        match config.views.get_mut(position) {
            Some(gone) => *gone = Arc::downgrade(&view),
            None => config.views.push(Arc::downgrade(&view)),
        }
        let rules = active.rules.with_layer(position, &view)?;
        if !self.has_data.load(Ordering::Relaxed) {
            check_units_are_used(&view.units, &rules.current.rules)?;
        }
        let overridden = active.claim.as_ref().and_then(|claim| claim.overridden.as_ref());
        let overridden = overridden.map(|rules| rules.with_layer(position, &view)).transpose()?;
        let config = Arc::new(config);
        self.change(|active| {
            active.config = Arc::clone(&config);
            active.rules.clone_from(&rules);
            if let Some(claim) = &mut active.claim {
                claim.overridden.clone_from(&overridden);
            }
        });
        Ok(ViewClaim { position, view })
    }
}

impl AppliedRules {
    fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        let candidate = self.candidate.as_ref().map(|candidate| {
            let sets = Arc::new(candidate.sets.with_layer(position, layer)?);
            Ok(Candidate {
                sets,
                ..candidate.clone()
            })
        });
        Ok(Self {
            current: Arc::new(self.current.with_layer(position, layer)?),
            candidate: candidate.transpose()?,
        })
    }
}

impl Sets {
    /// The same policies for one more layer. They stay the same to what this process holds of them, such as prefetched units.
    fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        if self.has_tiers() && !layer.has_tiers {
            return Err(RulesConfig::no_source_of_tiers());
        }
        let tiers = self.tiers.first().iter().map(|(name, set)| {
            let set = set.as_ref().map(|set| set.with_layer(position, layer).map(Arc::new));
            let set = set.transpose().map_err(|error| match name {
                Some(name) => error.within(format_args!("tier {name:?}")),
                None => error,
            });
            Ok((name.clone(), set?))
        });
        Ok(Self {
            tiers: PerThread::new(tiers.collect::<Result<_, ConfigError>>()?),
            rules: self.rules.clone(),
        })
    }
}

impl LayerView {
    /// Finds a policy that leaves no room for what every request costs.
    pub(super) fn check(&self, policies: &PolicySet) -> Result<(), ConfigError> {
        let is_asked = |policy: &&QuotaPolicy| policy.unit() == QuotaUnit::Requests && !policy.is_closed();
        for policy in policies.iter().map(Policy::policy).filter(is_asked) {
            let (name, capacity) = (policy.name(), policy.burst_capacity());
            if let Some(cost) = self.fixed_cost.filter(|cost| *cost > capacity) {
                let message = format!("policy {name:?}: cost {cost} of every request is above its capacity {capacity}");
                return Err(ConfigError::new(ConfigErrorKind::Cost, message));
            }
        }
        Ok(())
    }
}

impl RulesConfig {
    fn layers(&self) -> impl Iterator<Item = Arc<LayerView>> {
        self.views.iter().filter_map(Weak::upgrade)
    }

    pub(super) fn without_layers(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            views: Vec::new(),
        }
    }

    /// Returns `true` if each layer knows the tier of a request.
    pub(super) fn can_tell_tiers(&self) -> bool {
        self.layers().all(|layer| layer.has_tiers)
    }

    pub(super) fn no_source_of_tiers() -> ConfigError {
        let message = "tiers: nothing says of which tier a request is; set `Tiers::from_fn`";
        ConfigError::new(ConfigErrorKind::Policies, message)
    }

    /// Returns `true` if there are layers that ask for tiers.
    pub(super) fn expects_tiers(&self) -> bool {
        self.layers().any(|layer| layer.has_tiers)
    }

    /// Policies that hold together, if they are valid and leave room for what every request costs.
    pub(super) fn check(&self, policies: &[QuotaPolicy]) -> Result<QuotaSet, ConfigError> {
        let set = QuotaSet::new(policies.to_vec(), self)?;
        self.layers().try_for_each(|layer| layer.check(set.all()))?;
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

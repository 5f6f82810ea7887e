use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::{Policy, PolicySet, QuotaUnit, UnitName},
    response::fields::ResponseFields,
};

/// What rules must be compatible with.
#[derive(Clone, Debug, Default)]
pub(super) struct RulesConfig {
    /// Without the main key. Hashed, because rules as data can name any number of keys.
    pub(super) keys: IndexSet<String, RandomState>,
    /// The position of a dropped layer is reused.
    pub(super) views: Vec<Weak<LayerView>>,
}

/// Only the layer owns them, because closures in them may hold the limiter.
#[derive(Debug, Default)]
pub(crate) struct LayerView {
    pub(crate) has_tiers: bool,
    pub(crate) units: Vec<UnitName>,
    pub(crate) fixed_cost: Option<u64>,
    pub(crate) fields: ResponseFields,
}

impl LayerView {
    /// A policy must admit a request of the fixed cost.
    pub(super) fn check(&self, policies: &PolicySet) -> Result<(), ConfigError> {
        let is_asked = |policy: &&Policy| policy.policy().unit() == QuotaUnit::Requests && !policy.policy().is_closed();
        for policy in policies.iter().filter(is_asked) {
            let (name, capacity) = (policy.policy().name(), policy.counter().units());
            if let Some(cost) = self.fixed_cost.filter(|cost| *cost > capacity) {
                let message = format!("policy {name:?}: fixed cost {cost} exceeds capacity {capacity}");
                return Err(ConfigError::new(ConfigErrorKind::Cost, message));
            }
        }
        Ok(())
    }
}

impl RulesConfig {
    pub(super) fn layers(&self) -> impl Iterator<Item = Arc<LayerView>> {
        self.views.iter().filter_map(Weak::upgrade)
    }

    pub(super) fn without_layers(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            views: Vec::new(),
        }
    }

    pub(super) fn can_tell_tiers(&self) -> bool {
        self.layers().all(|layer| layer.has_tiers)
    }

    pub(super) fn no_source_of_tiers() -> ConfigError {
        let message = "tiers: no source of tiers; build the layer with `tiers`";
        ConfigError::new(ConfigErrorKind::Policies, message)
    }

    pub(super) fn expects_tiers(&self) -> bool {
        self.layers().any(|layer| layer.has_tiers)
    }
}

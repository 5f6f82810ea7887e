use std::sync::Arc;

use super::{
    config::{LayerView, RulesConfig},
    data::Rules,
    policies::Policies,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::{QuotaUnit, UnitName},
    response::fields::ResponseFields,
};

/// Dropping the claim frees the position.
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
    /// While an override is active, the layer must also be compatible with the rules of the source.
    pub(crate) fn add_view(&self, view: LayerView) -> Result<ViewClaim, ConfigError> {
        // Dropped after the lock if it is rejected, as by `begin_change`.
        let view = Arc::new(view);
        let _changing = self.begin_change();
        let active = self.active.load_full();
        let mut config = RulesConfig::clone(&active.config);
        let gone = config.views.iter().position(|view| view.strong_count() == 0);
        let position = gone.unwrap_or(config.views.len());
        match config.views.get_mut(position) {
            Some(gone) => *gone = Arc::downgrade(&view),
            None => config.views.push(Arc::downgrade(&view)),
        }
        let rules = active.rules.with_layer(position, &view)?;
        if !active.has_data {
            check_units_are_used(&view.units, &rules.current.rules)?;
        }
        let overridden = active.overridden.as_ref();
        let overridden = overridden.map(|rules| rules.with_layer(position, &view)).transpose()?;
        let config = Arc::new(config);
        self.change(|active| {
            active.config = Arc::clone(&config);
            active.rules.clone_from(&rules);
            active.overridden.clone_from(&overridden);
        });
        Ok(ViewClaim { position, view })
    }
}

fn check_units_are_used(units: &[UnitName], rules: &Rules) -> Result<(), ConfigError> {
    let is_used = |unit: &&UnitName| {
        let mut policies = rules.all_policies();
        policies.any(|(_, policy)| policy.unit() == QuotaUnit::Custom(**unit))
    };
    match units.iter().find(|unit| !is_used(unit)) {
        Some(unit) => {
            let message = format!("unit {unit:?}: not used by any policy; use `with_unit`, or remove the unit");
            Err(ConfigError::new(ConfigErrorKind::Unit, message))
        }
        None => Ok(()),
    }
}

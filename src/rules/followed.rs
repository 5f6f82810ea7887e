//! Rules that come from outside of the process: checked without a layer.

use super::{Frame, Rules, Sets, Tiers};
use crate::{
    error::ConfigError,
    policy::{QuotaPolicy, QuotaUnit, UnitName},
};

/// The checks of `build()` that need no layer: any tier, key and unit that is named will do.
pub(crate) fn check_rules(rules: &Rules) -> Result<(), ConfigError> {
    let policies = || {
        let of_tiers = rules.tiers().filter_map(|(_, policies)| policies).flatten();
        rules.policies().iter().chain(of_tiers)
    };
    let unit = |policy: &QuotaPolicy| match policy.unit() {
        QuotaUnit::Custom(unit) => Some(unit),
        _ => None,
    };
    let units: Vec<UnitName> = policies().filter_map(unit).collect();
    let mut frame = Frame {
        keys: policies().filter_map(QuotaPolicy::key).map(str::to_owned).collect(),
        units,
        ..Frame::default()
    };
    if rules.policies().is_empty() && !rules.tiers.is_empty() {
        frame.tiers = Tiers::by(|_| None).source;
    }
    Sets::new(rules.clone(), &frame).map(drop)
}

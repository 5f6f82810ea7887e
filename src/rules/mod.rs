mod checked;
mod claim;
mod config;
mod data;
mod diff;
#[cfg(feature = "serde")]
mod format;
mod handle;
mod policies;
mod resolved;
mod select;
mod set;
mod switch;
#[cfg(test)]
mod tests;
mod tiers;
mod view;

pub use self::{
    claim::{RulesClaim, RulesUpdate},
    data::Rules,
    diff::{ChangeKind, RulesChange, RulesDiff},
    handle::RulesHandle,
    resolved::ResolvedTier,
    tiers::Tiers,
};
pub(crate) use self::{
    config::LayerView,
    policies::Policies,
    resolved::NoTier,
    select::{Active, Selection},
    set::{QuotaSet, SetView},
    tiers::TierSource,
    view::ViewClaim,
};

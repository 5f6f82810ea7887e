//! Rules: the policies that apply to a request, for all callers or by tier.

mod applied;
mod candidate;
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
mod sets;
mod settings;
mod switch;
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
    set::QuotaSet,
    settings::RulesSettings,
    tiers::TierSource,
    view::ViewClaim,
};

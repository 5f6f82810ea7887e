//! The rules and the switch of one moment.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{applied::AppliedRules, config::RulesConfig, set::QuotaSet, switch::Switch};
use crate::{
    clock::Timestamp,
    decision::Outcome,
    partition::PartitionId,
    policy::{CallerQuotas, QuotaPolicy},
};

/// The rules in force at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(super) config: Arc<RulesConfig>,
    pub(super) switch: Switch,
    /// `None` while no source has claimed the rules.
    pub(super) claim: Option<ClaimState>,
    pub(super) rules: AppliedRules,
}

/// The state of a claim beside the rules in force.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimState {
    /// The rules that an override of the program keeps out of force.
    pub(super) overridden: Option<AppliedRules>,
}

/// The policies that apply to a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    tier: Option<Arc<str>>,
    /// None if the request is not limited.
    pub(crate) set: Option<Arc<QuotaSet>>,
    /// True if the request named a tier that the layer does not have.
    pub(crate) is_unknown: bool,
    /// The names of the policies that the application holds against the request.
    pub(crate) violated: Vec<Cow<'static, str>>,
}

impl Active {
    /// A set with so many percent of its quotas.
    pub(crate) fn at_capacity(&self, set: Arc<QuotaSet>, percent: u8) -> Arc<QuotaSet> {
        set.at_capacity(percent, &self.config)
    }

    /// Returns `true` if this caller has the new rules of a rollout.
    pub(crate) fn is_trial(&self, partition: Option<PartitionId>) -> bool {
        !std::ptr::eq(self.rules.sets(partition), &*self.rules.current)
    }

    /// The policies of a caller that may have individual quotas.
    #[inline]
    pub(crate) fn for_caller<'a>(
        &self,
        set: Arc<QuotaSet>,
        quotas: impl FnOnce() -> Option<&'a CallerQuotas>,
        now: impl FnOnce() -> Timestamp,
    ) -> Arc<QuotaSet> {
        match set.allows_individual().then(quotas).flatten() {
            Some(quotas) => set.for_caller(quotas, now, &self.config),
            None => set,
        }
    }

    /// Returns `true` if the rules for the caller with this partition have tiers.
    pub(crate) fn has_tiers(&self, partition: Option<PartitionId>) -> bool {
        self.rules.sets(partition).has_tiers()
    }

    /// Returns `true` if requests are limited at all.
    pub(crate) fn is_on(&self) -> bool {
        self.switch.is_on()
    }

    /// The policies of a tier for the caller with this partition. A tier that is missing or unknown is the first one.
    pub(crate) fn select_tier(&self, name: Option<&str>, partition: Option<PartitionId>) -> Selection {
        let sets = self.rules.sets(partition);
        let (tiers, name) = (sets.tiers(), name.filter(|_| sets.has_tiers()));
        let known = name.map(|name| tiers.iter().find(|(tier, _)| tier.as_deref() == Some(name)));
        let (tier, set) = known.flatten().unwrap_or(&tiers[0]);
        Selection {
            tier: tier.clone(),
            set: set.clone(),
            is_unknown: known.is_some_and(|known| known.is_none()),
            ..Selection::default()
        }
    }

    /// Returns `true` if the rules depend on the caller.
    pub(crate) fn depends_on_caller(&self) -> bool {
        self.rules.candidate.is_some()
    }
}

impl Selection {
    /// The name of the tier, empty where there are none.
    pub(crate) fn tier(&self) -> &str {
        self.tier.as_deref().unwrap_or_default()
    }

    /// The names of the policies that a rejection by the application is about, of those that clients may know: the ones
    /// that it has named, or all that reject requests where it has no capacity.
    pub(crate) fn violated_by(&self, outcome: Outcome) -> SmallVec<[&str; 4]> {
        let policies = || self.set.iter().flat_map(|set| set.policies());
        match outcome {
            Outcome::Abnormal => {
                let is_hidden = |name: &str| policies().any(|policy| policy.is_hidden() && policy.name() == name);
                let names = self.violated.iter().map(|name| &**name);
                names.filter(|name| !is_hidden(name)).collect()
            }
            Outcome::Overloaded => {
                let told = policies().filter(|policy| !policy.is_hidden() && !policy.is_shadow());
                told.map(QuotaPolicy::name).collect()
            }
            _ => SmallVec::new(),
        }
    }
}

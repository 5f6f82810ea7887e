use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{applied::AppliedRules, config::RulesConfig, set::QuotaSet, switch::Switch};
use crate::{
    clock::Timestamp,
    decision::Outcome,
    partition::PartitionId,
    policy::{CallerQuotas, QuotaPolicy},
};

/// A snapshot of the rules and the switch.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(super) config: Arc<RulesConfig>,
    pub(super) switch: Switch,
    /// `None`: no source has claimed the rules.
    pub(super) claim: Option<ClaimState>,
    pub(super) rules: AppliedRules,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClaimState {
    /// The rules of the source, while the program overrides them.
    pub(super) overridden: Option<AppliedRules>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    tier: Option<Arc<str>>,
    /// `None` if the request is not limited.
    pub(crate) set: Option<Arc<QuotaSet>>,
    /// Set if the rules do not contain the tier of the request.
    pub(crate) is_unknown: bool,
    /// The policies that the application reports as violated.
    pub(crate) violated: Vec<Cow<'static, str>>,
}

impl Active {
    #[inline]
    pub(crate) fn at_capacity(&self, set: Arc<QuotaSet>, percent: u8) -> Arc<QuotaSet> {
        set.at_capacity(percent, &self.config)
    }

    /// Returns `true` if the caller gets the new rules of a rollout.
    pub(crate) fn is_trial(&self, partition: Option<PartitionId>) -> bool {
        !std::ptr::eq(self.rules.sets(partition), &*self.rules.current)
    }

    /// Applies individual quotas, if the policies allow them.
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

    /// Returns `true` if the rules for this caller have tiers.
    #[inline]
    pub(crate) fn has_tiers(&self, partition: Option<PartitionId>) -> bool {
        self.rules.sets(partition).has_tiers()
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.switch.is_on()
    }

    /// The policies of a tier for this caller. A missing or unknown tier counts as the first one.
    #[inline]
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

    #[inline]
    pub(crate) fn depends_on_caller(&self) -> bool {
        self.rules.candidate.is_some()
    }
}

impl Selection {
    /// Empty for rules without tiers.
    #[inline]
    pub(crate) fn tier(&self) -> &str {
        self.tier.as_deref().unwrap_or_default()
    }

    /// The visible policies that explain a rejection by the application: the policies that the application named, or
    /// all enforced policies if it is overloaded.
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

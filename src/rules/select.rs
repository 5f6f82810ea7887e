//! Which policies apply to a caller. The order of decisions:
//!
//! 1. The *kill switch* ([`Active::is_on`]), which is asked after the access list: blocked callers stay blocked.
//! 2. The *rollout*, by the digest of the main key.
//! 3. The *tier*, by name, in these rules. A caller without a tier, or with an unknown one, has the first tier.
//! 4. *Individual quotas*, for the policies of the tier that allow them.
//! 5. *Reduced capacity*, in percent of the quotas found so far.
//!
//! The last two steps lead to a variant of the set of the tier, which is prepared once and kept with that set.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{
    checked::{AppliedRules, CheckedRules},
    config::RulesConfig,
    resolved::NoTier,
    set::QuotaSet,
    switch::Switch,
};
use crate::{
    clock::Timestamp,
    decision::Outcome,
    partition::PartitionId,
    policy::{CallerQuotas, QuotaPolicy},
};

#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(super) config: Arc<RulesConfig>,
    pub(super) switch: Switch,
    pub(super) rules: AppliedRules,
    pub(super) has_data: bool,
    pub(super) is_claimed: bool,
    /// Those of the source that has claimed the rules, while the program overrides them.
    pub(super) overridden: Option<AppliedRules>,
}

impl Active {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.switch.is_on()
    }

    /// `None` if the tier is unknown and such callers pass uncounted. Calls each closure at most once, and only if the
    /// rules depend on its value. Allocates only for the first caller with the same individual quotas at the same
    /// capacity.
    #[inline]
    pub(crate) fn select<'a>(
        &self,
        percent: u8,
        partition: impl FnOnce() -> Option<PartitionId>,
        tier: impl FnOnce() -> Result<&'a str, NoTier>,
        quotas: impl FnOnce() -> Option<&'a CallerQuotas>,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Cow<'_, Arc<QuotaSet>>> {
        let rules = self.rules_for(partition);
        let tiers = rules.tiers();
        let named = match rules.has_tiers().then(tier) {
            Some(Err(NoTier::Uncounted)) => return None,
            Some(Ok(name)) => tiers.iter().find(|set| set.tier() == name),
            Some(Err(NoTier::First)) | None => None,
        };
        let set = named.unwrap_or(&tiers[0]);
        let numbers = match set.allows_individual().then(quotas).flatten() {
            Some(quotas) => set.individual(quotas, now),
            None => SmallVec::new(),
        };
        Some(set.variant(numbers, percent, &self.config))
    }

    #[inline]
    fn rules_for(&self, partition: impl FnOnce() -> Option<PartitionId>) -> &CheckedRules {
        match &self.rules.rollout {
            Some(rollout) if rollout.takes(partition()) => &rollout.rules,
            _ => &self.rules.current,
        }
    }

    pub(crate) fn is_trial(&self, partition: Option<PartitionId>) -> bool {
        !std::ptr::eq(self.rules_for(|| partition), &*self.rules.current)
    }

    /// Returns the names of all tiers if this is none of them.
    pub(crate) fn unknown_tier(&self, name: &str) -> Option<Vec<String>> {
        let tiers = self.rules.all().flat_map(|checked| checked.rules.tiers());
        let known: Vec<String> = tiers.map(|(tier, _)| tier.to_owned()).collect();
        (!known.is_empty() && !known.iter().any(|tier| tier == name)).then_some(known)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Selection {
    pub(crate) set: Option<Arc<QuotaSet>>,
    pub(crate) violated: Vec<Cow<'static, str>>,
}

impl Selection {
    pub(crate) fn of(set: Arc<QuotaSet>) -> Self {
        Self {
            set: Some(set),
            violated: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn tier(&self) -> &str {
        self.set.as_ref().map_or("", |set| set.tier())
    }

    /// The visible policies that explain a rejection by the application.
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

//! Rules: the policies that apply to a request, the same for all or by the tier of its caller.

mod candidate;
mod claim;
mod data;
mod diff;
#[cfg(feature = "serde")]
mod format;
mod grants;
mod handle;
mod resolved;
mod set;
mod settings;
mod switch;
mod tiers;
mod view;

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use self::{candidate::Candidate, claim::ClaimState, grants::Grants, switch::Switch, view::RulesConfig};
pub use self::{
    claim::{RulesClaim, RulesUpdate},
    data::Rules,
    diff::{ChangeKind, RulesChange, RulesDiff},
    handle::RulesHandle,
    resolved::ResolvedTier,
    tiers::Tiers,
};
pub(crate) use self::{
    grants::Grant,
    resolved::NoTier,
    set::{FollowUp, QuotaSet},
    settings::RulesSettings,
    tiers::TierSource,
    view::{LayerView, ViewClaim},
};
use crate::{
    clock::Timestamp,
    decision::Outcome,
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
    policy::{Policy, QuotaPolicy},
    sync::{mutex::Mutex, per_thread::PerThread},
    telemetry::SwitchMeter,
};

/// The rules of a limiter, which may be replaced while requests are under way.
pub(crate) struct Policies {
    scope: Box<str>,
    /// The names of all keys but the main one.
    keys: Vec<String>,
    /// True if rules came as data, which need not use every key and unit of the program.
    has_data: AtomicBool,
    active: ArcSwap<Active>,
    /// Rules are checked and put in force in one step: a layer may be added meanwhile, whose view they need.
    changing: Mutex<()>,
    switch_meter: SwitchMeter,
}

/// The rules in force at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    config: Arc<RulesConfig>,
    switch: Switch,
    /// `None` while no source has claimed the rules.
    claim: Option<ClaimState>,
    rules: AppliedRules,
    grants: Arc<Grants>,
}

/// Valid rules for all callers, and those that are tried on a part of them.
#[derive(Clone, Debug)]
struct AppliedRules {
    current: Arc<Sets>,
    candidate: Option<Candidate>,
}

/// Rules that were found valid.
#[derive(Debug)]
struct Sets {
    rules: Rules,
    /// One without a name if all callers have the same policies.
    tiers: PerThread<Vec<CheckedTier>>,
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

impl Policies {
    /// The policies of a caller, raised if there is a grant that is not over.
    pub(crate) fn granted(
        &self,
        active: &Active,
        set: Arc<QuotaSet>,
        partition: PartitionId,
        now: impl FnOnce() -> Timestamp,
    ) -> Arc<QuotaSet> {
        let raised = active.grants.get(&partition).and_then(|grant| {
            let raise = |set: &QuotaSet, units| set.raised_by(units, &active.config).ok();
            grant.raise(&set, now(), raise)
        });
        raised.unwrap_or(set)
    }

    /// Gives a caller more than the rules say.
    pub(crate) fn grant(&self, partition: PartitionId, grant: Grant, now: Timestamp) -> Result<(), ConfigError> {
        let (grant, mut result) = (Arc::new(grant), Ok(()));
        self.change(|active| {
            let given = grants::give(&active.grants, partition, &grant, now);
            // The result of the last attempt holds.
            result = given.map(|grants| active.grants = Arc::new(grants));
        });
        result
    }

    /// Two changes at once both happen: `change` runs again if another one came between.
    fn change(&self, mut change: impl FnMut(&mut Active)) {
        self.active.rcu(|active| {
            let mut changed = Active::clone(active);
            change(&mut changed);
            changed
        });
        self.switch_meter.turned(|| !self.active.load().is_on());
    }

    /// The rules in force. A request keeps the ones that it began with.
    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<Active>> {
        self.active.load()
    }

    /// The names of all keys but the main one.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The policies of a tier, or of the first one without a name; `None` if it is not limited. A name that rules with tiers
    /// do not have is an error, with the names that they have.
    pub(crate) fn of_tier(
        active: &Active,
        name: Option<&str>,
        partition: Option<PartitionId>,
    ) -> Result<Option<Arc<QuotaSet>>, Vec<String>> {
        if let Some(name) = name {
            let tiers = active.rules.all().flat_map(|sets| sets.tiers.first());
            let known: Vec<String> = tiers
                .filter_map(|(tier, _)| Some(tier.as_deref()?.to_owned()))
                .collect();
            // Rules without tiers are the same for every tier.
            if !known.is_empty() && !known.iter().any(|tier| tier == name) {
                return Err(known);
            }
        }
        let tiers = active.rules.sets(partition).tiers();
        let named = tiers.iter().find(|(tier, _)| tier.as_deref() == name);
        Ok(named.unwrap_or(&tiers[0]).1.clone())
    }

    /// The policies of all tiers, and those that are tried.
    pub(crate) fn all_sets(&self) -> Vec<Arc<QuotaSet>> {
        let active = self.active.load();
        let sets = active.rules.all().flat_map(|sets| sets.all().cloned());
        sets.collect()
    }

    /// The shortest window of a set that has none shorter than an hour.
    pub(crate) fn lone_large_window(&self) -> Option<Duration> {
        self.all_sets().iter().find_map(|set| set.lone_large_window())
    }

    /// The name of a policy whose partition key clients see, made from the main key or from a named one of which this holds.
    pub(crate) fn showing_key(&self, of_interest: impl Fn(Option<usize>) -> bool) -> Option<String> {
        let sets = self.all_sets();
        let parts = sets.iter().flat_map(|set| &set.parts);
        let policies = parts
            .filter(|part| of_interest(part.key))
            .flat_map(|part| &part.policies);
        let mut policies = policies.map(Policy::policy);
        let shown = policies.find(|policy| policy.shows_partition_key && !policy.is_hidden())?;
        Some(shown.name().to_owned())
    }
}

impl Active {
    /// A set with so many percent of its quotas.
    pub(crate) fn at_capacity(&self, set: Arc<QuotaSet>, percent: u8) -> Arc<QuotaSet> {
        set.at_capacity(percent, &self.config)
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
        self.rules.candidate.is_some() || !self.grants.is_empty()
    }
}

impl AppliedRules {
    /// The rules for a caller: those that are tried, for a part of them.
    fn sets(&self, partition: Option<PartitionId>) -> &Sets {
        let candidate = self.candidate.as_ref().filter(|candidate| candidate.takes(partition));
        candidate.map_or(&self.current, |candidate| &candidate.sets)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Sets>> {
        let candidate = self.candidate.as_ref().map(|candidate| &candidate.sets);
        std::iter::once(&self.current).chain(candidate)
    }
}

impl Sets {
    fn new(rules: Rules, config: &RulesConfig) -> Result<Self, ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Policies, message));
        let can_tell = config.can_tell_tiers();
        let tiers = match (&*rules.policies, &*rules.tiers) {
            ([], []) if config.expects_tiers() => return error("tiers: there is none; at least one is needed"),
            (policies, []) => vec![(None, Some(Arc::new(config.check(policies)?)))],
            ([], tiers) if can_tell => config.check_tiers(tiers)?,
            ([], _) => return Err(RulesConfig::no_source_of_tiers()),
            _ => return error("policies: both `policy` and `tiers` are set; put the policies into the tiers"),
        };
        let tiers = PerThread::new(tiers);
        Ok(Self { rules, tiers })
    }

    /// The policies of each tier, for requests of this thread.
    fn tiers(&self) -> &[CheckedTier] {
        self.tiers.local(|tiers| {
            let apart = |set: &Arc<QuotaSet>| Arc::new(set.with_own_count());
            let tiers = tiers.iter();
            tiers
                .map(|(name, set)| (name.as_deref().map(Arc::from), set.as_ref().map(apart)))
                .collect()
        })
    }

    fn has_tiers(&self) -> bool {
        self.tiers()[0].0.is_some()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<QuotaSet>> {
        self.tiers.first().iter().filter_map(|(_, set)| set.as_ref())
    }
}

/// A tier's name and its policies, if it has any.
type CheckedTier = (Option<Arc<str>>, Option<Arc<QuotaSet>>);

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.active.load().rules.current.rules.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        partition::{PartitionKey, Scope},
        sync::random::for_many,
    };

    fn candidate(percent: u8) -> Candidate {
        let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 1));
        let sets = Sets::new(rules, &RulesConfig::default());
        Candidate {
            percent,
            partitions: Arc::default(),
            sets: Arc::new(sets.unwrap()),
        }
    }

    /// L30: 100 000 keys of any kind, and one percent more or less.
    #[test]
    fn a_share_is_as_large_as_it_says_for_any_scope_and_any_kind_of_keys() {
        for_many(2, |random| {
            let mut text =
                |length| String::from_iter(random.list(length, |random| random.any_of(&['a', ':', 'ß', '\0'])));
            let (scope, kind) = (Scope::new(&text(1..20)), text(0..20));
            let (first, percent) = (random.within(0..1 << 32), random.any_of(&[0, 1, 10, 10, 50, 99, 100]));
            let candidate = candidate(percent);
            let members = (0..100_000_u64).filter(|number| {
                let key = PartitionKey::new(&kind, (first + number).to_be_bytes());
                candidate.takes(Some(scope.partition(&key)))
            });
            let share = members.count() as f64 / 1_000.0;
            assert!((share - f64::from(percent)).abs() <= 1.0, "{share} of {percent}");
            assert!(percent > 0 || share == 0.0);
            assert!(percent < 100 || share == 100.0);
            assert!(!candidate.takes(None), "nobody knows who it is");
        });
    }
}

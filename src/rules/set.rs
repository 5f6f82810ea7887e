use std::{borrow::Cow, sync::Arc, time::Duration};

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::config::{LayerView, RulesConfig};
use crate::{
    clock::Timestamp,
    error::{ConfigError, ConfigErrorKind},
    fields::Prepared,
    policy::{
        Algorithm, CallerQuotas, Direction, MAX_UNITS, Numbers, Policy, PolicySet, QuotaPolicy, QuotaUnit, UnitName,
    },
    response::rejection::KnownRejections,
    sync::{mutex::Mutex, random},
};

/// Each thread has a copy in separate cache lines, because every request updates the reference count.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct QuotaSet {
    tier: Arc<str>,
    policies: PolicySet,
    pub(crate) parts: SmallVec<[SetPart; 1]>,
    views: SmallVec<[SetView; 1]>,
    pub(crate) has_units: bool,
    pub(crate) counts_request_bytes: bool,
    pub(crate) stays_open: bool,
    pub(crate) has_shadows_or_overages: bool,
    allows_individual: bool,
    pub(crate) is_reduced: bool,
    /// Set in the copy of a thread, but not of a variant, so that a variant is dropped when it is evicted.
    original: Option<Arc<Self>>,
    variants: Mutex<Variants>,
}

/// By individual quotas and capacity in percent. Copies of a thread have copies of their original's variants, because
/// prefetched units and cached rejections identify policies by their address.
type Variants = IndexMap<(IndividualNumbers, u8), Arc<QuotaSet>, foldhash::fast::RandomState>;

pub(super) type IndividualNumbers = SmallVec<[(usize, Numbers); 1]>;

/// Per tier.
const MAX_VARIANTS: usize = 4_096;

/// Empty for a dropped layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetView {
    pub(crate) fields: Option<Arc<Prepared>>,
    /// True if the fields of an admitted request depend only on the numbers of all policies, in their order.
    pub(crate) takes_numbers: bool,
    /// Threads that reject requests would contend for shared counts.
    pub(crate) rejections: Arc<KnownRejections>,
    /// True if whole responses are known: the numbers of the violated policies determine their fields.
    pub(crate) keeps_rejections: bool,
    /// Positions among the units that have a cost.
    pub(crate) units: SmallVec<[usize; MAX_UNITS]>,
}

impl SetView {
    fn new(policies: &PolicySet, layer: &LayerView) -> Result<Self, ConfigError> {
        if policies.is_empty() {
            return Ok(Self::default());
        }
        let mut view = Self {
            units: units(policies, &layer.units)?,
            ..Self::default()
        };
        view.show(
            layer.fields.prepare(policies.iter().map(Policy::policy))?,
            policies,
            layer,
        );
        Ok(view)
    }

    /// Shows the limits of `policies` and the policies of `others`.
    fn show_limits(&mut self, policies: &PolicySet, others: Option<&Prepared>, layer: &LayerView) {
        let limits = layer.fields.prepare_limits(policies.iter().map(Policy::policy));
        let fields = limits.map(|limits| match others {
            Some(others) => limits.with_policies_of(others),
            None => limits,
        });
        self.show(fields, policies, layer);
        // A tier can have thousands of variants, and each would keep its responses.
        self.keeps_rejections = false;
    }

    fn show(&mut self, fields: Option<Prepared>, policies: &PolicySet, layer: &LayerView) {
        let takes = |policies| fields.as_ref().is_none_or(|fields| fields.takes_numbers(policies));
        let visible = policies.iter().filter(|policy| !policy.policy().is_hidden());
        self.takes_numbers = layer.fields.are_numbers() && takes(policies.iter().len());
        self.keeps_rejections = layer.fields.are_numbers_of_rejections() && takes(visible.count());
        self.fields = fields.map(Arc::new);
        self.rejections = Arc::default();
    }

    fn with_own_count(&self) -> Self {
        Self {
            fields: self.fields.as_ref().map(|fields| Arc::new(fields.with_own_count())),
            takes_numbers: self.takes_numbers,
            keeps_rejections: self.keeps_rejections,
            rejections: Arc::default(),
            units: self.units.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SetPart {
    pub(crate) key: Option<usize>,
    pub(crate) policies: PolicySet,
}

fn parts(policies: &PolicySet, config: &RulesConfig) -> Result<SmallVec<[SetPart; 1]>, ConfigError> {
    let mut parts: Vec<(Option<usize>, Vec<QuotaPolicy>)> = Vec::new();
    for policy in policies.policies() {
        let key = match policy.key_name() {
            None => None,
            Some(name) => Some(config.keys.get_index_of(name).ok_or_else(|| {
                let message = format!("policy {:?}: unknown key {name:?}", policy.name());
                ConfigError::new(ConfigErrorKind::Key, message)
            })?),
        };
        match parts.iter_mut().find(|(other, _)| *other == key) {
            Some((_, policies)) => policies.push(policy.clone()),
            None => parts.push((key, vec![policy.clone()])),
        }
    }
    if let [(key, _)] = &*parts {
        let (key, policies) = (*key, policies.clone());
        return Ok(SmallVec::from_buf([SetPart { key, policies }]));
    }
    let checked = parts.into_iter().map(|(key, policies)| {
        let policies = PolicySet::new(policies)?;
        Ok(SetPart { key, policies })
    });
    checked.collect()
}

fn units(policies: &PolicySet, known: &[UnitName]) -> Result<SmallVec<[usize; MAX_UNITS]>, ConfigError> {
    let positions = policies.units().into_iter().map(|unit| {
        let position = known.iter().position(|other| *other == unit);
        position.ok_or_else(|| {
            let unit_of = |policy: &&Policy| policy.policy().unit() == QuotaUnit::Custom(unit);
            let policy = policies
                .iter()
                .find(unit_of)
                .map_or("", |policy| policy.policy().name());
            let message = format!("policy {policy:?}: unit {unit:?} has no cost; `unit_cost` is set for {known:?}");
            ConfigError::new(ConfigErrorKind::Unit, message)
        })
    });
    positions.collect()
}

impl QuotaSet {
    pub(super) fn unlimited(tier: &str, config: &RulesConfig) -> Self {
        let views = config.views.iter().map(|_| SetView::default());
        Self::of(tier.into(), PolicySet::unlimited(), SmallVec::new(), views.collect())
    }

    pub(super) fn new(tier: Arc<str>, policies: Vec<QuotaPolicy>, config: &RulesConfig) -> Result<Self, ConfigError> {
        let policies = PolicySet::new(policies)?;
        let parts = parts(&policies, config)?;
        let views = config.views.iter().map(|layer| match layer.upgrade() {
            None => Ok(SetView::default()),
            Some(layer) => SetView::new(&policies, &layer),
        });
        let views = views.collect::<Result<_, _>>()?;
        Ok(Self::of(tier, policies, parts, views))
    }

    fn of(tier: Arc<str>, policies: PolicySet, parts: SmallVec<[SetPart; 1]>, views: SmallVec<[SetView; 1]>) -> Self {
        let any = |test: &dyn Fn(&QuotaPolicy) -> bool| policies.iter().any(|policy| test(policy.policy()));
        let counts_request_bytes = [Direction::Request, Direction::Both].map(QuotaUnit::ContentBytes);
        let may_change = |policy: &QuotaPolicy| {
            matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. })
                || matches!(policy.unit(), QuotaUnit::ContentBytes(_) | QuotaUnit::Custom(_))
        };
        Self {
            has_units: any(&|policy| matches!(policy.unit(), QuotaUnit::Custom(_))),
            counts_request_bytes: any(&|policy| counts_request_bytes.contains(&policy.unit())),
            stays_open: policies.traits().has_slots || any(&may_change),
            has_shadows_or_overages: any(&|policy| policy.is_shadow() || policy.overage.is_some()),
            allows_individual: any(&|policy| policy.caller_quotas.is_some()),
            is_reduced: false,
            original: None,
            variants: Mutex::default(),
            tier,
            policies,
            parts,
            views,
        }
    }

    fn with_views(&self, views: SmallVec<[SetView; 1]>) -> Self {
        Self::of(Arc::clone(&self.tier), self.policies.clone(), self.parts.clone(), views)
    }

    /// Finds the variants of `self`.
    pub(super) fn for_thread(self: &Arc<Self>) -> Self {
        Self {
            original: Some(Arc::clone(self)),
            ..self.with_own_count()
        }
    }

    fn with_own_count(&self) -> Self {
        let parts = self.parts.iter().map(|part| SetPart {
            key: part.key,
            policies: part.policies.with_own_count(),
        });
        Self {
            tier: Arc::clone(&self.tier),
            policies: self.policies.with_own_count(),
            parts: parts.collect(),
            views: self.views.iter().map(SetView::with_own_count).collect(),
            original: None,
            variants: Mutex::default(),
            ..*self
        }
    }

    pub(super) fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        let view = SetView::new(&self.policies, layer)?;
        layer.check(&self.policies)?;
        let mut views = self.views.clone();
        match views.get_mut(position) {
            Some(gone) => *gone = view,
            None => views.push(view),
        }
        Ok(self.with_views(views))
    }

    #[inline]
    pub(crate) fn tier(&self) -> &str {
        &self.tier
    }

    #[inline]
    pub(crate) fn replaces(&self, tier: Option<&str>) -> bool {
        !self.tier.is_empty() && tier.is_some_and(|tier| *tier != *self.tier)
    }

    pub(super) fn all(&self) -> &PolicySet {
        &self.policies
    }

    #[inline]
    pub(crate) fn view(&self, position: usize) -> &SetView {
        &self.views[position]
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = &QuotaPolicy> {
        self.policies.iter().map(Policy::policy)
    }

    #[inline]
    pub(super) fn allows_individual(&self) -> bool {
        self.allows_individual
    }

    pub(super) fn individual(&self, quotas: &CallerQuotas, now: impl FnOnce() -> Timestamp) -> IndividualNumbers {
        let now = if quotas.has_end() { now() } else { Timestamp::default() };
        let numbers = self.policies().enumerate();
        let numbers = numbers.filter_map(|(index, policy)| Some((index, quotas.of(policy, now)?)));
        numbers.collect()
    }

    #[inline]
    pub(super) fn variant<'a>(
        self: &'a Arc<Self>,
        numbers: IndividualNumbers,
        percent: u8,
        config: &RulesConfig,
    ) -> Cow<'a, Arc<Self>> {
        if numbers.is_empty() && percent >= 100 || self.policies.is_empty() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(self.interned((numbers, percent.clamp(1, 100)), config))
    }

    fn interned(&self, key: (IndividualNumbers, u8), config: &RulesConfig) -> Arc<Self> {
        if let Some(known) = self.variants.lock().get(&key) {
            return Arc::clone(known);
        }
        let made = Arc::new(match &self.original {
            Some(original) => original.interned(key.clone(), config).with_own_count(),
            None => self.make(&key, config),
        });
        let mut variants = self.variants.lock();
        if variants.len() >= MAX_VARIANTS {
            let evicted = random::number() as usize % variants.len();
            variants.swap_remove_index(evicted);
        }
        Arc::clone(variants.entry(key).or_insert(made))
    }

    fn make(&self, (numbers, percent): &(IndividualNumbers, u8), config: &RulesConfig) -> Self {
        match (numbers.is_empty(), percent) {
            (true, percent) => self.reduced_to(*percent, config),
            (false, 100) => {
                let mut policies: Vec<QuotaPolicy> = self.policies().cloned().collect();
                for (index, numbers) in numbers {
                    policies[*index] = policies[*index].with_numbers(*numbers);
                }
                let same = |_| self.with_views(self.views.clone());
                self.changed_to(policies, config).unwrap_or_else(same)
            }
            (false, percent) => self
                .interned((numbers.clone(), 100), config)
                .reduced_to(*percent, config),
        }
    }

    /// Only the numbers may differ.
    fn changed_to(&self, policies: Vec<QuotaPolicy>, config: &RulesConfig) -> Result<Self, ConfigError> {
        let of = |policies, config: &_| Self::new(Arc::clone(&self.tier), policies, config);
        of(policies.clone(), config).or_else(|_| {
            // The fields of a layer cannot represent these policies, so they show the original policies.
            let mut changed = of(policies, &config.without_layers())?;
            changed.views.clone_from(&self.views);
            for (position, layer) in config.views.iter().enumerate() {
                if let Some(layer) = layer.upgrade() {
                    let others = self.views[position].fields.as_deref();
                    changed.views[position].show_limits(&changed.policies, others, &layer);
                }
            }
            Ok(changed)
        })
    }

    fn reduced_to(&self, percent: u8, config: &RulesConfig) -> Self {
        let reduced = |percent| {
            let reduced = self.policies().map(|policy| policy.clone().reduced_to(percent));
            Self::new(Arc::clone(&self.tier), reduced.collect(), config)
        };
        // Some percentages lead to numbers that cannot be counted exactly, or that are equal where a dialect forbids
        // it. Try lower percentages.
        let found = (1..=percent).rev().find_map(|percent| reduced(percent).ok());
        let mut found = found.unwrap_or_else(|| self.with_views(self.views.clone()));
        for (position, layer) in config.views.iter().enumerate() {
            if let Some(layer) = layer.upgrade().filter(|layer| layer.fields.shows_usual_policies()) {
                let others = self.views[position].fields.as_deref();
                found.views[position].show_limits(&found.policies, others, &layer);
            }
        }
        found.is_reduced = true;
        found
    }

    /// Only if a client could spend its whole quota in one burst.
    pub(super) fn lone_large_window(&self) -> Option<Duration> {
        use Algorithm::{LeakyBucketMeter, LeakyBucketQueue};

        if self
            .policies()
            .any(|policy| matches!(policy.algorithm(), LeakyBucketMeter | LeakyBucketQueue { .. }))
        {
            return None;
        }
        // A concurrency limit has no window: `None` compares as the minimum.
        let shortest = self.policies().map(QuotaPolicy::usual_window).min()?;
        shortest.filter(|window| *window > Duration::from_secs(3_600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_with_equal_numbers_share_one_set_and_the_number_of_sets_is_bounded() {
        let minute = QuotaPolicy::per_minute("minute", 100).with_caller_quotas(1..=100_000);
        let config = RulesConfig::default();
        let set = Arc::new(QuotaSet::new("".into(), vec![minute], &config).unwrap());
        let copies = [0; 2].map(|_| Arc::new(set.for_thread()));
        let of = |copy: &Arc<QuotaSet>, quota, percent| {
            let quotas = CallerQuotas::new().quota("minute", quota);
            let numbers = copy.individual(&quotas, Timestamp::default);
            copy.variant(numbers, percent, &config).into_owned()
        };
        let [here, there] = &copies;
        let is_same = |one: &QuotaSet, other: &QuotaSet| one.policies.is_same(&other.policies);
        for percent in [100, 50] {
            let one = of(here, 5_000, percent);
            assert!(Arc::ptr_eq(&one, &of(here, 5_000, percent)), "made once");
            assert!(is_same(&one, &of(there, 5_000, percent)), "shared by all threads");
            assert!(
                !Arc::ptr_eq(&one, &of(there, 5_000, percent)),
                "with a count of its own"
            );
            assert!(!is_same(&one, &of(here, 5_001, percent)));
            let most = [100_001, 100_000].map(|quota| of(here, quota, percent));
            assert!(Arc::ptr_eq(&most[0], &most[1]), "the same within the bounds");
        }
        assert!(Arc::ptr_eq(&of(here, 100, 100), here), "the numbers of the rules");
        for quota in 1..=MAX_VARIANTS as u64 + 100 {
            assert_eq!(of(here, quota, 100).policies().next().unwrap().quota(), quota);
        }
        for percent in 1..100 {
            let reduced = of(here, 5_000, percent);
            assert_eq!(reduced.policies().next().unwrap().quota(), 50 * u64::from(percent));
            assert!(reduced.is_reduced);
        }
        for sets in [&set, here] {
            assert_eq!(sets.variants.lock().len(), MAX_VARIANTS);
        }
    }
}

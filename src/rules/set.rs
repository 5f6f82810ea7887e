//! Policies that apply together, and what is derived from them.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::config::{KeyNames, LayerView, RulesConfig};
use crate::{
    clock::Timestamp,
    error::{ConfigError, ConfigErrorKind},
    fields::Prepared,
    policy::{
        Algorithm, CallerQuotas, Direction, MAX_UNITS, Numbers, Policy, PolicySet, QuotaPolicy, QuotaUnit, UnitName,
    },
    sync::{mutex::Mutex, per_thread::PerThread, random},
};

/// The policies of one decision, and the fields that show them.
///
/// Each thread has its own copy in separate cache lines, because every request updates the reference count.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct QuotaSet {
    policies: PolicySet,
    pub(crate) parts: SmallVec<[SetPart; 1]>,
    pub(crate) follow_up: FollowUp,
    /// Indexed by the position of the layer.
    views: SmallVec<[SetView; 1]>,
    pub(crate) has_shadows_or_overages: bool,
    /// True for policies at reduced capacity.
    pub(crate) is_reduced: bool,
    /// The policies at 1 to 99 percent capacity, created on first use.
    reduced: Arc<OnceLock<Box<Reduced>>>,
    /// Sets for callers with individual quotas, shared by all copies of this set. `None` if no policy allows them.
    individual: Option<Arc<Mutex<IndividualSets>>>,
    /// Set if this set belongs to a caller with individual quotas.
    place: Option<Arc<Place>>,
}

#[derive(Debug)]
struct Place {
    sets: Weak<Mutex<IndividualSets>>,
    numbers: IndividualNumbers,
}

/// Keyed by the numbers, each with the index of its policy, and by the capacity in percent.
type IndividualSets = IndexMap<(IndividualNumbers, u8), PerThread<Arc<QuotaSet>>, foldhash::fast::RandomState>;
type IndividualNumbers = SmallVec<[(usize, Numbers); 1]>;

/// Maximum per tier.
const MAX_INDIVIDUAL_SETS: usize = 4_096;

/// The part of a set that depends on a layer. Empty for a dropped layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetView {
    pub(crate) fields: Option<Arc<Prepared>>,
    /// Positions of the custom units among the units that have a cost.
    pub(crate) units: Units,
}

impl SetView {
    fn new(policies: &PolicySet, layer: &LayerView) -> Result<Self, ConfigError> {
        Ok(Self {
            units: units(policies, &layer.units)?,
            fields: layer.fields.prepare(policies.iter().map(Policy::policy))?.map(Arc::new),
        })
    }

    fn with_own_count(&self) -> Self {
        Self {
            fields: self.fields.as_ref().map(|fields| Arc::new(fields.with_own_count())),
            units: self.units.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SetPart {
    /// The position among the named keys. `None` for the main key.
    pub(crate) key: Option<usize>,
    pub(crate) policies: PolicySet,
}

pub(crate) type Units = SmallVec<[usize; MAX_UNITS]>;

type Reduced = [OnceLock<PerThread<Arc<QuotaSet>>>; 99];

/// The follow-up that an admitted request needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FollowUp {
    pub(crate) counts_request_bytes: bool,
    pub(crate) counts_response_bytes: bool,
    pub(crate) has_queue: bool,
    pub(crate) has_slots: bool,
    pub(crate) has_units: bool,
}

/// Groups the policies by key, in the order of their first policies.
fn parts(policies: &PolicySet, keys: &KeyNames) -> Result<SmallVec<[SetPart; 1]>, ConfigError> {
    let mut parts: Vec<(Option<usize>, Vec<QuotaPolicy>)> = Vec::new();
    for policy in policies {
        let policy = policy.policy();
        let key = match policy.key_name() {
            None => None,
            Some(name) => Some(keys.get_index_of(name).ok_or_else(|| {
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

fn units(policies: &PolicySet, known: &[UnitName]) -> Result<Units, ConfigError> {
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

impl FollowUp {
    fn of(policies: &PolicySet) -> Self {
        let any = |test: &dyn Fn(&QuotaPolicy) -> bool| policies.iter().any(|policy| test(policy.policy()));
        let counts = |content| {
            let units = [content, Direction::Both].map(QuotaUnit::ContentBytes);
            any(&|policy| units.contains(&policy.unit()))
        };
        Self {
            counts_request_bytes: counts(Direction::Request),
            counts_response_bytes: counts(Direction::Response),
            has_queue: any(&|policy| matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. })),
            has_slots: policies.traits().has_slots,
            has_units: any(&|policy| matches!(policy.unit(), QuotaUnit::Custom(_))),
        }
    }

    pub(crate) fn is_needed(self) -> bool {
        self.counts_request_bytes || self.counts_response_bytes || self.has_queue || self.has_slots || self.has_units
    }
}

/// If the collection is full, a random set is evicted.
fn individual_set(
    sets: &Mutex<IndividualSets>,
    key: (IndividualNumbers, u8),
    make: impl FnOnce() -> QuotaSet,
) -> Arc<QuotaSet> {
    let local = |set: &PerThread<Arc<QuotaSet>>| Arc::clone(set.local(|set| Arc::new(set.with_own_count())));
    if let Some(known) = sets.lock().get(&key) {
        return local(known);
    }
    let set = make();
    let mut sets = sets.lock();
    if sets.len() >= MAX_INDIVIDUAL_SETS {
        let evicted = random::number() as usize % sets.len();
        sets.swap_remove_index(evicted);
    }
    local(sets.entry(key).or_insert_with(|| PerThread::new(Arc::new(set))))
}

impl QuotaSet {
    pub(super) fn new(policies: Vec<QuotaPolicy>, config: &RulesConfig) -> Result<Self, ConfigError> {
        let policies = PolicySet::new(policies)?;
        let parts = parts(&policies, &config.keys)?;
        let views = config.views.iter().map(|layer| match layer.upgrade() {
            None => Ok(SetView::default()),
            Some(layer) => SetView::new(&policies, &layer),
        });
        let views = views.collect::<Result<_, _>>()?;
        Ok(Self::of(policies, parts, views))
    }

    fn of(policies: PolicySet, parts: SmallVec<[SetPart; 1]>, views: SmallVec<[SetView; 1]>) -> Self {
        let has_individual = policies.iter().any(|policy| policy.policy().caller_quotas.is_some());
        Self {
            parts,
            views,
            follow_up: FollowUp::of(&policies),
            has_shadows_or_overages: policies
                .iter()
                .map(Policy::policy)
                .any(|policy| policy.is_shadow() || policy.overage.is_some()),
            policies,
            is_reduced: false,
            reduced: Arc::default(),
            individual: has_individual.then(Arc::default),
            place: None,
        }
    }

    /// A copy with its own reference counts, for another thread.
    pub(super) fn with_own_count(&self) -> Self {
        let parts = self.parts.iter().map(|part| SetPart {
            key: part.key,
            policies: part.policies.with_own_count(),
        });
        Self {
            policies: self.policies.with_own_count(),
            parts: parts.collect(),
            views: self.views.iter().map(SetView::with_own_count).collect(),
            reduced: Arc::clone(&self.reduced),
            individual: self.individual.clone(),
            place: self.place.clone(),
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
        Ok(Self::of(self.policies.clone(), self.parts.clone(), views))
    }

    pub(super) fn all(&self) -> &PolicySet {
        &self.policies
    }

    #[inline]
    pub(crate) fn view(&self, position: usize) -> &SetView {
        &self.views[position]
    }

    /// Returns `true` if both are copies of the same set, on any threads.
    #[cfg(test)]
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.reduced, &other.reduced)
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = &QuotaPolicy> {
        self.policies.iter().map(Policy::policy)
    }

    #[inline]
    pub(super) fn at_capacity(self: Arc<Self>, percent: u8, config: &RulesConfig) -> Arc<Self> {
        match percent {
            100.. => self,
            percent => self.at_reduced_capacity(percent.max(1), config),
        }
    }

    fn at_reduced_capacity(&self, percent: u8, config: &RulesConfig) -> Arc<Self> {
        if let Some(place) = &self.place
            && let Some(sets) = place.sets.upgrade()
        {
            let key = (place.numbers.clone(), percent);
            return individual_set(&sets, key, || self.reduced_to(percent, config));
        }
        let reduced = self.reduced.get_or_init(|| Box::new([const { OnceLock::new() }; 99]));
        let reduced = &reduced[usize::from(percent) - 1];
        let reduced = reduced.get_or_init(|| PerThread::new(Arc::new(self.reduced_to(percent, config))));
        Arc::clone(reduced.local(|set| Arc::new(set.with_own_count())))
    }

    #[inline]
    pub(crate) fn allows_individual(&self) -> bool {
        self.individual.is_some()
    }

    /// The policies of a caller with individual quotas. Callers with equal numbers share one set.
    pub(super) fn for_caller(
        self: Arc<Self>,
        quotas: &CallerQuotas,
        now: impl FnOnce() -> Timestamp,
        config: &RulesConfig,
    ) -> Arc<Self> {
        let Some(individual) = &self.individual else {
            return self;
        };
        let now = if quotas.has_end() { now() } else { Timestamp::default() };
        let numbers = self.policies().enumerate();
        let numbers = numbers.filter_map(|(index, policy)| Some((index, quotas.of(policy, now)?)));
        let numbers: IndividualNumbers = numbers.collect();
        if numbers.is_empty() {
            return self;
        }
        individual_set(individual, (numbers.clone(), 100), || {
            let mut policies: Vec<QuotaPolicy> = self.policies().cloned().collect();
            for (index, numbers) in &numbers {
                policies[*index] = policies[*index].with_numbers(*numbers);
            }
            let same = |_| Self::of(self.policies.clone(), self.parts.clone(), self.views.clone());
            let mut set = self.changed_to(policies, config).unwrap_or_else(same);
            let sets = Arc::downgrade(individual);
            set.place = Some(Arc::new(Place {
                sets,
                numbers: numbers.clone(),
            }));
            set
        })
    }

    /// A set of `policies`, which differ from the policies of `self` only in their numbers.
    fn changed_to(&self, policies: Vec<QuotaPolicy>, config: &RulesConfig) -> Result<Self, ConfigError> {
        Self::new(policies.clone(), config).or_else(|_| {
            // The fields of a layer cannot represent these policies, so they show the original policies.
            let mut changed = Self::new(policies, &config.without_layers())?;
            changed.views.clone_from(&self.views);
            Ok(changed)
        })
    }

    fn reduced_to(&self, percent: u8, config: &RulesConfig) -> Self {
        let reduced = |percent| {
            let reduced = self.policies().map(|policy| policy.clone().reduced_to(percent));
            Self::new(reduced.collect(), config)
        };
        // Some percentages lead to numbers that cannot be counted exactly, or that are equal where a dialect forbids
        // it. Try lower percentages.
        let found = (1..=percent).rev().find_map(|percent| reduced(percent).ok());
        let same = || Self::of(self.policies.clone(), self.parts.clone(), self.views.clone());
        let mut found = found.unwrap_or_else(same);
        for (position, layer) in config.views.iter().enumerate() {
            if layer.upgrade().is_some_and(|layer| layer.fields.shows_usual_policies()) {
                found.views[position].fields.clone_from(&self.views[position].fields);
            }
        }
        found.is_reduced = true;
        found
    }

    /// The shortest window, if it is long enough that a client could spend its whole quota in one burst.
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
        let set = Arc::new(QuotaSet::new(vec![minute], &config).unwrap());
        let quotas = |quota| CallerQuotas::new().quota("minute", quota);
        let of = |quota| Arc::clone(&set).for_caller(&quotas(quota), Timestamp::default, &config);
        assert!(of(5_000).is_same(&of(5_000)) && !of(5_000).is_same(&of(5_001)));
        assert!(of(100).is_same(&set), "the numbers of the rules");
        assert!(of(100_001).is_same(&of(100_000)), "the same within the bounds");
        for quota in 1..=MAX_INDIVIDUAL_SETS as u64 + 100 {
            assert_eq!(of(quota).policies().next().unwrap().quota(), quota);
        }
        let number = || set.individual.as_ref().unwrap().lock().len();
        assert_eq!(number(), MAX_INDIVIDUAL_SETS);
        // Sets with reduced capacity count as well.
        for percent in 1..100 {
            let reduced = of(5_000).at_capacity(percent, &config);
            assert_eq!(reduced.policies().next().unwrap().quota(), 50 * u64::from(percent));
            assert!(reduced.is_reduced);
        }
        assert_eq!(number(), MAX_INDIVIDUAL_SETS);
        assert!(of(5_000).reduced.get().is_none());
    }
}

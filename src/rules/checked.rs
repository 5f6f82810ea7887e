use std::{collections::HashSet, sync::Arc};

use super::{
    config::{LayerView, RulesConfig},
    data::Rules,
    set::QuotaSet,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
    policy::QuotaPolicy,
    sync::per_thread::PerThread,
};

#[derive(Clone, Debug)]
pub(super) struct AppliedRules {
    pub(super) current: Arc<CheckedRules>,
    pub(super) rollout: Option<Rollout>,
}

#[derive(Clone, Debug)]
pub(super) struct Rollout {
    pub(super) percent: u8,
    partitions: Arc<[PartitionId]>,
    pub(super) rules: Arc<CheckedRules>,
}

#[derive(Debug)]
pub(super) struct CheckedRules {
    pub(super) rules: Rules,
    /// A single tier without a name if there are none.
    tiers: PerThread<Vec<Arc<QuotaSet>>>,
}

impl AppliedRules {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<CheckedRules>> {
        let rollout = self.rollout.as_ref().map(|rollout| &rollout.rules);
        std::iter::once(&self.current).chain(rollout)
    }

    pub(super) fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        let mut changed = self.clone();
        let rollout = changed.rollout.as_mut().map(|rollout| &mut rollout.rules);
        for rules in std::iter::once(&mut changed.current).chain(rollout) {
            *rules = Arc::new(rules.with_layer(position, layer)?);
        }
        Ok(changed)
    }
}

impl Rollout {
    pub(super) fn new(
        percent: u8,
        mut partitions: Vec<PartitionId>,
        rules: impl FnOnce() -> Result<Arc<CheckedRules>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        if percent > 100 {
            let message = format!("rules: rollout percentage {percent} is outside 0..=100");
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        partitions.sort_unstable();
        Ok(Self {
            percent,
            partitions: partitions.into(),
            rules: rules()?,
        })
    }

    /// Every instance selects the same callers.
    pub(super) fn takes(&self, partition: Option<PartitionId>) -> bool {
        let Some(partition) = partition else {
            return false;
        };
        let number = u128::from_be_bytes(partition.to_bytes());
        number % 100 < u128::from(self.percent) || self.partitions.binary_search(&partition).is_ok()
    }
}

impl CheckedRules {
    pub(super) fn new(rules: Rules, config: &RulesConfig) -> Result<Self, ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Policies, message));
        let tiers = match (&*rules.policies, &*rules.tiers) {
            ([], []) if config.expects_tiers() => return error("tiers: at least one is required"),
            ([], []) => return error("policies: at least one is required; add `policy` or `tiers`"),
            (policies, []) => vec![Arc::new(Self::check("", policies, config)?)],
            ([], _) if config.can_tell_tiers() => Self::check_tiers(&rules, config)?,
            ([], _) => return Err(RulesConfig::no_source_of_tiers()),
            _ => return error("policies: `policy` and `tiers` cannot be combined; add the policies to the tiers"),
        };
        let tiers = PerThread::new(tiers);
        Ok(Self { rules, tiers })
    }

    #[inline]
    pub(super) fn tiers(&self) -> &[Arc<QuotaSet>] {
        let copy = |set: &Arc<QuotaSet>| Arc::new(set.for_thread());
        self.tiers.local(|tiers| tiers.iter().map(copy).collect())
    }

    #[inline]
    pub(super) fn has_tiers(&self) -> bool {
        !self.rules.tiers.is_empty()
    }

    pub(super) fn all(&self) -> &[Arc<QuotaSet>] {
        self.tiers.first()
    }

    /// The policies keep their identity, so that prefetched units stay valid.
    pub(super) fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        if self.has_tiers() && !layer.has_tiers {
            return Err(RulesConfig::no_source_of_tiers());
        }
        let tiers = self.all().iter().map(|set| {
            let changed = set.with_layer(position, layer).map(Arc::new);
            changed.map_err(|error| match set.tier() {
                "" => error,
                tier => error.within(format_args!("tier {tier:?}")),
            })
        });
        Ok(Self {
            tiers: PerThread::new(tiers.collect::<Result<_, ConfigError>>()?),
            rules: self.rules.clone(),
        })
    }

    fn check(tier: &str, policies: &[QuotaPolicy], config: &RulesConfig) -> Result<QuotaSet, ConfigError> {
        let set = QuotaSet::new(tier.into(), policies.to_vec(), config)?;
        config.layers().try_for_each(|layer| layer.check(set.all()))?;
        Ok(set)
    }

    fn check_tiers(rules: &Rules, config: &RulesConfig) -> Result<Vec<Arc<QuotaSet>>, ConfigError> {
        let mut names = HashSet::new();
        let checked = rules.tiers().map(|(name, policies)| {
            let within = |error: ConfigError| error.within(format_args!("tier {name:?}"));
            let error = |kind, problem: &str| Err(within(ConfigError::new(kind, problem)));
            if name.is_empty() {
                return error(ConfigErrorKind::Policies, "the name is empty");
            }
            if !names.insert(name) {
                let problem = "duplicate name; names must be unique";
                return error(ConfigErrorKind::DuplicateTier, problem);
            }
            let set = match policies {
                Some(policies) => Self::check(name, policies, config).map_err(within)?,
                None => QuotaSet::unlimited(name, config),
            };
            Ok(Arc::new(set))
        });
        checked.collect()
    }
}

impl Rules {
    /// Validates rules without a limiter, for programs that write or publish rules.
    ///
    /// Assumes a limiter with all keys that the rules name. Settings of layers are not covered, such as missing costs
    /// of custom units: see [`RulesHandle::check`](crate::RulesHandle::check).
    ///
    /// ```
    /// use tower_quota::{QuotaPolicy, Rules};
    ///
    /// let rules = Rules::new().policy(QuotaPolicy::per_hour("hour", 10).keyed_by("team"));
    /// assert!(rules.validate().is_ok());
    /// let error = Rules::new().validate().unwrap_err();
    /// assert_eq!(error.to_string(), "policies: at least one is required; add `policy` or `tiers`");
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a policy is not valid, if policies cannot be combined, or if the name of a tier is empty or
    /// used twice.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let keys = self.all_policies().filter_map(|(_, policy)| policy.key_name());
        let config = RulesConfig {
            keys: keys.map(str::to_owned).collect(),
            views: Vec::new(),
        };
        CheckedRules::new(self.clone(), &config).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        partition::{PartitionKey, Scope},
        sync::random::for_many,
    };

    fn rollout(percent: u8) -> Rollout {
        let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 1));
        let rules = CheckedRules::new(rules, &RulesConfig::default()).unwrap();
        Rollout::new(percent, Vec::new(), || Ok(Arc::new(rules))).unwrap()
    }

    #[test]
    fn a_share_is_as_large_as_it_says_and_contains_smaller_ones_for_any_scope_and_any_kind_of_keys() {
        for_many(2, |random| {
            let mut text =
                |length| String::from_iter(random.list(length, |random| random.any_of(&['a', ':', 'ß', '\0'])));
            let (scope, kind) = (Scope::new(&text(1..20)), text(0..20));
            let (first, percent) = (random.within(0..1 << 32), random.any_of(&[0, 1, 10, 10, 50, 99, 100]));
            let rollout = rollout(percent);
            let larger = self::rollout(random.within(u64::from(percent)..101) as u8);
            let members = (0..100_000_u64).filter(|number| {
                let key = PartitionKey::new(&kind, (first + number).to_be_bytes());
                let partition = Some(scope.partition(&key));
                assert!(larger.takes(partition) || !rollout.takes(partition), "left out");
                rollout.takes(partition)
            });
            let share = members.count() as f64 / 1_000.0;
            assert!((share - f64::from(percent)).abs() <= 1.0, "{share} of {percent}");
            assert!(percent > 0 || share == 0.0);
            assert!(percent < 100 || share == 100.0);
            assert!(!rollout.takes(None), "nobody knows who it is");
        });
    }
}

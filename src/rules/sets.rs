use std::{collections::HashSet, sync::Arc};

use super::{
    config::{LayerView, RulesConfig},
    data::Rules,
    set::QuotaSet,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    policy::QuotaPolicy,
    sync::per_thread::PerThread,
};

#[derive(Debug)]
pub(super) struct Sets {
    pub(super) rules: Rules,
    /// A single tier without a name, if all callers have the same policies.
    pub(super) tiers: PerThread<Vec<Arc<QuotaSet>>>,
}

impl Sets {
    pub(super) fn new(rules: Rules, config: &RulesConfig) -> Result<Self, ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Policies, message));
        let can_tell = config.can_tell_tiers();
        let tiers = match (&*rules.policies, &*rules.tiers) {
            ([], []) if config.expects_tiers() => return error("tiers: at least one is required"),
            (policies, []) => vec![Arc::new(config.check("", policies)?)],
            ([], tiers) if can_tell => config.check_tiers(tiers)?,
            ([], _) => return Err(RulesConfig::no_source_of_tiers()),
            _ => return error("policies: `policy` and `tiers` cannot be combined; add the policies to the tiers"),
        };
        let tiers = PerThread::new(tiers);
        Ok(Self { rules, tiers })
    }

    #[inline]
    pub(super) fn tiers(&self) -> &[Arc<QuotaSet>] {
        let copy = |set: &Arc<QuotaSet>| Arc::new(set.with_own_count());
        self.tiers.local(|tiers| tiers.iter().map(copy).collect())
    }

    #[inline]
    pub(super) fn has_tiers(&self) -> bool {
        !self.rules.tiers.is_empty()
    }

    pub(super) fn all(&self) -> &[Arc<QuotaSet>] {
        self.tiers.first()
    }

    /// Adds a layer. The policies keep their identity, so that prefetched units, for example, stay valid.
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
}

impl RulesConfig {
    /// Validates policies that apply together, for all layers.
    fn check(&self, tier: &str, policies: &[QuotaPolicy]) -> Result<QuotaSet, ConfigError> {
        let set = QuotaSet::new(tier, policies, self)?;
        self.layers().try_for_each(|layer| layer.check(set.all()))?;
        Ok(set)
    }

    fn check_tiers(&self, tiers: &[(String, Option<Vec<QuotaPolicy>>)]) -> Result<Vec<Arc<QuotaSet>>, ConfigError> {
        let mut names = HashSet::new();
        let checked = tiers.iter().map(|(name, policies)| {
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
                Some(policies) => self.check(name, policies).map_err(within)?,
                None => QuotaSet::unlimited(name, self),
            };
            Ok(Arc::new(set))
        });
        checked.collect()
    }
}

impl Rules {
    /// Validates rules without a limiter.
    ///
    /// Like [`RulesHandle::check`](crate::RulesHandle::check) for a limiter with all keys that the rules name. Use
    /// this where rules are written or published. Settings of layers are not covered: missing costs of custom units,
    /// and policies that a layer's fields cannot represent.
    ///
    /// ```
    /// use tower_quota::{QuotaPolicy, Rules};
    ///
    /// let rules = Rules::new().policy(QuotaPolicy::per_hour("hour", 10).keyed_by("team"));
    /// assert!(rules.validate().is_ok());
    /// let error = Rules::new().validate().unwrap_err();
    /// assert_eq!(error.to_string(), "number of policies 0 is outside 1..=16");
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
        Sets::new(self.clone(), &config).map(drop)
    }
}

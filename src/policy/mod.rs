//! Which policies apply to a request: the same for all, or by the tier of its caller.

use std::{collections::HashSet, fmt, sync::OnceLock, time::Duration};

use http::request::Parts;

use crate::{
    error::{ConfigError, ConfigErrorKind},
    quota::{Algorithm, CheckedPolicies, Content, QuotaPolicy, QuotaUnit},
    response_fields::{PolicyFields, ResponseFields},
};

/// Policies by tier: what "free", "premium" and "admin" callers are allowed.
///
/// A closure names the tier of each request, from what authentication has left in its extensions. A request whose
/// tier is unknown, or that has none, is of the **first** tier, so put the smallest one first. A tier may be
/// unlimited: its requests are passed on without asking the store, and without `RateLimit` fields.
///
/// Used units belong to the caller and the policy's name. A caller who moves from one tier to another keeps the used
/// units of policies that both tiers have.
///
/// ```
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key};
///
/// #[derive(Clone)]
/// struct Plan(&'static str);
///
/// let tiers = Tiers::by(|request| request.extensions.get::<Plan>().map(|plan| plan.0))
///     .tier("free", [QuotaPolicy::per_minute("minute", 100)])
///     .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)])
///     .unlimited("admin");
///
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .tiers(tiers)
///     .build()?;
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
pub struct Tiers {
    select: Box<SelectTier>,
    tiers: Vec<(String, Option<Vec<QuotaPolicy>>)>,
}

type SelectTier = dyn for<'a> Fn(&'a Parts) -> Option<&'a str> + Send + Sync;

impl Tiers {
    /// Tiers that are told apart by `select`, which is called once for each request and must not block.
    pub fn by<F>(select: F) -> Self
    where
        F: for<'a> Fn(&'a Parts) -> Option<&'a str> + Send + Sync + 'static,
    {
        Self {
            select: Box::new(select),
            tiers: Vec::new(),
        }
    }

    /// Adds a tier with its policies.
    #[must_use]
    pub fn tier(mut self, name: impl Into<String>, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        self.tiers.push((name.into(), Some(policies.into_iter().collect())));
        self
    }

    /// Adds a tier that is not limited at all.
    #[must_use]
    pub fn unlimited(mut self, name: impl Into<String>) -> Self {
        self.tiers.push((name.into(), None));
        self
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.tiers.iter().map(|(name, policies)| (name, policies)))
            .finish()
    }
}

/// Policies that one decision holds together, with the field that shows them.
#[derive(Debug)]
pub(crate) struct PolicySet {
    pub(crate) policies: CheckedPolicies,
    pub(crate) fields: PolicyFields,
    pub(crate) follow_up: FollowUp,
    /// The same policies with 1 to 99 percent of their quotas, made when they are first needed.
    reduced: OnceLock<Box<[OnceLock<PolicySet>; 99]>>,
}

/// What has to be followed after a request was admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowUp {
    pub(crate) counts_request_bytes: bool,
    pub(crate) counts_response_bytes: bool,
    pub(crate) has_queue: bool,
    pub(crate) has_slots: bool,
}

impl FollowUp {
    pub(crate) const NOTHING: Self = Self {
        counts_request_bytes: false,
        counts_response_bytes: false,
        has_queue: false,
        has_slots: false,
    };

    fn of(policies: &CheckedPolicies) -> Self {
        let any = |test: &dyn Fn(&QuotaPolicy) -> bool| policies.iter().any(|policy| test(policy.policy()));
        let counts = |content| {
            let units = [QuotaUnit::ContentBytes(content), QuotaUnit::ContentBytes(Content::Both)];
            any(&|policy| units.contains(&policy.unit()))
        };
        Self {
            counts_request_bytes: counts(Content::Request),
            counts_response_bytes: counts(Content::Response),
            has_queue: any(&|policy| matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. })),
            has_slots: policies.has_slots(),
        }
    }

    pub(crate) fn is_needed(self) -> bool {
        self.counts_request_bytes || self.counts_response_bytes || self.has_queue || self.has_slots
    }
}

impl PolicySet {
    fn new(policies: Vec<QuotaPolicy>, fields: &ResponseFields) -> Result<Self, ConfigError> {
        let policies = CheckedPolicies::new(policies)?;
        Ok(Self {
            fields: fields.prepare(&policies)?,
            follow_up: FollowUp::of(&policies),
            policies,
            reduced: OnceLock::new(),
        })
    }

    /// The same policies with so many percent of their quotas.
    pub(crate) fn at_capacity(&self, percent: u8, fields: &ResponseFields) -> &Self {
        let index = match percent {
            100.. => return self,
            percent => usize::from(percent.max(1)) - 1,
        };
        let reduced = self.reduced.get_or_init(|| Box::new([const { OnceLock::new() }; 99]));
        reduced[index].get_or_init(|| self.reduced_to(percent.max(1), fields))
    }

    fn reduced_to(&self, percent: u8, fields: &ResponseFields) -> Self {
        let reduced = |percent| {
            let policies = self.policies.iter().map(|policy| policy.policy().clone());
            Self::new(policies.map(|policy| policy.reduced_to(percent)).collect(), fields)
        };
        // An odd number may be one that cannot be counted exactly, or equal to another where dialects forbid that. The
        // next lower ones are as good.
        let found = (1..=percent).rev().find_map(|percent| reduced(percent).ok());
        found.unwrap_or_else(|| Self {
            policies: self.policies.clone(),
            fields: PolicyFields::default(),
            follow_up: self.follow_up,
            reduced: OnceLock::new(),
        })
    }

    /// The window of the only policies that there are, if it is so long that a client may use up all of it at once.
    fn lone_large_window(&self) -> Option<Duration> {
        let policies = || self.policies.iter().map(|policy| policy.policy());
        let is_even = |policy: &QuotaPolicy| {
            let algorithm = policy.algorithm();
            matches!(
                algorithm,
                Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }
            )
        };
        if policies().any(is_even) {
            return None;
        }
        // A limit of concurrent requests has no window, and is less than all others.
        let shortest = policies().map(QuotaPolicy::window).min()?;
        shortest.filter(|window| *window > Duration::from_secs(3_600))
    }
}

/// The policies of a layer.
pub(crate) enum Policies {
    Same(PolicySet),
    ByTier {
        select: Box<SelectTier>,
        tiers: Vec<(String, Option<PolicySet>)>,
    },
}

/// Which set of a layer's policies applies to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tier {
    index: usize,
    /// Whether the request named a tier that the layer does not have.
    pub(crate) is_unknown: bool,
    /// How much of the usual quotas there is.
    pub(crate) percent: u8,
}

impl Policies {
    /// The same for all, or by tier.
    pub(crate) fn new(
        policies: Vec<QuotaPolicy>,
        tiers: Option<Tiers>,
        fields: &ResponseFields,
    ) -> Result<Self, ConfigError> {
        match tiers {
            Some(_) if !policies.is_empty() => Err(ConfigError::new(
                ConfigErrorKind::Policies,
                "policies: both `policy` and `tiers` are set; put the policies into the tiers",
            )),
            Some(tiers) => Self::by_tier(tiers, fields),
            None => PolicySet::new(policies, fields).map(Self::Same),
        }
    }

    fn by_tier(tiers: Tiers, fields: &ResponseFields) -> Result<Self, ConfigError> {
        let mut names = HashSet::new();
        if let Some((name, _)) = tiers.tiers.iter().find(|(name, _)| !names.insert(name)) {
            let message = format!("tier {name:?}: the name is used twice; names must be unique");
            return Err(ConfigError::new(ConfigErrorKind::DuplicateTier, message));
        }
        if tiers.tiers.is_empty() {
            return Err(ConfigError::new(
                ConfigErrorKind::Policies,
                "tiers: there is none; at least one is needed",
            ));
        }
        let checked = |(name, policies): (String, Option<Vec<QuotaPolicy>>)| {
            let policies = policies.map(|policies| PolicySet::new(policies, fields));
            match policies.transpose() {
                Ok(policies) => Ok((name, policies)),
                Err(error) => Err(ConfigError::new(error.kind(), format!("tier {name:?}: {error}"))),
            }
        };
        let checked: Result<_, _> = tiers.tiers.into_iter().map(checked).collect();
        Ok(Self::ByTier {
            select: tiers.select,
            tiers: checked?,
        })
    }

    pub(crate) fn tier(&self, request: &Parts, percent: u8) -> Tier {
        let tier = |index: Option<usize>| Tier {
            index: index.unwrap_or(0),
            is_unknown: index.is_none(),
            percent,
        };
        let Self::ByTier { select, tiers } = self else {
            return tier(Some(0));
        };
        match select(request) {
            Some(name) => tier(tiers.iter().position(|(tier, _)| tier == name)),
            None => tier(Some(0)),
        }
    }

    /// The windows of sets that have none shorter than an hour.
    pub(crate) fn lone_large_windows(&self) -> impl Iterator<Item = Duration> {
        let tiers: &[_] = match self {
            Self::Same(_) => &[],
            Self::ByTier { tiers, .. } => tiers,
        };
        let same = match self {
            Self::Same(set) => Some(set),
            Self::ByTier { .. } => None,
        };
        let sets = same.into_iter().chain(tiers.iter().filter_map(|(_, set)| set.as_ref()));
        sets.filter_map(PolicySet::lone_large_window)
    }

    /// The policies of a tier, `None` if it is not limited.
    pub(crate) fn of(&self, tier: Tier) -> Option<&PolicySet> {
        match self {
            Self::Same(policies) => Some(policies),
            Self::ByTier { tiers, .. } => tiers[tier.index].1.as_ref(),
        }
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(policies) => policies.fmt(f),
            Self::ByTier { tiers, .. } => tiers.fmt(f),
        }
    }
}

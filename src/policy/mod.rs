//! Which policies apply to a request: the same for all, or by the tier of its caller.

use std::{collections::HashSet, fmt};

use http::{HeaderValue, request::Parts};

use crate::{
    error::{ConfigError, ConfigErrorKind},
    fields,
    quota::{Algorithm, CheckedPolicies, Content, QuotaPolicy, QuotaUnit},
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
    pub(crate) field: Option<HeaderValue>,
    pub(crate) follow_up: FollowUp,
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
    fn new(policies: Vec<QuotaPolicy>) -> Result<Self, ConfigError> {
        let policies = CheckedPolicies::new(policies)?;
        Ok(Self {
            field: fields::policy_field(&policies),
            follow_up: FollowUp::of(&policies),
            policies,
        })
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
}

impl Policies {
    pub(crate) fn same(policies: Vec<QuotaPolicy>) -> Result<Self, ConfigError> {
        PolicySet::new(policies).map(Self::Same)
    }

    pub(crate) fn by_tier(tiers: Tiers) -> Result<Self, ConfigError> {
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
        let checked =
            |(name, policies): (String, Option<Vec<QuotaPolicy>>)| match policies.map(PolicySet::new).transpose() {
                Ok(policies) => Ok((name, policies)),
                Err(error) => Err(ConfigError::new(error.kind(), format!("tier {name:?}: {error}"))),
            };
        let checked: Result<_, _> = tiers.tiers.into_iter().map(checked).collect();
        Ok(Self::ByTier {
            select: tiers.select,
            tiers: checked?,
        })
    }

    pub(crate) fn tier(&self, request: &Parts) -> Tier {
        let Self::ByTier { select, tiers } = self else {
            return Tier {
                index: 0,
                is_unknown: false,
            };
        };
        let Some(name) = select(request) else {
            return Tier {
                index: 0,
                is_unknown: false,
            };
        };
        let index = tiers.iter().position(|(tier, _)| tier == name);
        Tier {
            index: index.unwrap_or(0),
            is_unknown: index.is_none(),
        }
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

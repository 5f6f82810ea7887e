use std::{cmp::Reverse, error::Error, sync::Once};

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::rate_limit::Unit},
};
use tonic::Status;
use tower_quota::{
    Algorithm, Caller, CallerQuotas, ChargeTime, LateCharge, Limiter, LimiterBuilder, LimiterError, PartitionId,
    PartitionKey, Plan, QuotaPolicy, QuotaUnit, Refund,
};

use super::config::{DomainForm, TierConfig};

pub(crate) struct Domain {
    pub(crate) limiter: Limiter,
    name: String,
    tiers: Vec<Tier>,
}

struct Tier {
    config: TierConfig,
    ignored_override: Once,
    ignored_refund: Once,
}

/// The checks, reports and refunds of a request.
#[derive(Default)]
pub(crate) struct Work {
    /// The partition of each descriptor, or `None` for a descriptor without limits.
    pub(crate) partitions: Vec<Option<PartitionId>>,
    /// The checks of all descriptors.
    pub(crate) plan: Option<Plan>,
    pub(crate) changes: Vec<(Caller, Change)>,
}

/// A change that is never rejected.
pub(crate) enum Change {
    Report(LateCharge),
    Refund(Refund),
}

impl Domain {
    pub(crate) fn new(limiter: LimiterBuilder, name: &str, form: DomainForm) -> Result<Self, Box<dyn Error>> {
        let (rules, tiers) = form.read()?;
        // Envoy reports neither the end of a request nor custom units, and a queued request would exceed Envoy's
        // timeout.
        let is_queue = |policy: &QuotaPolicy| matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
        let is_unknown = |policy: &QuotaPolicy| policy.unit() != QuotaUnit::Requests || is_queue(policy);
        if let Some((_, policy)) = rules.all_policies().find(|(_, policy)| is_unknown(policy)) {
            let name = policy.name();
            return Err(format!("policy {name:?}: Envoy only counts requests, without a queue").into());
        }
        let tiers = tiers.into_iter().map(|config| Tier {
            config,
            ignored_override: Once::new(),
            ignored_refund: Once::new(),
        });
        Ok(Self {
            limiter: limiter.scope(name).rules(rules).build()?,
            name: name.to_owned(),
            tiers: tiers.collect(),
        })
    }

    pub(crate) fn work(&self, request: &RateLimitRequest) -> Result<Work, Status> {
        let mut work = Work::default();
        let mut checks = Vec::new();
        for descriptor in &request.descriptors {
            let keys = descriptor.entries.iter();
            let keys = keys.map(|entry| PartitionKey::new(&entry.key, &entry.value));
            let key = keys.reduce(PartitionKey::and);
            let key = key.ok_or_else(|| Status::invalid_argument("a descriptor has no entries"))?;
            let Some(tier) = self.tier(&descriptor.entries) else {
                work.partitions.push(None);
                continue;
            };
            let caller = self.limiter.caller(&key).tier(tier.config.name.as_deref());
            let caller = match &descriptor.limit {
                Some(limit) => caller.quotas(self.lowered(tier, limit)),
                None => caller,
            };
            let hits = descriptor.hits_addend.map(|hits| hits.value);
            let hits = hits.unwrap_or_else(|| request.hits_addend.max(1).into());
            let (change, cost) = self.change(tier, descriptor, hits);
            let plan = caller.clone().cost(cost).plan();
            let plan = plan.map_err(|error| Status::internal(error.to_string()))?;
            work.partitions.push(plan.as_ref().map(Plan::partition));
            match (change, plan) {
                (Some(change), Some(_)) => work.changes.push((caller, change)),
                (_, plan) => checks.extend(plan.map(|plan| (cost, plan))),
            }
        }
        // A descriptor that occurs twice is charged once, at the higher cost.
        checks.sort_by_key(|(cost, _)| Reverse(*cost));
        work.plan = checks.into_iter().map(|(_, plan)| plan).reduce(Plan::join);
        Ok(work)
    }

    /// Returns the change that the descriptor asks for, or the cost of its check.
    fn change(&self, tier: &Tier, descriptor: &RateLimitDescriptor, hits: u64) -> (Option<Change>, u64) {
        if descriptor.is_negative_hits {
            if tier.is_refundable() {
                return (Some(Change::Refund(Refund::new(hits, ChargeTime::Now))), 0);
            }
            let problem = "is_negative_hits: leaky buckets are not refunded";
            tier.ignored_refund.call_once(|| self.log(tier, problem));
            return (None, 0);
        }
        match tier.config.has_reports && hits > 1 {
            true => (Some(Change::Report(LateCharge::new(hits))), 0),
            false => (None, hits),
        }
    }

    /// Returns the first tier whose name lists the entries, unless it is unlimited.
    fn tier(&self, entries: &[Entry]) -> Option<&Tier> {
        let tier = self.tiers.iter().find(|tier| tier.lists(entries))?;
        Some(tier).filter(|tier| !tier.config.policies.is_empty())
    }

    fn lowered(&self, tier: &Tier, limit: &RateLimitOverride) -> CallerQuotas {
        tier.lowered(limit).unwrap_or_else(|| {
            let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
            let limit = format!("{} per {}", limit.requests_per_unit, unit.as_str_name());
            let problem = format!("limit {limit}: no policy has this unit and the same or a higher quota");
            tier.ignored_override.call_once(|| self.log(tier, &problem));
            CallerQuotas::new()
        })
    }

    fn log(&self, tier: &Tier, problem: &str) {
        let tier = tier.config.name.as_deref().unwrap_or("*");
        eprintln!("domain {:?}, tier {tier:?}: ignored {problem}", self.name);
    }
}

impl Tier {
    /// The name lists the entries, each as `key` or `key=value`.
    fn lists(&self, entries: &[Entry]) -> bool {
        let is_named = |(part, entry): (&str, &Entry)| match part.split_once('=') {
            Some((key, value)) => (key, value) == (&entry.key, &entry.value),
            None => part == entry.key,
        };
        let Some(name) = &self.config.name else { return true };
        name == "*" || name.split(',').count() == entries.len() && name.split(',').zip(entries).all(is_named)
    }

    fn is_refundable(&self) -> bool {
        let mut policies = self.config.policies.iter();
        policies.any(|policy| policy.algorithm() != Algorithm::LeakyBucketMeter)
    }

    /// Returns `None` if the override lowers no policy.
    fn lowered(&self, limit: &RateLimitOverride) -> Option<CallerQuotas> {
        let quota = limit.requests_per_unit.into();
        let policies = self.config.policies.iter();
        let mut policies = policies
            .filter(|policy| unit(policy).is_some_and(|unit| unit as i32 == limit.unit) && quota <= policy.quota())
            .peekable();
        policies.peek()?;
        Some(policies.fold(CallerQuotas::new(), |quotas, policy| {
            let quotas = quotas.quota(policy.name().to_owned(), quota);
            match policy.algorithm() {
                Algorithm::TokenBucket if policy.burst_capacity() > quota => {
                    quotas.burst_capacity(policy.name().to_owned(), quota)
                }
                _ => quotas,
            }
        }))
    }
}

impl Change {
    pub(crate) async fn apply(&self, caller: &Caller) -> Result<(), LimiterError> {
        match self {
            Self::Report(charge) => caller.charge(charge).await.map(drop),
            Self::Refund(refund) => caller.refund(refund).await.map(drop),
        }
    }
}

/// The unit of the protocol with the length of the policy's window.
pub(crate) fn unit(policy: &QuotaPolicy) -> Option<Unit> {
    match policy.window()?.as_secs() {
        1 => Some(Unit::Second),
        60 => Some(Unit::Minute),
        3_600 => Some(Unit::Hour),
        86_400 => Some(Unit::Day),
        604_800 => Some(Unit::Week),
        _ => None,
    }
}

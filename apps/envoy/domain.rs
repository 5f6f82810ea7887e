use std::error::Error;

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};
use tonic::Status;
use tower_quota::{
    Algorithm, ConfigError, Limiter, LimiterBuilder, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy,
    QuotaUnit, Rules, Scope,
};

pub(crate) struct Domain {
    pub(crate) limiter: Limiter,
    /// The scope of the limiter, so that [`Limiter::caller`] uses the same partition for a descriptor.
    scope: Scope,
    /// The names and policies of the tiers. A tier with `None` is unlimited.
    tiers: Vec<(String, Option<PolicySet>)>,
}

impl Domain {
    pub(crate) fn new(limiter: LimiterBuilder, name: &str, rules: &Rules) -> Result<Self, Box<dyn Error>> {
        // Envoy reports neither the end of a request nor custom units, and a queued request would exceed Envoy's
        // timeout.
        let is_queue = |policy: &QuotaPolicy| matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
        let mut policies = rules.all_policies().map(|(_, policy)| policy);
        if let Some(policy) = policies.find(|policy| policy.unit() != QuotaUnit::Requests || is_queue(policy)) {
            let name = policy.name();
            return Err(format!("policy {name:?}: Envoy only counts requests, without a queue").into());
        }
        let for_all = Some(rules.policies()).filter(|policies| !policies.is_empty());
        let tiers = rules.tiers().chain(for_all.map(|policies| ("*", Some(policies))));
        let set = |policies: &[QuotaPolicy]| PolicySet::new(policies.iter().cloned());
        let tiers =
            tiers.map(|(name, policies)| Ok::<_, ConfigError>((name.to_owned(), policies.map(set).transpose()?)));
        Ok(Self {
            limiter: limiter.scope(name).rules(rules.clone()).build()?,
            scope: Scope::new(name),
            tiers: tiers.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the partition of each descriptor, or `None` for a descriptor without limits, and one plan for all
    /// descriptors.
    pub(crate) fn plan(&self, request: &RateLimitRequest) -> Result<(Vec<Option<PartitionId>>, Option<Plan>), Status> {
        let (mut partitions, mut plan) = (Vec::new(), None);
        let hits = u64::from(request.hits_addend.max(1));
        let cost_of = |descriptor: &RateLimitDescriptor| descriptor.hits_addend.map_or(hits, |hits| hits.value);
        let cost = request.descriptors.first().map_or(hits, cost_of);
        for descriptor in &request.descriptors {
            if descriptor.limit.is_some() || descriptor.is_negative_hits || cost_of(descriptor) != cost {
                let message = "limits, refunds and different hits_addend of descriptors are not supported";
                return Err(Status::unimplemented(message));
            }
            let keys = descriptor.entries.iter();
            let keys = keys.map(|entry| PartitionKey::new(&entry.key, &entry.value));
            let key = keys.reduce(PartitionKey::and);
            let key = key.ok_or_else(|| Status::invalid_argument("a descriptor has no entries"))?;
            let policies = self.policies(&descriptor.entries);
            let limited = policies.map(|policies| (policies.clone(), self.scope.partition(&key)));
            partitions.push(limited.as_ref().map(|(_, partition)| *partition));
            plan = match (plan, limited) {
                (None, Some((policies, partition))) => Some(Plan::new(policies, partition, cost)),
                (Some(plan), Some((policies, partition))) => Some(Plan::and(plan, policies, partition)),
                (plan, None) => plan,
            };
        }
        Ok((partitions, plan))
    }

    /// The policies of the first tier whose name lists the entries, each as `key` or `key=value`, or is `*`.
    fn policies(&self, entries: &[Entry]) -> Option<&PolicySet> {
        let is_named = |(part, entry): (&str, &Entry)| match part.split_once('=') {
            Some((key, value)) => (key, value) == (&entry.key, &entry.value),
            None => part == entry.key,
        };
        let lists = |tier: &str| tier.split(',').count() == entries.len() && tier.split(',').zip(entries).all(is_named);
        let mut tiers = self.tiers.iter();
        tiers.find(|(tier, _)| tier == "*" || lists(tier))?.1.as_ref()
    }
}

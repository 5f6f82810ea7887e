//! What all services of one layer share: who is counted, by which policies, and what the client is told.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request::Parts};

use crate::{
    decision::{Decision, Outcome},
    fields::{self, RATELIMIT, RATELIMIT_POLICY},
    guard::{Deciding, Guard},
    key::KeyExtractor,
    partition::{PartitionId, PartitionKey, Scope},
    plan::Plan,
    policy::{Policies, Tier},
    rejection::{Rejection, Responder},
    telemetry::Once,
};

/// What happens to a request for which no key is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoKey {
    /// Pass it on, uncounted.
    Allow,
    /// Refuse it with status 403.
    Refuse,
    /// Count it in one partition that all such requests share. The default.
    #[default]
    Share,
}

pub(crate) struct Limits {
    pub(super) scope: Scope,
    pub(super) scope_name: String,
    pub(super) key: Box<dyn KeyExtractor>,
    pub(super) shared_partition: PartitionId,
    pub(super) no_key: NoKey,
    pub(super) no_key_warning: Once,
    pub(super) policies: Policies,
    pub(super) unknown_tier_warning: Once,
    pub(super) guard: Arc<Guard>,
    pub(super) responder: Responder,
}

/// A decision and the tier whose policies it is about.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) tier: Tier,
}

impl Limits {
    /// The partition of requests without a key.
    pub(super) fn shared_partition(scope: &Scope) -> PartitionId {
        scope.partition(&PartitionKey::new("no key", ""))
    }

    /// key → policy → plan → guard
    pub(super) fn decide(&self, request: &Parts) -> (Deciding, Tier) {
        let tier = self.policies.tier(request);
        if tier.is_unknown {
            self.unknown_tier_warning.unknown_tier(&self.scope_name);
        }
        let decided = |outcome| Deciding::Decided(Decision::unmeasured(outcome));
        let Some(set) = self.policies.of(tier) else {
            return (decided(Outcome::Unlimited), tier);
        };
        let partition = match self.key.extract(request) {
            Some(key) => self.scope.partition(&key),
            None => {
                self.no_key_warning.no_key(&self.scope_name);
                match self.no_key {
                    NoKey::Allow => return (decided(Outcome::Unlimited), tier),
                    NoKey::Refuse => return (decided(Outcome::Unattributed), tier),
                    NoKey::Share => self.shared_partition,
                }
            }
        };
        (self.guard.decide(Plan::new(set.policies.clone(), partition, 1)), tier)
    }

    /// The response to a request that is refused.
    pub(super) fn refuse(&self, verdict: Verdict, request: &Parts) -> Response<Bytes> {
        let mut response = self.responder.respond(&Rejection::new(&verdict.decision, request));
        self.tell(verdict, &mut response);
        response
    }

    /// Adds what the client is told. What an inner service has said stands; two field lines are one list.
    pub(super) fn tell<B>(&self, verdict: Verdict, response: &mut Response<B>) {
        let Verdict { decision, tier } = verdict;
        if let Some(limits) = fields::limit_field(&decision) {
            let headers = response.headers_mut();
            headers.append(RATELIMIT, limits);
            if let Some(policies) = self.policies.of(tier).and_then(|set| set.field.clone()) {
                headers.append(RATELIMIT_POLICY, policies);
            }
        }
        // A layer of ours inside of this one may have refused what this one has allowed.
        let is_refused_inside = response
            .extensions()
            .get::<Decision>()
            .is_some_and(|inner| !inner.outcome().is_pass());
        if !is_refused_inside {
            response.extensions_mut().insert(decision);
        }
    }
}

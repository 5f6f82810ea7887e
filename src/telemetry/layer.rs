//! Events and metrics of a layer about its requests.

use std::time::Duration;

use super::{
    meters::LayerMeters,
    throttle::{Once, Sparse},
};
use crate::{
    clock::Timestamp,
    exchange::{Decision, Outcome},
    policy::QuotaPolicy,
};

/// Telemetry of one layer about its requests.
#[derive(Debug, Default)]
pub(crate) struct LayerTelemetry {
    cost: Once,
    content: Once,
    key: Once,
    tier: Once,
    resolver: Once,
    queue: Sparse,
    shadow: Sparse,
    meters: LayerMeters,
}

/// A counter with no label but the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerCount {
    NeverFits,
    Unattributed,
    UncountedContent,
    UnknownTier,
}

impl LayerTelemetry {
    /// Every request ends here once, unless it was cancelled before.
    pub(crate) fn decided(&self, scope: &str, tier: &str, decision: &Decision) {
        self.meters.decided(scope, tier, decision);
        record!(
            "quota.scope" = scope,
            "quota.tier" = tier,
            "quota.policy" = rejecting_policy(decision),
            "quota.outcome" = outcome_name(decision.outcome())
        );
    }

    pub(crate) fn no_key(&self, scope: &str) {
        self.meters.count(scope, LayerCount::Unattributed);
        if self.key.is_first() {
            event!(
                WARN,
                scope = %scope,
                "a request could not be attributed to a caller; \
                 is the peer address or the user id missing from its extensions?"
            );
        }
    }

    pub(crate) fn cost_above_capacity(&self, scope: &str, policy: &QuotaPolicy, cost: u64) {
        self.meters.count(scope, LayerCount::NeverFits);
        if self.cost.is_first() {
            event!(
                WARN,
                scope = %scope,
                policy = %policy.name(),
                cost = %cost,
                capacity = %policy.burst_capacity(),
                "a request costs more than its policy ever lets pass and is rejected for good"
            );
        }
    }

    pub(crate) fn uncounted_content(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UncountedContent);
        if self.content.is_first() {
            event!(
                WARN,
                scope = %scope,
                "the content of a request has no known length and is not counted; \
                 is `RequestContentLayer` missing outside of the rate limit?"
            );
        }
    }

    pub(crate) fn unknown_tier(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UnknownTier);
        if self.tier.is_first() {
            event!(WARN, scope = %scope, "a request is of a tier that is not configured; the first tier is used");
        }
    }

    pub(crate) fn unresolved_tier(&self, scope: &str) {
        if self.resolver.is_first() {
            event!(
                WARN,
                scope = %scope,
                "a request has passed no `TierLayer`, which is to look up its tier; is it missing outside of the rate limit?"
            );
        }
    }

    /// A policy in shadow mode would have rejected a request.
    pub(crate) fn would_reject(&self, now: Timestamp, scope: &str, tier: &str, policy: &str) {
        self.meters.would_reject(scope, tier, policy);
        self.shadow.record(now, |suppressed| {
            event!(
                INFO,
                scope = %scope,
                policy = %policy,
                suppressed = %suppressed,
                "a policy in shadow mode would have rejected a request"
            );
        });
    }

    /// A request waits for its turn in a leaky bucket.
    pub(crate) fn queued(&self, now: Timestamp, scope: &str, delay: Duration) {
        self.meters.queue_wait(scope, delay);
        self.queue.record(now, |suppressed| {
            event!(
                DEBUG,
                scope = %scope,
                delay_seconds = %delay.as_secs_f64(),
                suppressed = %suppressed,
                "a request waits for its turn"
            );
        });
    }
}

/// The policy that rejects a request for the longest time; empty if none does.
pub(super) fn rejecting_policy(decision: &Decision) -> &str {
    if decision.outcome() != Outcome::Rejected {
        return "";
    }
    let violated = decision.violated();
    let longest = violated.max_by_key(|allowance| allowance.retry_after().unwrap_or(Duration::MAX));
    longest.map_or("", |allowance| allowance.policy().name())
}

pub(super) fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Abnormal => "abnormal",
        Outcome::Allowed => "allowed",
        Outcome::Blocked => "blocked",
        Outcome::FailedOpen => "failed_open",
        Outcome::FailedClosed => "failed_closed",
        Outcome::Overloaded => "overloaded",
        Outcome::Rejected => "rejected",
        Outcome::Unattributed => "unattributed",
        Outcome::Unlimited => "unlimited",
    }
}

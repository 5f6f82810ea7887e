use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::{
    builds,
    labels::{LayerCount, outcome_name, rejecting_policy},
    meters::LayerMeters,
    throttle::{EventThrottle, OnceFlags},
    watch::Watch,
};
use crate::{
    clock::Timestamp,
    decision::Decision,
    mistake::{Diagnostics, Finding, Mistake},
    policy::QuotaPolicy,
};

#[derive(Debug, Default)]
pub(crate) struct LayerTelemetry {
    scope: String,
    is_of_layer: bool,
    told: OnceFlags,
    told_private: OnceFlags,
    watch: Watch,
    queue: EventThrottle,
    explanations: EventThrottle,
    shadow: EventThrottle,
    overages: EventThrottle,
    meters: LayerMeters,
}

impl LayerTelemetry {
    pub(crate) fn new(scope: &str) -> Self {
        let mut log = Self::of_limiter(scope);
        log.is_of_layer = true;
        log
    }

    /// For decisions that are made directly by a limiter, without a layer.
    pub(crate) fn of_limiter(scope: &str) -> Self {
        LayerMeters::announce(scope);
        let mut log = Self::default();
        scope.clone_into(&mut log.scope);
        log
    }

    /// Called once per request, unless the request is cancelled first.
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
        if self.told.is_first(Mistake::MissingKey) {
            mistake!(
                MissingKey,
                scope = %scope,
                "a request could not be attributed to a caller; \
                 is the peer address or the user id missing from its extensions?"
            );
        }
    }

    pub(crate) fn cost_above_capacity(&self, scope: &str, policy: &QuotaPolicy, cost: u64) {
        self.meters.count(scope, LayerCount::NeverFits);
        if self.told.is_first(Mistake::CostAboveCapacity) {
            mistake!(
                CostAboveCapacity,
                scope = %scope,
                policy = %policy.name(),
                cost = %cost,
                capacity = %policy.burst_capacity(),
                "a request costs more than its policy ever lets pass and is rejected for good"
            );
        }
    }

    /// A caller was looked up with a kind of key that no request had.
    pub(crate) fn key_of_another_kind(&self, scope: &str, kind: &str) {
        if self.told.is_first(Mistake::KeyOfAnotherKind) {
            mistake!(
                KeyOfAnotherKind,
                scope = %scope,
                kind = %kind,
                "a caller was given by a key of a kind that none of the first requests had, and has a quota apart from that of \
                 its requests; is `key_of` of the layer's key missing?"
            );
        }
    }

    pub(crate) fn refunded(&self, scope: &str, outcome: &str) {
        self.meters.refunded(scope, outcome);
    }

    pub(crate) fn uncounted_content(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UncountedContent);
        if self.told.is_first(Mistake::ContentNotCounted) {
            mistake!(
                ContentNotCounted,
                scope = %scope,
                "the content of a request has no known length and is not counted; \
                 is `RequestContentLayer` missing outside of the rate limit?"
            );
        }
    }

    pub(crate) fn unknown_tier(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UnknownTier);
        if self.told.is_first(Mistake::UnknownTier) {
            mistake!(
                UnknownTier, scope = %scope, "a request is of a tier that is not configured; the first tier is used");
        }
    }

    /// The response is an upgrade, but the program did not take the slot of the request.
    pub(crate) fn slot_not_taken(&self) {
        if self.told.is_first(Mistake::SlotNotTaken) {
            mistake!(
                SlotNotTaken,
                scope = %self.scope,
                "a response switches protocols, and the slot of its request ends with it although the connection goes on; \
                 take the `WeakPermit` of the request, and keep its `Permit` as long as the connection"
            );
        }
    }

    pub(crate) fn unresolved_tier(&self, scope: &str) {
        if self.told.is_first(Mistake::NoTierLayer) {
            mistake!(
                NoTierLayer,
                scope = %scope,
                "a request has passed no `TierLayer`, which is to look up its tier; is it missing outside of the rate limit?"
            );
        }
    }

    /// Returns `true` while requests are checked for misconfigurations.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.watch.is_on()
    }

    /// Checks a request. `was_here` is true if the request has already passed through a layer with the same limits.
    pub(crate) fn watched(&self, scope: &str, was_here: bool) {
        if was_here && self.told.is_first(Mistake::LayerTwice) {
            mistake!(
                LayerTwice,
                scope = %scope,
                "a request has passed the same limits twice and was charged twice; is the layer around the router and \
                 around a route of it?"
            );
        }
        let shown = self.watch.next();
        if shown.has_second_proxy {
            mistake!(
                SecondProxy,
                scope = %scope,
                "most of the first thousand clients are one private address that a trusted proxy reported, and the list of \
                 proxies goes on behind it; that is a second proxy, whose clients share a quota: trust it, too"
            );
        }
        if shown.has_unread_tiers {
            mistake!(
                TierNotRead,
                scope = %scope,
                "requests carry the name of a tier that no layer reads, so that all callers have the same limits; \
                 is `Tiers::resolved` missing in this layer?"
            );
        }
        for part in shown.missing {
            mistake!(
                KeyNeverThere,
                scope = %scope,
                part = %part,
                "none of the first thousand requests had a part of the key; does the layer that puts it there stand \
                 outside of the rate limit?"
            );
        }
    }

    pub(crate) fn found(&self, scope: &str, findings: Diagnostics) {
        self.watch.parts(findings.parts);
        for finding in findings.found {
            match finding {
                Finding::NoPeerAddress => self.no_peer_address(scope),
                Finding::ProxyNotNamed {
                    field,
                    has_private_address,
                } => self.proxy_not_named(scope, &field, has_private_address),
                Finding::SecondProxy => self.watch.second_proxy(),
                Finding::OtherForwardingField { field, named } => self.other_forwarding_field(scope, field, &named),
            }
        }
    }

    /// A request with the name of a tier passed through a layer without tiers.
    pub(crate) fn tier_passed(&self, is_read: &Arc<AtomicBool>) {
        self.watch.tier(is_read);
    }

    fn no_peer_address(&self, scope: &str) {
        // Suppresses the event about missing keys, because the missing address is the cause.
        self.told.is_first(Mistake::MissingKey);
        if self.told.is_first(Mistake::NoPeerAddress) {
            // The type of axum's connect info is only known with this feature.
            let missing = match cfg!(feature = "axum") {
                true => "connect info",
                false => "connect info, or the feature `axum` of tower-quota, which reads that of axum",
            };
            mistake!(
                NoPeerAddress,
                scope = %scope,
                missing = %missing,
                "a request does not show the address of its peer, so no limit or rule by address knows whom it is from; \
                 is the service served without connect info?"
            );
        }
    }

    fn proxy_not_named(&self, scope: &str, field: &str, has_private_address: bool) {
        // Two flags, so that a client with a public address cannot suppress the event about a proxy of the operator.
        let told = if has_private_address {
            &self.told_private
        } else {
            &self.told
        };
        if told.is_first(Mistake::ProxyNotNamed) {
            let peer = if has_private_address { "private" } else { "public" };
            mistake!(
                ProxyNotNamed,
                scope = %scope,
                field = %field,
                peer = %peer,
                "a forwarding field comes from a peer that is no trusted proxy and is not believed; if the peer is your \
                 proxy, name it, or all its clients share one quota; if clients connect directly, one of them has sent \
                 the field, and nothing is wrong"
            );
        }
    }

    fn other_forwarding_field(&self, scope: &str, field: &str, named: &str) {
        if self.told.is_first(Mistake::OtherForwardingField) {
            mistake!(
                OtherForwardingField,
                scope = %scope,
                field = %field,
                named = %named,
                "a trusted proxy has sent another forwarding field than the one that it is named with, so all its \
                 clients share its quota; name the field that it writes"
            );
        }
    }

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

    /// Returns `true` if a subscriber is interested in explanations.
    #[inline]
    pub(crate) fn explains() -> bool {
        is_explained!()
    }

    pub(crate) fn explained<T: std::fmt::Display>(&self, now: Timestamp, explain: impl FnOnce() -> T) {
        self.explanations.record(now, |suppressed| {
            let explanation = explain().to_string().replace('\n', "; ");
            event!(
                target: "tower_quota::explain",
                DEBUG,
                explanation = %explanation,
                suppressed = %suppressed,
                "what is decided about a request, and why"
            );
        });
    }

    pub(crate) fn over_quota(&self, now: Timestamp, scope: &str, tier: &str, policy: &str) {
        self.meters.over_quota(scope, tier, policy);
        self.overages.record(now, |suppressed| {
            event!(
                INFO,
                scope = %scope,
                policy = %policy,
                suppressed = %suppressed,
                "a request was admitted above the quota, within its overage"
            );
        });
    }

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

impl Drop for LayerTelemetry {
    fn drop(&mut self) {
        if self.is_of_layer && self.watch.has_seen_one_at_most() && builds::are_too_many(&self.scope) {
            mistake!(
                LayerForEachRequest,
                scope = %self.scope,
                "a hundred layers of this scope have ended within ten seconds, each after one request at most; is one built \
                 for each request? It limits nothing in memory, and connects anew to Redis: build it once, and clone it"
            );
        }
    }
}

use std::time::Duration;

use super::{
    builds,
    labels::{LayerCount, outcome_name, rejecting_policy},
    meters::LayerMeters,
    throttle::{EventThrottle, OnceFlags},
    watch::Watch,
};
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome},
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

    pub(crate) fn of_limiter(scope: &str) -> Self {
        LayerMeters::announce(scope);
        let mut log = Self::default();
        scope.clone_into(&mut log.scope);
        log
    }

    /// Once per request, unless the request is cancelled first.
    #[inline]
    pub(crate) fn decided(&self, scope: &str, tier: &str, decision: &Decision) {
        self.decided_as(scope, tier, decision.outcome(), || rejecting_policy(decision));
    }

    #[inline]
    pub(crate) fn allowed(&self, scope: &str, tier: &str) {
        self.decided_as(scope, tier, Outcome::Allowed, || "");
    }

    /// Like [`decided`](Self::decided), for a request that this policy rejects.
    #[inline]
    pub(crate) fn rejected<'a>(&self, scope: &str, tier: &str, policy: impl Fn() -> &'a str) {
        self.decided_as(scope, tier, Outcome::Rejected, policy);
    }

    #[inline]
    fn decided_as<'a>(&self, scope: &str, tier: &str, outcome: Outcome, policy: impl Fn() -> &'a str) {
        self.meters.decided(scope, tier, outcome, &policy);
        record!(
            "quota.scope" = scope,
            "quota.tier" = tier,
            "quota.policy" = policy(),
            "quota.outcome" = outcome_name(outcome)
        );
    }

    #[cold]
    pub(crate) fn no_key(&self, scope: &str) {
        self.meters.count(scope, LayerCount::Unattributed);
        mistake!(
            once in self.told, MissingKey,
            scope = %scope,
            "a request has no key; is the peer address or the user ID missing from its extensions?"
        );
    }

    #[cold]
    pub(crate) fn cost_above_capacity(&self, scope: &str, policy: &QuotaPolicy, cost: u64) {
        self.meters.count(scope, LayerCount::NeverFits);
        mistake!(
            once in self.told, CostAboveCapacity,
            scope = %scope,
            policy = %policy.name(),
            cost = %cost,
            capacity = %policy.burst_capacity(),
            "request cost exceeds the capacity of a policy, so the request can never be admitted"
        );
    }

    #[cold]
    pub(crate) fn key_of_another_kind(&self, scope: &str, kind: &str) {
        mistake!(
            once in self.told, KeyOfAnotherKind,
            scope = %scope,
            kind = %kind,
            "a caller was specified with a key of another kind than the keys of requests, so it has a separate \
             quota; use `key_of` of the layer's key"
        );
    }

    pub(crate) fn refunded(&self, scope: &str, outcome: &str) {
        self.meters.refunded(scope, outcome);
    }

    /// `excess` are the units above the bound, which were not charged.
    pub(crate) fn charged_late(&self, scope: &str, outcome: &str, excess: u64) {
        self.meters.charged_late(scope, outcome, excess);
    }

    #[cold]
    pub(crate) fn uncounted_content(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UncountedContent);
        mistake!(
            once in self.told, ContentNotCounted,
            scope = %scope,
            "a request has content of unknown length, which is not counted; is `RequestContentLayer` missing \
             outside the rate limit?"
        );
    }

    #[cold]
    pub(crate) fn unknown_tier(&self, scope: &str) {
        self.meters.count(scope, LayerCount::UnknownTier);
        mistake!(
            once in self.told, UnknownTier,
            scope = %scope,
            "a request has an unknown tier; the first tier is used"
        );
    }

    #[cold]
    pub(crate) fn slot_not_taken(&self) {
        mistake!(
            once in self.told, SlotNotTaken,
            scope = %self.scope,
            "a response switches protocols, and its slot is released although the connection stays open; get the \
             `WeakPermit` of the request, and hold its `Permit` until the connection closes"
        );
    }

    #[cold]
    pub(crate) fn unresolved_tier(&self, scope: &str) {
        mistake!(
            once in self.told, NoTierLayer,
            scope = %scope,
            "a request has not passed a `TierLayer`, which must look up its tier; is the layer missing outside the \
             rate limit?"
        );
    }

    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.watch.is_on()
    }

    #[inline]
    pub(crate) fn resume_watching(&self, now: Option<Timestamp>) {
        self.watch.resume_at(now);
    }

    #[cold]
    pub(crate) fn layer_twice(&self, scope: &str) {
        mistake!(
            once in self.told, LayerTwice,
            scope = %scope,
            "a request passed the same limits twice and was charged twice; was the layer added to a router and to \
             one of its routes?"
        );
    }

    /// Returns `true` if the request is marked, so that an inner layer with the same limits finds out.
    pub(crate) fn watched(&self, scope: &str) -> bool {
        let shown = self.watch.next();
        if shown.has_second_proxy {
            mistake!(
                once in self.told, SecondProxy,
                scope = %scope,
                "most of 1000 requests have a private client address that a trusted proxy reported, and further \
                 forwarded addresses; a second proxy is not trusted, so its clients share a quota: trust it, too"
            );
        }
        for part in shown.missing {
            mistake!(
                KeyNeverThere,
                scope = %scope,
                part = %part,
                "none of the first 1000 requests had a part of the key; is the layer that inserts it outside the rate \
                 limit?"
            );
        }
        shown.is_marked
    }

    #[cold]
    pub(crate) fn found(&self, scope: &str, findings: Diagnostics) {
        self.watch.parts(findings.parts.into_iter());
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

    fn no_peer_address(&self, scope: &str) {
        // Suppresses the event about missing keys, because the missing address is the cause.
        self.told.is_first(Mistake::MissingKey);
        // The type of axum's connect info is only known with this feature.
        let missing = match cfg!(feature = "axum") {
            true => "connect info",
            false => "connect info, or the feature `axum` of tower-quota, which reads axum's",
        };
        mistake!(
            once in self.told, NoPeerAddress,
            scope = %scope,
            missing = %missing,
            "a request has no peer address, so limits and rules by address cannot identify its client; is the service \
             served without connect info?"
        );
    }

    fn proxy_not_named(&self, scope: &str, field: &str, has_private_address: bool) {
        // Two flags, so that a client with a public address cannot suppress the event about a proxy of the operator.
        let (told, peer) = match has_private_address {
            true => (&self.told_private, "private"),
            false => (&self.told, "public"),
        };
        mistake!(
            once in told, ProxyNotNamed,
            scope = %scope,
            field = %field,
            peer = %peer,
            "a forwarding field from an untrusted peer is ignored; if the peer is your proxy, trust it, otherwise all \
             its clients share one quota; if clients connect directly, a client sent the field, and there is nothing \
             to do"
        );
    }

    fn other_forwarding_field(&self, scope: &str, field: &str, named: &str) {
        mistake!(
            once in self.told, OtherForwardingField,
            scope = %scope,
            field = %field,
            named = %named,
            "a trusted proxy sent a forwarding field other than the configured one, so all its clients share one \
             quota; configure the field that the proxy writes"
        );
    }

    #[cold]
    pub(crate) fn would_reject(&self, now: Timestamp, scope: &str, tier: &str, policy: &str) {
        self.meters.would_reject(scope, tier, policy);
        self.shadow.record(now, |suppressed| {
            event!(
                INFO,
                scope = %scope,
                policy = %policy,
                suppressed = %suppressed,
                "shadow policy would have rejected a request"
            );
        });
    }

    #[inline]
    pub(crate) fn explains() -> bool {
        is_explained!()
    }

    #[cold]
    pub(crate) fn explained<T: std::fmt::Display>(&self, now: Timestamp, explain: impl FnOnce() -> T) {
        self.explanations.record(now, |suppressed| {
            let explanation = explain().to_string().replace('\n', "; ");
            event!(
                target: "tower_quota::explain",
                DEBUG,
                explanation = %explanation,
                suppressed = %suppressed,
                "request explained"
            );
        });
    }

    #[cold]
    pub(crate) fn over_quota(&self, now: Timestamp, scope: &str, tier: &str, policy: &str) {
        self.meters.over_quota(scope, tier, policy);
        self.overages.record(now, |suppressed| {
            event!(
                INFO,
                scope = %scope,
                policy = %policy,
                suppressed = %suppressed,
                "request admitted above the quota, within the overage"
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
                "request queued"
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
                "100 layers of this scope were dropped within 10 s, each after at most one request; is a layer built \
                 per request? Such a layer enforces no limits in memory, and opens a new connection to Redis: build \
                 the layer once, and clone it"
            );
        }
    }
}

use std::{sync::OnceLock, time::Duration};

use tracing::{Span, level_filters::LevelFilter};

use super::{
    builds,
    facade::{Counter, Histogram, METRICS},
    metrics::{Each, Family},
    process,
    series::Series,
    switch,
    throttle::{EventThrottle, OnceFlags},
    watch::Watch,
};
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome},
    mistake::{Diagnostics, Finding, Mistake},
    policy::QuotaPolicy,
};

metrics! {
    struct LayerMetrics {
        decisions: Series<3> = "tower_quota_decisions_total", "Decisions, by outcome", ["tier", "policy", "outcome"];
        excess_units: Family<0> = "tower_quota_excess_units_total",
            "Units of late charges above the bound, which were not charged", [];
        failed: Each<Outcome> = "tower_quota_failed_total", "Requests undecided by any store, by failure mode",
            ("mode", &MODES);
        late_charges: Family<1> = "tower_quota_late_charges_total", "Charges of completed work, by result", ["outcome"];
        never_fits: Counter = "tower_quota_never_fits_total", "Requests whose cost exceeds the capacity of a policy";
        over_quota: Series<2> = "tower_quota_over_quota_total",
            "Requests admitted above a quota, within its overage", ["tier", "policy"];
        queue_wait: Histogram = "tower_quota_queue_wait_seconds", "Time that requests are queued in a leaky bucket";
        refunds: Family<1> = "tower_quota_refunds_total", "Refunds of callers that did not fail, by result",
            ["outcome"];
        shadow_rejections: Series<2> = "tower_quota_shadow_rejections_total",
            "Requests that a shadow policy would have rejected", ["tier", "policy"];
        unattributed: Counter = "tower_quota_unattributed_total", "Requests without a key";
        uncounted_content: Counter = "tower_quota_uncounted_content_total",
            "Requests with content of unknown length, which is not counted";
        unknown_tier: Counter = "tower_quota_unknown_tier_total", "Requests with an unknown tier";
    }
}

/// The values of the label `mode`.
pub(super) const MODES: [(Outcome, &str); 2] = [(Outcome::FailedClosed, "closed"), (Outcome::FailedOpen, "open")];

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
    metrics: OnceLock<LayerMetrics>,
}

impl LayerTelemetry {
    pub(crate) fn new(scope: &str) -> Self {
        let mut log = Self::of_limiter(scope);
        log.is_of_layer = true;
        log
    }

    pub(crate) fn of_limiter(scope: &str) -> Self {
        let mut log = Self::default();
        scope.clone_into(&mut log.scope);
        // Not kept, because a recorder may be installed until the first request.
        drop(log.new_metrics());
        log
    }

    fn new_metrics(&self) -> LayerMetrics {
        process::start();
        switch::show(&self.scope, 0);
        LayerMetrics::new(&self.scope)
    }

    #[inline]
    pub(crate) fn metrics(&self) -> &LayerMetrics {
        self.metrics.get_or_init(|| self.new_metrics())
    }

    /// Once per request, unless the request is cancelled first.
    #[inline]
    pub(crate) fn decided(&self, tier: &str, decision: &Decision) {
        self.decided_as(tier, decision.outcome(), || rejecting_policy(decision));
    }

    #[inline]
    pub(crate) fn allowed(&self, tier: &str) {
        self.decided_as(tier, Outcome::Allowed, || "");
    }

    /// Like [`decided`](Self::decided), for a request that this policy rejects.
    #[inline]
    pub(crate) fn rejected<'a>(&self, tier: &str, policy: impl Fn() -> &'a str) {
        self.decided_as(tier, Outcome::Rejected, policy);
    }

    #[inline]
    fn decided_as<'a>(&self, tier: &str, outcome: Outcome, policy: impl Fn() -> &'a str) {
        if METRICS {
            let metrics = self.metrics();
            metrics.decisions.add([tier, policy(), name_of(outcome)], 1);
            metrics.failed.increment(outcome);
        }
        // Without a subscriber, there is no span. Reading the level is faster than looking for the span.
        if LevelFilter::current() != LevelFilter::OFF {
            let span = Span::current();
            if !span.is_none() {
                span.record("quota.scope", &*self.scope);
                span.record("quota.tier", tier);
                span.record("quota.policy", policy());
                span.record("quota.outcome", name_of(outcome));
            }
        }
    }

    #[cold]
    pub(crate) fn no_key(&self) {
        self.metrics().unattributed.increment(1);
        mistake!(
            once by self, MissingKey,
            "a request has no key; is the peer address or the user ID missing from its extensions?"
        );
    }

    #[cold]
    pub(crate) fn cost_above_capacity(&self, policy: &QuotaPolicy, cost: u64) {
        self.metrics().never_fits.increment(1);
        mistake!(
            once by self, CostAboveCapacity,
            policy = %policy.name(),
            cost = %cost,
            capacity = %policy.burst_capacity(),
            "request cost exceeds the capacity of a policy, so the request can never be admitted"
        );
    }

    #[cold]
    pub(crate) fn key_of_another_kind(&self, kind: &str) {
        mistake!(
            once by self, KeyOfAnotherKind,
            kind = %kind,
            "a caller was specified with a key of another kind than the keys of requests, so it has a separate \
             quota; use `key_of` of the layer's key"
        );
    }

    #[cold]
    pub(crate) fn uncounted_content(&self) {
        self.metrics().uncounted_content.increment(1);
        mistake!(
            once by self, ContentNotCounted,
            "a request has content of unknown length, which is not counted; is `RequestContentLayer` missing \
             outside the rate limit?"
        );
    }

    #[cold]
    pub(crate) fn unknown_tier(&self) {
        self.metrics().unknown_tier.increment(1);
        mistake!(once by self, UnknownTier, "a request has an unknown tier; the first tier is used");
    }

    #[cold]
    pub(crate) fn slot_not_taken(&self) {
        mistake!(
            once by self, SlotNotTaken,
            "a response switches protocols, and its slot is released although the connection stays open; get the \
             `WeakPermit` of the request, and hold its `Permit` until the connection closes"
        );
    }

    #[cold]
    pub(crate) fn unresolved_tier(&self) {
        mistake!(
            once by self, NoTierLayer,
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
    pub(crate) fn layer_twice(&self) {
        mistake!(
            once by self, LayerTwice,
            "a request passed the same limits twice and was charged twice; was the layer added to a router and to \
             one of its routes?"
        );
    }

    /// Returns `true` if the request is marked, so that an inner layer with the same limits finds out.
    pub(crate) fn watched(&self) -> bool {
        let shown = self.watch.next();
        if shown.has_second_proxy {
            mistake!(
                once by self, SecondProxy,
                "most of 1000 requests have a private client address that a trusted proxy reported, and further \
                 forwarded addresses; a second proxy is not trusted, so its clients share a quota: trust it, too"
            );
        }
        for part in shown.missing {
            mistake!(
                KeyNeverThere,
                scope = %self.scope,
                part = %part,
                "none of the first 1000 requests had a part of the key; is the layer that inserts it outside the rate \
                 limit?"
            );
        }
        shown.is_marked
    }

    #[cold]
    pub(crate) fn found(&self, findings: Diagnostics) {
        self.watch.parts(findings.parts.into_iter());
        for finding in findings.found {
            match finding {
                Finding::NoPeerAddress => self.no_peer_address(),
                Finding::ProxyNotNamed {
                    field,
                    has_private_address,
                } => self.proxy_not_named(&field, has_private_address),
                Finding::SecondProxy => self.watch.second_proxy(),
                Finding::OtherForwardingField { field, named } => self.other_forwarding_field(field, &named),
            }
        }
    }

    fn no_peer_address(&self) {
        // Suppresses the event about missing keys, because the missing address is the cause.
        self.told.is_first(Mistake::MissingKey);
        // The type of axum's connect info is only known with this feature.
        let missing = match cfg!(feature = "axum") {
            true => "connect info",
            false => "connect info, or the feature `axum` of tower-quota, which reads axum's",
        };
        mistake!(
            once by self, NoPeerAddress,
            missing = %missing,
            "a request has no peer address, so limits and rules by address cannot identify its client; is the service \
             served without connect info?"
        );
    }

    fn proxy_not_named(&self, field: &str, has_private_address: bool) {
        // Two flags, so that a client with a public address cannot suppress the event about a proxy of the operator.
        let (told, peer) = match has_private_address {
            true => (&self.told_private, "private"),
            false => (&self.told, "public"),
        };
        mistake!(
            once in told, ProxyNotNamed,
            scope = %self.scope,
            field = %field,
            peer = %peer,
            "a forwarding field from an untrusted peer is ignored; if the peer is your proxy, trust it, otherwise all \
             its clients share one quota; if clients connect directly, a client sent the field, and there is nothing \
             to do"
        );
    }

    fn other_forwarding_field(&self, field: &str, named: &str) {
        mistake!(
            once by self, OtherForwardingField,
            field = %field,
            named = %named,
            "a trusted proxy sent a forwarding field other than the configured one, so all its clients share one \
             quota; configure the field that the proxy writes"
        );
    }

    #[cold]
    pub(crate) fn would_reject(&self, now: Timestamp, tier: &str, policy: &str) {
        self.metrics().shadow_rejections.add([tier, policy], 1);
        throttled!(
            self.shadow, at now, INFO,
            scope = %self.scope,
            policy = %policy,
            "shadow policy would have rejected a request"
        );
    }

    /// Explanations have a separate target, because they contain addresses.
    #[inline]
    pub(crate) fn explains() -> bool {
        tracing::enabled!(target: "tower_quota::explain", tracing::Level::DEBUG)
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
    pub(crate) fn over_quota(&self, now: Timestamp, tier: &str, policy: &str) {
        self.metrics().over_quota.add([tier, policy], 1);
        throttled!(
            self.overages, at now, INFO,
            scope = %self.scope,
            policy = %policy,
            "request admitted above the quota, within the overage"
        );
    }

    pub(crate) fn queued(&self, now: Timestamp, delay: Duration) {
        self.metrics().queue_wait.record(delay);
        throttled!(
            self.queue, at now, DEBUG,
            scope = %self.scope,
            delay_seconds = %delay.as_secs_f64(),
            "request queued"
        );
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

fn rejecting_policy(decision: &Decision) -> &str {
    if decision.outcome() != Outcome::Rejected {
        return "";
    }
    let violated = decision.violated();
    let longest = violated.max_by_key(|allowance| allowance.retry_after().unwrap_or(Duration::MAX));
    longest.map_or("", |allowance| allowance.policy().name())
}

fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Abnormal => "abnormal",
        Outcome::Allowed => "allowed",
        Outcome::Blocked => "blocked",
        Outcome::FailedOpen => "failed_open",
        Outcome::FailedClosed => "failed_closed",
        Outcome::Overloaded => "overloaded",
        Outcome::Rejected => "rejected",
        Outcome::MissingKey => "unattributed",
        Outcome::Unlimited => "unlimited",
    }
}

pub(crate) fn lone_large_window(scope: &str, window: Duration) {
    mistake!(
        LoneLargeWindow,
        scope = %scope,
        window_seconds = %window.as_secs(),
        "the shortest window is longer than an hour, so a caller can exhaust its quota in one burst; add a policy with \
         a short window"
    );
}

pub(crate) fn two_quotas(scope: &str, policy: &str) {
    mistake!(
        TwoQuotas,
        scope = %scope,
        policy = %policy,
        "two layers of this process have the same scope, store and policy name, but different settings of the policy; \
         they share counts, and each decides with its own settings"
    );
}

#[cfg(feature = "axum")]
#[derive(Debug, Default)]
pub(crate) struct StreamTelemetry(OnceFlags);

#[cfg(feature = "axum")]
impl StreamTelemetry {
    pub(crate) fn record(&self) {
        mistake!(
            once in self.0, StreamedRejection,
            "custom rejection has a streaming body, which is not supported; the default response is sent instead"
        );
    }
}

//! Telemetry for operators: events and span fields, and metrics (feature `metrics`).
//!
//! This module only contains documentation. Events, spans and metrics contain names of scopes, tiers and policies from
//! your configuration, including [hidden](crate::QuotaPolicy::hidden) policies, so show them only to operators. They
//! contain no caller or request data: no keys, addresses, paths or header values. The only exception is the
//! [explanation](crate::RateLimitLayer::explain) of a request.
//!
//! # Metrics
//!
//! With the feature `metrics`, metrics are sent to the recorder that the program has installed for the
//! [`metrics`](https://docs.rs/metrics) facade, for example for Prometheus, StatsD or OpenTelemetry. The example
//! `metrics` installs the recorder of `metrics-exporter-prometheus`. After five requests of a caller with a quota of
//! three per minute, its page contains:
//!
//! ```text
//! tower_quota_decisions_total{scope="items",tier="",policy="",outcome="allowed"} 3
//! tower_quota_decisions_total{scope="items",tier="",policy="burst",outcome="rejected"} 2
//! ```
//!
//! **Install the recorder before the first request:** layers create their handles at first use and keep them, so a
//! recorder that is installed later receives nothing from them. [Build
//! them later](crate::guide::operation#start). For the same reason, exporters must not drop idle metrics
//! (`idle_timeout` of `metrics-exporter-prometheus`).
//!
//! | name | type | labels | what it counts |
//! |---|---|---|---|
//! | `tower_quota_decisions_total` | counter | `scope`, `tier`, `policy`, `outcome` | all decisions, about requests and about work outside HTTP |
//! | `tower_quota_failed_total` | counter | `scope`, `mode` | requests that neither the store nor a fallback decided: `open` passed uncounted, `closed` were rejected |
//! | `tower_quota_failed_while_closed_total` | counter | `scope`, `mode` | the requests of the previous row that failed while the circuit was closed. On a Redis Cluster, also requests that probe a lost node, a few per second |
//! | `tower_quota_undecided_total` | counter | `scope`, `reason` | requests for which the store returned no decision, before the fallback is called |
//! | `tower_quota_store_seconds` | histogram | `scope` | time until the store returned a decision or an error, or the deadline expired; 0 for the memory store; calls of the fallback are not included |
//! | `tower_quota_rejection_cache_hits_total` | counter | `scope` | requests that were rejected from the [rejection cache](crate::LimiterBuilder::rejection_cache); also included in the decisions |
//! | `tower_quota_late_batches_total` | counter | `scope`, `fate` | batches of [prefetched units](crate::QuotaPolicy::with_prefetch) whose call missed the deadline or failed: `kept` (arrived and usable), `returned` (arrived too late and refunded), `unknown` (no reply: if the batch was charged, no instance can use its units) |
//! | `tower_quota_state_lost_total` | counter | `scope` | exhausted callers that regained their full quota too early, because the store [lost](crate::docs::alerts#the-store-loses-state) their state |
//! | `tower_quota_new_partitions_total` | counter | `scope` | charges to partitions without state in a remote store: callers that are new, or that were idle for a while |
//! | `tower_quota_circuit_open` | gauge | `scope` | layers whose circuit is open; on a Redis Cluster, the circuits of layers stay closed (see the next row) |
//! | `tower_quota_lost_nodes` | gauge | | nodes of Redis Clusters whose circuit is open, counted per store of the process; a store that does not know any node counts as 1. Only events contain the addresses of nodes |
//! | `tower_quota_slots_held` | gauge | `scope` | requests of this process that hold a slot of a concurrency limit |
//! | `tower_quota_queue_wait_seconds` | histogram | `scope` | the waiting time of requests that are queued in a leaky bucket |
//! | `tower_quota_over_quota_total` | counter | `scope`, `tier`, `policy` | requests admitted above the quota of a policy, within its [overage](crate::QuotaPolicy::with_overage) |
//! | `tower_quota_shadow_rejections_total` | counter | `scope`, `tier`, `policy` | requests that a policy in [shadow mode](crate::QuotaPolicy::shadow) would have rejected; requests that were rejected from the cache are not included |
//! | `tower_quota_unattributed_total` | counter | `scope` | requests without a key, regardless of their outcome |
//! | `tower_quota_unknown_tier_total` | counter | `scope` | requests with a tier that is not configured |
//! | `tower_quota_uncounted_content_total` | counter | `scope` | requests with content that a policy should count, but no layer counts |
//! | `tower_quota_never_fits_total` | counter | `scope` | requests whose cost exceeds the capacity of a policy |
//! | `tower_quota_tier_waits_total` | counter | | requests that waited for a [`TierLayer`](crate::tier::TierLayer) to look up the tier of their user |
//! | `tower_quota_tier_unresolved_total` | counter | `reason` | requests that were forwarded while the tier of their user was [unknown](crate::tier::OnUnknownTier): `unanswered` (the wait has expired, or no wait is configured), `failed` (this lookup, or a recent one), `full` (too many lookups or waiting requests) |
//! | `tower_quota_units_total` | counter | `scope`, `unit`, `amount` | [custom units](crate::QuotaPolicy::with_unit) of completed requests: `expected` units were charged before the request, `used` units afterwards |
//! | `tower_quota_refunds_total` | counter | `scope`, `outcome` | refunds [of callers](crate::Caller::refund) that did not fail: `refunded`, `duplicate`, `not_applicable`, as in [`RefundOutcome`](crate::RefundOutcome) |
//! | `tower_quota_late_charges_total` | counter | `scope`, `outcome` | charges [of callers](crate::Caller::charge) for completed work that did not fail: `charged`, `capped`, `duplicate`, `not_applicable`, as in [`LateChargeOutcome`](crate::LateChargeOutcome) |
//! | `tower_quota_excess_units_total` | counter | `scope` | units of these charges that were above the bound and not charged |
//! | `tower_quota_limits_off` | gauge | `scope` | layers that are switched off and apply no limits |
//! | `tower_quota_evictions_total` | counter | | partitions evicted by full memory stores |
//! | `tower_quota_unread_bodies_total` | counter | | request bodies that were dropped before their end after a rejection, because a bound of [`LingeringClose`](crate::content::LingeringClose) was reached |
//! | `tower_quota_unsettled_total` | counter | | settlements that a Redis store lost |
//! | `tower_quota_connection_failures_total` | counter | | failed attempts to connect to Redis |
//!
//! - `outcome`: `allowed`, `rejected`, `unlimited`, `unattributed`, `failed_open`, `failed_closed`, `overloaded`,
//!   `blocked`, `abnormal`, as in [`Outcome`](crate::Outcome). Decisions of the fallback are `allowed` or `rejected`.
//! - `policy`: the rejecting policy with the longest wait; empty for all other outcomes.
//! - `tier`: as in [`Tiers`](crate::Tiers), including unlimited tiers; empty for a layer without tiers.
//! - `reason`: `circuit_open`, `overloaded`, `failed`, `timed_out`, `unavailable`, `out_of_memory`, `unreachable`, as
//!   in [`StoreErrorKind`](crate::StoreErrorKind).
//!
//! A layer has up to 512 combinations of tier, policy and outcome. Further combinations, caused by rules with changing
//! names, are counted under the tier and policy `(other)`.
//!
//! For metrics, alerts and events of the packages built on this crate, see the guides of
//! [tower-quota-fleet](https://docs.rs/tower-quota-fleet/latest/tower_quota_fleet/guide/#what-to-watch) and
//! [tower-quota-anonymous](https://docs.rs/tower-quota-anonymous/latest/tower_quota_anonymous/guide/#what-to-watch).
//!
//! # Alerts
//!
//! The expressions are in PromQL. The thresholds assume a deadline of 50 ms and histograms with buckets
//! (`set_buckets_for_metric`), some of which exceed the threshold of the alert. Each alert links to [its
//! runbook](crate::docs::alerts). To load the alerts in Prometheus, use `ops/prometheus/alerts.yml` from the
//! repository. Prometheus adds the labels `namespace` and `job`, which distinguish services with the same scope.
//! Failure counters and gauges of a layer start at 0 when the layer is built, if the recorder is already installed, so
//! that rates include the first failure of a process.
//!
//! | alert | expression | what it means |
//! |---|---|---|
//! | [limits are not enforced](crate::docs::alerts#limits-are-not-enforced) | `sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[5m])) >= 1 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.01 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[1h])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[1h])) > 0.01` | more than 1% of the requests pass uncounted, over five minutes and over an hour, and at least one per second |
//! | [limits leak](crate::docs::alerts#limits-leak) | `sum by (namespace, job, scope) (increase(tower_quota_failed_total{mode="open"}[30m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[30m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[30m])) > 0.001` | more than 0.1% of the requests pass uncounted over half an hour |
//! | [requests are rejected without a store](crate::docs::alerts#requests-are-rejected-without-a-store) | `sum by (namespace, job, scope) (increase(tower_quota_failed_total{mode="closed"}[5m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="closed"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.001` | requests are rejected with status 503 |
//! | [the store is unavailable](crate::docs::alerts#the-store-is-unavailable) | `count by (namespace, job, scope) (tower_quota_circuit_open > 0) >= 2 and count by (namespace, job, scope) (tower_quota_circuit_open > 0) / count by (namespace, job, scope) (tower_quota_circuit_open) >= 0.1`, for 1 min | at least two instances, and a tenth of all, have stopped calling the store |
//! | [an instance is cut off](crate::docs::alerts#an-instance-is-cut-off) | `max by (namespace, job, scope) (tower_quota_circuit_open) > 0`, for 5 min | an instance has stopped calling the store |
//! | [a node of the cluster is lost](crate::docs::alerts#a-node-of-the-cluster-is-lost) | `count by (namespace, job) (tower_quota_lost_nodes > 0) >= 2 and count by (namespace, job) (tower_quota_lost_nodes > 0) / count by (namespace, job) (tower_quota_lost_nodes) >= 0.1`, for 1 min | callers in the slots of the node are not limited |
//! | [an instance has lost a node](crate::docs::alerts#an-instance-has-lost-a-node) | `max by (namespace, job) (tower_quota_lost_nodes) > 0`, for 5 min | a single instance cannot reach the node |
//! | [the store is slow](crate::docs::alerts#the-store-is-slow) | `histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[5m]))) > 0.025 and histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[5m]))) > 2 * histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[1d])))`, for 5 min | calls take more than half of the default deadline and twice as long as during the last day |
//! | [the store fails](crate::docs::alerts#the-store-fails) | `sum by (namespace, job, scope) (increase(tower_quota_undecided_total{reason="failed"}[5m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_undecided_total{reason="failed"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.001` | a script fails or a permission is missing; the circuit stays closed |
//! | [the store loses state](crate::docs::alerts#the-store-loses-state) | `sum by (namespace, job, scope) (increase(tower_quota_state_lost_total[5m])) >= 10` | Redis lost state, and callers have their full quota again |
//! | [the store is out of memory](crate::docs::alerts#the-store-is-out-of-memory) | `sum by (namespace, job, scope) (rate(tower_quota_undecided_total{reason="out_of_memory"}[5m])) >= 1` | Redis rejects writes, and each process decides on its own |
//! | [new callers fill the store](crate::docs::alerts#new-callers-fill-the-store) | `sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[5m])) > 1000 and sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[5m])) > 10 * sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[1h] offset 1h))`, for 5 min | clients keep sending requests with new keys |
//! | [callers are not told apart](crate::docs::alerts#callers-are-not-told-apart) | `sum by (namespace, job, scope) (rate(tower_quota_unattributed_total[5m])) > 0` | requests without a key share a quota |
//! | [tiers are not known](crate::docs::alerts#tiers-are-not-known) | `sum by (namespace, job, scope) (rate(tower_quota_unknown_tier_total[5m])) > 0` | callers are counted in the first tier |
//! | [tiers are not looked up](crate::docs::alerts#tiers-are-not-looked-up) | `sum by (namespace, job, reason) (rate(tower_quota_tier_unresolved_total[5m])) > 0`, for 5 min | paying users may be limited like users of an [unknown](crate::tier::OnUnknownTier) tier, or pass uncounted |
//! | [limits are switched off](crate::docs::alerts#limits-are-switched-off) | `max by (namespace, job, scope) (tower_quota_limits_off) > 0`, for 15 min | all requests pass uncounted |
//! | [switches differ](crate::docs::alerts#switches-differ) | `max by (namespace, job, scope) (tower_quota_limits_off > bool 0) != min by (namespace, job, scope) (tower_quota_limits_off > bool 0)`, for 1 min | some instances apply their limits and some do not |
//! | [a scope is gone](crate::docs::alerts#a-scope-is-gone) | `count by (namespace, job, scope) (tower_quota_limits_off offset 1d) unless count by (namespace, job, scope) (tower_quota_limits_off)`, for 15 min | no instance reports a scope that existed a day ago |
//! | [many rejections](crate::docs::alerts#many-rejections) | `sum by (namespace, job, scope, policy) (rate(tower_quota_decisions_total{outcome="rejected"}[15m])) / on (namespace, job, scope) group_left sum by (namespace, job, scope) (rate(tower_quota_decisions_total[15m])) > 0.1` | an attack, a misbehaving client, or a limit that is too low |
//! | [requests that never pass](crate::docs::alerts#requests-that-never-pass) | `sum by (namespace, job, scope) (rate(tower_quota_never_fits_total[5m])) > 0` | the cost exceeds the capacity, so retrying does not help |
//! | [uploads are not counted](crate::docs::alerts#uploads-are-not-counted) | `sum by (namespace, job, scope) (rate(tower_quota_uncounted_content_total[5m])) > 0` | content of unknown length passes uncounted |
//! | [requests wait for long](crate::docs::alerts#requests-wait-for-long) | `histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_queue_wait_seconds_bucket[5m]))) > 1`, for 5 min | a leaky bucket is close to its maximum queue length |
//! | [slots are not given back](crate::docs::alerts#slots-are-not-given-back) | `min_over_time(tower_quota_slots_held[1d]) > 0 and tower_quota_slots_held offset 1d` | a response body or a [`Permit`](crate::Permit) is never dropped; only use this alert for services that are sometimes idle |
//! | [the memory store is full](crate::docs::alerts#the-memory-store-is-full) | `sum by (namespace, job) (rate(tower_quota_evictions_total[5m])) > 0` | evicted callers have their full quota again |
//! | [estimates are too low](crate::docs::alerts#estimates-are-too-low) | `sum by (namespace, job, scope, unit) (rate(tower_quota_units_total{amount="used"}[1h])) > sum by (namespace, job, scope, unit) (rate(tower_quota_units_total{amount="expected"}[1h]))` | requests use more units than were charged up front |
//! | [charges go astray](crate::docs::alerts#charges-go-astray) | `sum by (namespace, job) (rate(tower_quota_unsettled_total[5m])) > 0`, for 5 min | refunds and late charges are lost, and slots are only released when their lease expires |
//!
//! # Events
//!
//! Events have the target `tower_quota`, except for explanations. No event is emitted once per request: warnings about
//! the configuration are emitted once per layer, and events about ongoing problems at most once per 10 s, with the
//! number of suppressed events.
//!
//! A warning about the configuration has the fields `mistake`, with the name of the misconfiguration, and `help`, with
//! the address of its section in [`docs::mistakes`](crate::docs::mistakes). Some misconfigurations can only be detected
//! in requests. A layer checks its first 1,000 requests for them, and 1,000 more after each hour.
//!
//! If requests stay undecided for 10 s or more while the circuit is closed, a `WARN` event reports the number of
//! undecided requests (`undecided`), the time (`seconds`), and the number of requests that waited for the store in that
//! time (`waited`). While the problem lasts, the event is repeated every 10 s.
//!
//! [Explanations](crate::RateLimitLayer::explain) of requests help to set up proxies. They contain the client's
//! address, and are therefore events of a separate target, `tower_quota::explain`, with the level `DEBUG`.
//! `RUST_LOG=debug,tower_quota::explain=off` excludes them.
//!
//! # Spans
//!
//! While a request waits for its store, it is in the span `quota_decision` with the level `DEBUG` and the field
//! `scope`. If the span around the layer declares the fields `quota.scope`, `quota.tier`, `quota.policy` or
//! `quota.outcome`, they are recorded when the request is decided, with the values of the labels above. If one layer
//! wraps another, the inner layer overwrites the fields of the outer one.
//!
//! ```
//! use std::convert::Infallible;
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//! use tracing::{Instrument, field::Empty, info_span};
//!
//! # let (log, writer) = std::io::pipe().unwrap();
//! # let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.try_clone().unwrap());
//! # let subscriber = subscriber.with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE).finish();
//! # let subscriber = tracing::subscriber::set_default(subscriber);
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_minute("minute", 1))
//!     .build()?;
//! let service = ServiceBuilder::new()
//!     .layer(limits)
//!     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
//!
//! for _ in 0..2 {
//!     let span = info_span!("request", quota.scope = Empty, quota.policy = Empty, quota.outcome = Empty);
//!     let request = Request::get("/").header("x-user-id", "alice").body(String::new())?;
//!     service.clone().oneshot(request).instrument(span).await?;
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # drop(subscriber);
//! # let lines: Vec<String> = std::io::BufRead::lines(std::io::BufReader::new(log)).map(Result::unwrap).collect();
//! # assert!(lines[0].contains(r#"request{quota.scope="api" quota.policy="" quota.outcome="allowed"}"#));
//! # assert!(lines[1].contains(r#"request{quota.scope="api" quota.policy="minute" quota.outcome="rejected"}"#));
//! ```
//!
//! The subscriber of `tracing-subscriber` then writes these spans:
//!
//! ```text
//! request{quota.scope="api" quota.policy="" quota.outcome="allowed"}
//! request{quota.scope="api" quota.policy="minute" quota.outcome="rejected"}
//! ```
#[macro_use]
mod macros;

mod builds;
mod catalog;
mod facade;
mod growth;
mod labels;
mod layer;
mod meters;
mod series;
mod store;
mod throttle;
mod tier;
mod watch;

use std::time::Duration;

pub(crate) use self::macros::InSpan;
#[cfg(feature = "redis")]
pub(crate) use self::meters::OneMore as LostNode;
pub(crate) use self::tier::TierTelemetry;
pub(crate) use self::{
    labels::{LateBatch, Unresolved},
    layer::LayerTelemetry,
    meters::{OneMore as HeldSlots, Stopwatch, SwitchMeter},
    store::StoreTelemetry,
};
use crate::clock::{Clock, Timestamp};

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

/// The system time, for events and metrics. Stands still on a target without a clock, where the system clock panics.
pub(crate) fn now() -> Timestamp {
    match cfg!(all(target_family = "wasm", target_os = "unknown")) {
        true => Timestamp::default(),
        false => Clock::system().now(),
    }
}

#[cfg(feature = "redis")]
pub(crate) fn connection_failed(error: &dyn std::fmt::Display) {
    meters::connection_failed();
    event!(DEBUG, error = %error, "connection to Redis failed");
}

/// The node counts as lost until the returned guard is dropped. Also used while no node of the cluster is known.
#[cfg(feature = "redis")]
pub(crate) fn node_lost(address: &str, error: &dyn std::fmt::Display) -> LostNode {
    event!(ERROR, node = %address, error = %error, "circuit opened: cluster node not responding");
    meters::node_lost()
}

#[cfg(feature = "redis")]
pub(crate) fn node_back(address: &str, rejected: u64) {
    event!(WARN, node = %address, rejected = %rejected, "circuit closed: cluster node responding again");
}

/// Counts request bodies that a rejection left unread and that were dropped before their end.
#[cold]
pub(crate) fn body_unread() {
    static UNREAD: throttle::EventThrottle = throttle::EventThrottle::new();
    meters::body_unread();
    UNREAD.record(now(), |suppressed| {
        event!(
            WARN,
            suppressed = %suppressed,
            "request body dropped after a rejection: the client may not receive the response"
        );
    });
}

pub(crate) fn partition_evicted() {
    meters::evicted();
}

/// Counts lost settlements: their charges remain unchanged, and their slots are only released when the lease expires.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct UnsettledTelemetry(throttle::EventThrottle);

#[cfg(feature = "redis")]
impl UnsettledTelemetry {
    pub(crate) fn record(&self, now: Timestamp, error: &crate::error::StoreError) {
        meters::unsettled();
        self.0.record(now, |suppressed| {
            event!(
                WARN,
                error = %error,
                suppressed = %suppressed,
                "settlement failed: a refund, late charge or slot release was lost"
            );
        });
    }
}

#[cfg(feature = "axum")]
#[derive(Debug, Default)]
pub(crate) struct StreamTelemetry(throttle::OnceFlags);

#[cfg(feature = "axum")]
impl StreamTelemetry {
    pub(crate) fn record(&self) {
        mistake!(
            once in self.0, StreamedRejection,
            "custom rejection has a streaming body, which is not supported; the default response is sent instead"
        );
    }
}

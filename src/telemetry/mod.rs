//! Telemetry for operators: events and span fields, and metrics (feature `metrics`).
//!
//! This module only contains documentation. Events, spans and metrics contain the names of scopes, tiers and policies,
//! including [hidden](crate::QuotaPolicy::hidden) ones, so show them only to operators. They contain no keys,
//! addresses, paths or header values, except for the [explanation](crate::RateLimitLayer::explain) of a request.
//!
//! # Metrics
//!
//! With the feature `metrics`, metrics are sent to the recorder that the program has installed for the
//! [`metrics`](https://docs.rs/metrics) facade. The example `metrics` installs that of `metrics-exporter-prometheus`.
//! After five requests of a caller with a quota of three per minute, its page contains:
//!
//! ```text
//! tower_quota_decisions_total{scope="items",tier="",policy="",outcome="allowed"} 3
//! tower_quota_decisions_total{scope="items",tier="",policy="burst",outcome="rejected"} 2
//! ```
//!
//! **Install the recorder [before the first request](crate::guide::operation#start).** Layers keep their handles, so
//! exporters must not drop idle metrics (`idle_timeout` of `metrics-exporter-prometheus`).
//!
//! | name | type | labels | what it counts |
//! |---|---|---|---|
//! | `tower_quota_decisions_total` | counter | `scope`, `tier`, `policy`, `outcome` | all decisions, about requests and about work outside HTTP |
//! | `tower_quota_failed_total` | counter | `scope`, `mode` | requests that neither the store nor a fallback decided: `open` passed uncounted, `closed` were rejected |
//! | `tower_quota_failed_while_closed_total` | counter | `scope`, `mode` | those that failed while the circuit was closed. On a Redis Cluster, also requests that probe a lost node, a few per second |
//! | `tower_quota_undecided_total` | counter | `scope`, `reason` | requests for which the store returned no decision, before the fallback is called |
//! | `tower_quota_store_seconds` | histogram | `scope` | time until the store, not the fallback, returned a decision or an error, or the deadline expired; 0 for the memory store |
//! | `tower_quota_rejection_cache_hits_total` | counter | `scope` | rejections from the [rejection cache](crate::LimiterBuilder::rejection_cache), which are also decisions |
//! | `tower_quota_late_batches_total` | counter | `scope`, `fate` | batches of [prefetched units](crate::QuotaPolicy::with_prefetch) whose call missed the deadline or failed: `kept` (usable), `returned` (too late, refunded), `unknown` (no reply: if the batch was charged, its units are lost) |
//! | `tower_quota_state_lost_total` | counter | `scope` | exhausted callers that regained their full quota too early, because the store [lost](crate::docs::alerts#the-store-loses-state) their state |
//! | `tower_quota_new_partitions_total` | counter | `scope` | charges to partitions without state in a remote store: new callers, or idle ones |
//! | `tower_quota_circuit_open` | gauge | `scope` | layers whose circuit is open; on a Redis Cluster, see the next row |
//! | `tower_quota_lost_nodes` | gauge | | nodes of Redis Clusters whose circuit is open, counted per store; a store that does not know any node counts as 1. Events contain the addresses |
//! | `tower_quota_slots_held` | gauge | `scope` | requests of this process that hold a slot of a concurrency limit |
//! | `tower_quota_queue_wait_seconds` | histogram | `scope` | the delay of requests in a leaky bucket |
//! | `tower_quota_over_quota_total` | counter | `scope`, `tier`, `policy` | requests admitted above the quota of a policy, within its [overage](crate::QuotaPolicy::with_overage) |
//! | `tower_quota_shadow_rejections_total` | counter | `scope`, `tier`, `policy` | requests that a [shadow](crate::QuotaPolicy::shadow) would have rejected, without those rejected from the cache |
//! | `tower_quota_unattributed_total` | counter | `scope` | requests without a key, regardless of their outcome |
//! | `tower_quota_unknown_tier_total` | counter | `scope` | requests with a tier that is not configured |
//! | `tower_quota_uncounted_content_total` | counter | `scope` | requests with content that a policy should count, but no layer counts |
//! | `tower_quota_never_fits_total` | counter | `scope` | requests whose cost exceeds the capacity of a policy |
//! | `tower_quota_tier_waits_total` | counter | | requests that waited for a [`TierLayer`](crate::tier::TierLayer) to look up the tier of their user |
//! | `tower_quota_tier_unresolved_total` | counter | `reason` | requests forwarded with an [unknown](crate::tier::OnUnknownTier) tier: `unanswered` (the wait has expired, or there is none), `failed` (this lookup, or a recent one), `full` (too many lookups or waiting requests) |
//! | `tower_quota_units_total` | counter | `scope`, `unit`, `amount` | [custom units](crate::QuotaPolicy::with_unit) of completed requests: `expected` before the request, `used` afterwards |
//! | `tower_quota_refunds_total` | counter | `scope`, `outcome` | [refunds](crate::Caller::refund) that did not fail: `refunded`, `duplicate`, `not_applicable`, as in [`RefundOutcome`](crate::RefundOutcome) |
//! | `tower_quota_late_charges_total` | counter | `scope`, `outcome` | [late charges](crate::Caller::charge) that did not fail: `charged`, `capped`, `duplicate`, `not_applicable`, as in [`LateChargeOutcome`](crate::LateChargeOutcome) |
//! | `tower_quota_excess_units_total` | counter | `scope` | units of these charges above the bound, which were not charged |
//! | `tower_quota_limits_off` | gauge | `scope` | layers whose limits are disabled |
//! | `tower_quota_evictions_total` | counter | | partitions evicted by full memory stores |
//! | `tower_quota_unread_bodies_total` | counter | | request bodies dropped before their end after a rejection, because of a bound of [`LingeringClose`](crate::content::LingeringClose) |
//! | `tower_quota_unsettled_total` | counter | | settlements that a Redis store lost |
//! | `tower_quota_connection_failures_total` | counter | | failed attempts to connect to Redis |
//!
//! - `outcome`: as in [`Outcome`](crate::Outcome): `allowed`, `rejected`, `unlimited`, `unattributed`, `failed_open`,
//!   `failed_closed`, `overloaded`, `blocked`, `abnormal`. Decisions of the fallback are `allowed` or `rejected`.
//! - `policy`: the rejecting policy with the longest wait; empty for all other outcomes.
//! - `tier`: as in [`Tiers`](crate::Tiers); empty for a layer without tiers.
//! - `reason`: as in [`StoreErrorKind`](crate::StoreErrorKind): `circuit_open`, `overloaded`, `failed`, `timed_out`,
//!   `unavailable`, `out_of_memory`, `unreachable`.
//!
//! A layer has up to 512 combinations of tier, policy and outcome. Further ones, caused by rules with changing names,
//! are counted under the tier and policy `(other)`.
//!
//! The guides of [tower-quota-fleet](https://docs.rs/tower-quota-fleet/latest/tower_quota_fleet/guide/#what-to-watch)
//! and [tower-quota-anonymous](https://docs.rs/tower-quota-anonymous/latest/tower_quota_anonymous/guide/#what-to-watch)
//! list theirs.
//!
//! # Alerts
//!
//! [`docs::alerts`](crate::docs::alerts) explains the alerts for Prometheus. The thresholds assume a deadline of 50 ms
//! and histograms with buckets (`set_buckets_for_metric`), some of which exceed the threshold of the alert. Prometheus
//! adds the labels `namespace` and `job`, which distinguish services with the same scope. Failure counters and gauges
//! of a layer start at 0 when the layer is built, if the recorder is already installed, so that rates include the first
//! failure of a process.
//!
//! # Events
//!
//! Events have the target `tower_quota`. None is emitted once per request: warnings about the configuration are emitted
//! once per layer, and events about ongoing problems at most once per 10 s, with the number of suppressed events.
//!
//! [`docs::mistakes`](crate::docs::mistakes) lists the warnings about the configuration.
//!
//! Events about a store have the field `scope`, or `node` in a Redis Cluster:
//!
//! | event | level | fields |
//! |---|---|---|
//! | quota store made no decision | `WARN` | `error`, `suppressed`; the [failure mode](crate::FailureMode) applies |
//! | circuit opened | `ERROR` | `error` |
//! | circuit closed | `WARN` | `unsent`: requests that were not sent to the store in the meantime |
//! | requests undecided while the circuit is closed, for 10 s or more | `WARN` | `undecided` of the requests that `waited` for the store, in so many `seconds`, and the last `error` |
//!
//! [Explanations](crate::RateLimitLayer::explain) of requests contain the client's address, and are therefore `DEBUG`
//! events of a separate target, `tower_quota::explain`. `RUST_LOG=debug,tower_quota::explain=off` excludes them.
//!
//! # Spans
//!
//! While a request waits for its store, it is in the `DEBUG` span `quota_decision` with the field `scope`. If the span
//! around the layer declares the fields `quota.scope`, `quota.tier`, `quota.policy` or `quota.outcome`, they are
//! recorded when the request is decided, with the values of the labels above. Inner layers overwrite the fields of
//! outer ones.
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
#[macro_use]
mod metrics;

mod builds;
mod facade;
mod growth;
mod layer;
mod process;
mod series;
mod store;
mod switch;
mod throttle;
mod tier;
mod watch;

#[cfg(feature = "axum")]
pub(crate) use self::layer::StreamTelemetry;
#[cfg(feature = "redis")]
pub(crate) use self::process::{UnsettledTelemetry, connection_failed, node_back, node_lost};
pub(crate) use self::{
    layer::{LayerTelemetry, lone_large_window, two_quotas},
    metrics::OneMore,
    process::{body_unread, evictions},
    store::{LateBatch, StoreTelemetry, stopwatch},
    switch::SwitchMeter,
    tier::{TierTelemetry, Unresolved},
};
use crate::clock::{Clock, Timestamp};

/// Stands still on a target without a clock, where the system clock panics.
pub(crate) fn now() -> Timestamp {
    match cfg!(all(target_family = "wasm", target_os = "unknown")) {
        true => Timestamp::default(),
        false => Clock::system().now(),
    }
}

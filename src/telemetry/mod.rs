//! Telemetry for operators: events and span fields (feature `tracing`), and metrics (feature `metrics`).
//!
//! This module has documentation only. No event, span or metric shows a caller or a request: no key, address, path or field value. The one
//! exception is the [explanation](crate::RateLimitLayer::explain) of a request, with its client's address: an event of target
//! `tower_quota::explain` and level `DEBUG`, for those who set up proxies. `RUST_LOG=debug,tower_quota::explain=off` is without it.
//! Names of scopes, tiers and policies are those of your configuration.
//!
//! The packages above have metrics, alerts and events of their own, in the guides of
//! [tower-quota-fleet](https://docs.rs/tower-quota-fleet/latest/tower_quota_fleet/guide/#what-to-watch) and
//! [tower-quota-anonymous](https://docs.rs/tower-quota-anonymous/latest/tower_quota_anonymous/guide/#what-to-watch).
//!
//! # Numbers
//!
//! With the feature `metrics` they go to whichever recorder the program has installed for the
//! [`metrics`](https://docs.rs/metrics) facade: Prometheus, StatsD, OpenTelemetry. The example `metrics` has a page for
//! Prometheus. **Install the recorder before the first request:** handles are made when a layer is first used and kept,
//! so a recorder that is installed later never hears of that layer. For the same reason an exporter must not forget what
//! is idle (`idle_timeout` of `metrics-exporter-prometheus`). Without the feature nothing is counted, and no clock is
//! read for it.
//!
//! | name | type | labels | what it counts |
//! |---|---|---|---|
//! | `tower_quota_decisions_total` | counter | `scope`, `tier`, `policy`, `outcome` | every decision: about requests, and about work outside HTTP |
//! | `tower_quota_failed_total` | counter | `scope`, `mode` | requests that no store decided, and no fallback either: `open` were passed on uncounted, `closed` were rejected |
//! | `tower_quota_failed_while_closed_total` | counter | `scope`, `mode` | of these, the ones that found the circuit closed: the store looked well, and no outage explains them |
//! | `tower_quota_undecided_total` | counter | `scope`, `reason` | requests that the store gave no decision for, before the fallback is asked |
//! | `tower_quota_store_seconds` | histogram | `scope` | time until the store has answered, with a decision or an error, or the deadline has passed; 0 for a store that answers at once, as one in memory does; calls of the fallback are left out |
//! | `tower_quota_rejection_cache_hits_total` | counter | `scope` | requests that were rejected without asking the store, because it is [remembered](crate::LimiterBuilder::rejection_cache) that it would reject them; the decisions have them, too |
//! | `tower_quota_late_batches_total` | counter | `scope`, `fate` | batches of [prefetched units](crate::QuotaPolicy::with_prefetch) whose call missed the deadline or failed: `kept` (they arrived, and are spent), `returned` (they arrived too late, and went back), `unknown` (no answer: if they were charged, no instance can use them) |
//! | `tower_quota_state_lost_total` | counter | `scope` | exhausted callers who were found with a full quota too early, because the store has [lost](crate::docs::alerts#the-store-loses-state) their state |
//! | `tower_quota_new_partitions_total` | counter | `scope` | charges to partitions of which a remote store had no state: callers who are new, or had used nothing for a while. Each takes memory of Redis until its windows end |
//! | `tower_quota_server_memory_ratio` | gauge | | the highest share of its `maxmemory` that one of the [polled](crate::RedisStoreBuilder::poll_server_info) Redis servers uses, 0 without a limit. Which one it is says the event |
//! | `tower_quota_server_evictions_total` | counter | | keys that the polled Redis servers have evicted, those of other programs included |
//! | `tower_quota_circuit_open` | gauge | `scope` | circuit breakers that are open: each layer has one; on a Redis Cluster it stays closed, see the next line |
//! | `tower_quota_lost_nodes` | gauge | | nodes of Redis Clusters that are not asked because their circuit is open, by each store of the process; one also while a store knows no node at all. Which ones it is says the event: addresses come and go, so they are no label |
//! | `tower_quota_slots_held` | gauge | `scope` | requests that hold a slot of a limit of concurrent requests, in this process |
//! | `tower_quota_queue_wait_seconds` | histogram | `scope` | for requests that are told to wait in a leaky bucket, how long; others are left out |
//! | `tower_quota_over_quota_total` | counter | `scope`, `tier`, `policy` | requests that were admitted above the quota of a policy, within its [overage](crate::QuotaPolicy::with_overage) |
//! | `tower_quota_shadow_rejections_total` | counter | `scope`, `tier`, `policy` | requests that a policy in [shadow mode](crate::QuotaPolicy::shadow) would have rejected; what is rejected without asking the store is not held against shadows |
//! | `tower_quota_unattributed_total` | counter | `scope` | requests without a key, whatever becomes of them |
//! | `tower_quota_unknown_tier_total` | counter | `scope` | requests of a tier that is not configured |
//! | `tower_quota_uncounted_content_total` | counter | `scope` | requests whose content a policy should count and no layer counts |
//! | `tower_quota_never_fits_total` | counter | `scope` | requests that cost more than a policy ever lets pass |
//! | `tower_quota_tier_waits_total` | counter | | requests that have waited for a [`TierLayer`](crate::tier::TierLayer) to look up the tier of their user |
//! | `tower_quota_tier_unresolved_total` | counter | `reason` | requests that went on while the tier of their user was [unknown](crate::tier::OnUnknownTier): `unanswered` (after the wait, or at once where there is none), `failed` (the look-up, or one a moment ago), `full` (too many look-ups or waiting requests) |
//! | `tower_quota_units_total` | counter | `scope`, `unit`, `amount` | units of [your own](crate::QuotaPolicy::with_unit), of requests that are over: `expected` were charged before they were served, `used` in the end |
//! | `tower_quota_refunds_total` | counter | `scope`, `outcome` | refunds [of callers](crate::Caller::refund) that have not failed: `refunded`, `duplicate`, `not_applicable`, as in [`RefundOutcome`](crate::RefundOutcome) |
//! | `tower_quota_limits_off` | gauge | `scope` | layers that apply no limits, because a switch is off |
//! | `tower_quota_evictions_total` | counter | | partitions that full memory stores have evicted |
//! | `tower_quota_unsettled_total` | counter | | settlements that a Redis store has dropped |
//! | `tower_quota_connection_failures_total` | counter | | connections to Redis that could not be opened |
//!
//! - `outcome`: `allowed`, `rejected`, `unlimited`, `unattributed`, `failed_open`, `failed_closed`, `overloaded`, `blocked`,
//!   `abnormal`, as in [`Outcome`](crate::Outcome). What the fallback has decided is `allowed` or `rejected`.
//! - `policy`: of the policies that reject, the one with the longest wait; empty for every other outcome.
//! - `tier`: as in [`Tiers`](crate::Tiers), unlimited ones too; empty for a layer without tiers.
//! - `reason`: `circuit_open`, `overloaded`, `failed`, `timed_out`, `unavailable`, `out_of_memory`, `unreachable`, as in [`StoreErrorKind`](crate::StoreErrorKind).
//!
//! A layer has up to 512 combinations of tier, policy and outcome. What finds no place any more, because rules with ever
//! new names were put in place, is counted under the tier and the policy `(other)`.
//!
//! The example `metrics` installs the recorder of `metrics-exporter-prometheus`: before the first request, because a layer
//! asks for its counters once. After five requests of a caller who has three in a minute, its page has these lines:
//!
//! ```text
//! tower_quota_decisions_total{scope="items",tier="",policy="",outcome="allowed"} 3
//! tower_quota_decisions_total{scope="items",tier="",policy="burst",outcome="rejected"} 2
//! ```
//!
//! # Alerts
//!
//! In the language of Prometheus; histograms have buckets (`set_buckets_for_metric`), some of them above the bound of the
//! alert, and the deadline is 50 ms. The name of an alert leads to [what to do](crate::docs::alerts). Prometheus loads the
//! alerts from `ops/prometheus/alerts.yml` of the repository. `namespace` and `job` are labels that Prometheus adds: two services
//! with a scope of one name are told apart by them. The failure counters and the gauges of a layer start at 0 when the layer is
//! built, if the recorder is installed by then, so that the first failure of a process counts.
//!
//! | alert | expression | what it means |
//! |---|---|---|
//! | [limits are not enforced](crate::docs::alerts#limits-are-not-enforced) | `sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[5m])) >= 1 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.01 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[1h])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[1h])) > 0.01` | more than one request in a hundred passes uncounted, over five minutes and over an hour, and at least one a second |
//! | [limits leak](crate::docs::alerts#limits-leak) | `sum by (namespace, job, scope) (increase(tower_quota_failed_total{mode="open"}[30m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="open"}[30m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[30m])) > 0.001` | more than one request in a thousand passes uncounted over half an hour: too late, overloaded, on a connection that had ended |
//! | [requests fail for want of a store](crate::docs::alerts#requests-fail-for-want-of-a-store) | `sum by (namespace, job, scope) (increase(tower_quota_failed_total{mode="closed"}[5m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_failed_total{mode="closed"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.001` | clients get a 503 |
//! | [the store is unavailable](crate::docs::alerts#the-store-is-unavailable) | `count by (namespace, job, scope) (tower_quota_circuit_open > 0) >= 2 and count by (namespace, job, scope) (tower_quota_circuit_open > 0) / count by (namespace, job, scope) (tower_quota_circuit_open) >= 0.1`, for 1 min | at least two instances, and a tenth of all, have stopped asking the store; a few requests a second try again |
//! | [an instance is cut off](crate::docs::alerts#an-instance-is-cut-off) | `max by (namespace, job, scope) (tower_quota_circuit_open) > 0`, for 5 min | an instance has stopped asking the store: without requests there are no trials |
//! | [a node of the cluster is lost](crate::docs::alerts#a-node-of-the-cluster-is-lost) | `count by (namespace, job) (tower_quota_lost_nodes > 0) >= 2 and count by (namespace, job) (tower_quota_lost_nodes > 0) / count by (namespace, job) (tower_quota_lost_nodes) >= 0.1`, for 1 min | callers whose slots the node has are not limited, all others are |
//! | [an instance has lost a node](crate::docs::alerts#an-instance-has-lost-a-node) | `max by (namespace, job) (tower_quota_lost_nodes) > 0`, for 5 min | the same, for one instance: the network between, most often |
//! | [the store is slow](crate::docs::alerts#the-store-is-slow) | `histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[5m]))) > 0.025 and histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[5m]))) > 2 * histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_store_seconds_bucket[1d])))`, for 5 min | half of the default deadline is used up, and twice the time of the last day: a store that is always far away does not fire |
//! | [the store fails](crate::docs::alerts#the-store-fails) | `sum by (namespace, job, scope) (increase(tower_quota_undecided_total{reason="failed"}[5m])) >= 10 and sum by (namespace, job, scope) (rate(tower_quota_undecided_total{reason="failed"}[5m])) / sum by (namespace, job, scope) (rate(tower_quota_decisions_total[5m])) > 0.001` | a script error, a missing permission: the circuit stays closed |
//! | [the store loses state](crate::docs::alerts#the-store-loses-state) | `sum by (namespace, job, scope) (increase(tower_quota_state_lost_total[5m])) >= 10` | Redis evicts, was flushed or failed over, and callers get their quota again |
//! | [the store is out of memory](crate::docs::alerts#the-store-is-out-of-memory) | `sum by (namespace, job, scope) (rate(tower_quota_undecided_total{reason="out_of_memory"}[5m])) >= 1` | Redis rejects writes: each process decides by itself |
//! | [the server is nearly full](crate::docs::alerts#the-server-is-nearly-full) | `max by (namespace, job) (tower_quota_server_memory_ratio) > 0.8`, for 5 min | at 1, Redis rejects writes or evicts callers |
//! | [the server evicts](crate::docs::alerts#the-server-evicts) | `max by (namespace, job) (rate(tower_quota_server_evictions_total[15m])) > 0` | evicted callers have their full quota again; keys of other programs count, too |
//! | [new callers fill the store](crate::docs::alerts#new-callers-fill-the-store) | `sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[5m])) > 1000 and sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[5m])) > 10 * sum by (namespace, job, scope) (rate(tower_quota_new_partitions_total[1h] offset 1h))`, for 5 min | strangers send requests under ever new keys, and each key takes memory of Redis |
//! | [callers are not told apart](crate::docs::alerts#callers-are-not-told-apart) | `sum by (namespace, job, scope) (rate(tower_quota_unattributed_total[5m])) > 0` | most often a layer misses the user or the peer address, and strangers share a quota |
//! | [tiers are not known](crate::docs::alerts#tiers-are-not-known) | `sum by (namespace, job, scope) (rate(tower_quota_unknown_tier_total[5m])) > 0` | callers are counted by the first tier |
//! | [tiers are not looked up](crate::docs::alerts#tiers-are-not-looked-up) | `sum by (namespace, job, reason) (rate(tower_quota_tier_unresolved_total[5m])) > 0`, for 5 min | paying users may be limited as [unknown](crate::tier::OnUnknownTier) ones, or pass uncounted |
//! | [limits are switched off](crate::docs::alerts#limits-are-switched-off) | `max by (namespace, job, scope) (tower_quota_limits_off) > 0`, for 15 min | all requests pass uncounted, because a switch is off |
//! | [switches differ](crate::docs::alerts#switches-differ) | `max by (namespace, job, scope) (tower_quota_limits_off > bool 0) != min by (namespace, job, scope) (tower_quota_limits_off > bool 0)`, for 1 min | some instances apply their limits and some do not |
//! | [a scope is gone](crate::docs::alerts#a-scope-is-gone) | `count by (namespace, job, scope) (tower_quota_limits_off offset 1d) unless count by (namespace, job, scope) (tower_quota_limits_off)`, for 15 min | no instance reports a scope that was there a day ago: the layer is gone, or nothing is scraped |
//! | [many rejections](crate::docs::alerts#many-rejections) | `sum by (namespace, job, scope, policy) (rate(tower_quota_decisions_total{outcome="rejected"}[15m])) / on (namespace, job, scope) group_left sum by (namespace, job, scope) (rate(tower_quota_decisions_total[15m])) > 0.1` | an attack, a client gone wild, or a limit that is too low |
//! | [requests that never pass](crate::docs::alerts#requests-that-never-pass) | `sum by (namespace, job, scope) (rate(tower_quota_never_fits_total[5m])) > 0` | a cost above a capacity: waiting does not help |
//! | [uploads are not counted](crate::docs::alerts#uploads-are-not-counted) | `sum by (namespace, job, scope) (rate(tower_quota_uncounted_content_total[5m])) > 0` | content of unknown length passes uncounted |
//! | [requests wait for long](crate::docs::alerts#requests-wait-for-long) | `histogram_quantile(0.99, sum by (namespace, job, scope, le) (rate(tower_quota_queue_wait_seconds_bucket[5m]))) > 1`, for 5 min | a leaky bucket is near the length of its queue |
//! | [slots are not given back](crate::docs::alerts#slots-are-not-given-back) | `min_over_time(tower_quota_slots_held[1d]) > 0 and tower_quota_slots_held offset 1d` | only for a service that has idle hours: a response body or a [`Permit`](crate::Permit) is kept |
//! | [the memory store is full](crate::docs::alerts#the-memory-store-is-full) | `sum by (namespace, job) (rate(tower_quota_evictions_total[5m])) > 0` | evicted callers have a full quota again, those first who have used the least: a flood of new keys, or a cap that is too low |
//! | [estimates are too low](crate::docs::alerts#estimates-are-too-low) | `sum by (namespace, job, scope, unit) (rate(tower_quota_units_total{amount="used"}[1h])) > sum by (namespace, job, scope, unit) (rate(tower_quota_units_total{amount="expected"}[1h]))` | more units are used than were charged in advance: callers overdraw their policies, and are rejected for longer afterwards |
//! | [charges go astray](crate::docs::alerts#charges-go-astray) | `sum by (namespace, job) (rate(tower_quota_unsettled_total[5m])) > 0`, for 5 min | refunds and late charges are lost, slots come back with their lease only |
//!
//! # Events
//!
//! All have the target `tower_quota`. None is sent once for each request: a warning about the configuration is given once
//! for each layer, and one about a request that goes on at most once in ten seconds, with the number of those that had
//! none.
//!
//! A warning about the configuration has a field `mistake` with its name, and a field `help` with the address of its section
//! in [`docs::mistakes`](crate::docs::mistakes). Some mistakes show in the key, the fields or the way of requests only. A
//! layer looks for these in its first 1 000 requests; afterwards that costs nothing but the load of a flag.
//!
//! If requests stay undecided for ten seconds or more while the circuit is closed, a `WARN` event says how many in how
//! long (`undecided`, `seconds`), and how many requests waited for the store meanwhile (`waited`); again every ten seconds
//! as long as it goes on.
//!
//! # Spans
//!
//! While a request waits for its store it is in a span `quota_decision` of level `DEBUG`, which has the field `scope`. If
//! the span around the layer has declared fields `quota.scope`, `quota.tier`, `quota.policy` or `quota.outcome`, they
//! are recorded, with the words of the labels above, when the request is decided. Where one layer stands around
//! another, the inner one speaks last.
//!
//! ```
//! # use tower::{Layer, ServiceExt, service_fn};
//! # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//! use tracing::{Instrument, field::Empty, info_span};
//!
//! # if !cfg!(feature = "tracing") { return }
//! # let (log, writer) = std::io::pipe().unwrap();
//! # let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.try_clone().unwrap());
//! # let subscriber = subscriber.with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE).finish();
//! # let subscriber = tracing::subscriber::set_default(subscriber);
//! # tokio_test::block_on(async {
//! # let limits = RateLimitLayer::builder(MemoryStore::new()).scope("api").key(key::header("x-user-id"))
//! #     .policy(QuotaPolicy::per_minute("minute", 1)).build().unwrap();
//! # let service = limits.layer(service_fn(async |_: http::Request<()>| {
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
//! # }));
//! for _ in 0..2 {
//!     let span = info_span!("request", quota.scope = Empty, quota.policy = Empty, quota.outcome = Empty);
//!     # let request = http::Request::get("/").header("x-user-id", "alice").body(()).unwrap();
//!     let response = service.clone().oneshot(request).instrument(span).await;
//!     # response.unwrap();
//! }
//! # });
//! # drop(subscriber);
//!
//! let lines: Vec<String> = // … what the subscriber has written
//! # std::io::BufRead::lines(std::io::BufReader::new(log)).map(Result::unwrap).collect();
//! assert!(lines[0].contains(r#"request{quota.scope="api" quota.policy="" quota.outcome="allowed"}"#));
//! assert!(lines[1].contains(r#"request{quota.scope="api" quota.policy="minute" quota.outcome="rejected"}"#));
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
#[cfg(feature = "redis")]
mod servers;
mod store;
mod throttle;
mod tier;
mod watch;

use std::time::Duration;

use self::macros::EVENTS;
pub(crate) use self::macros::InSpan;
#[cfg(feature = "redis")]
pub(crate) use self::meters::OneMore as LostNode;
#[cfg(feature = "redis")]
pub(crate) use self::servers::{ServerInfo, ServerTelemetry};
pub(crate) use self::tier::TierTelemetry;
pub(crate) use self::{
    labels::{LateBatch, Unresolved},
    layer::LayerTelemetry,
    meters::{OneMore as HeldSlots, Stopwatch, SwitchMeter},
    store::StoreTelemetry,
};
#[cfg(feature = "axum")]
use crate::mistake::Mistake;

pub(crate) fn lone_large_window(scope: &str, window: Duration) {
    mistake!(
        LoneLargeWindow,
        scope = %scope,
        window_seconds = %window.as_secs(),
        "the shortest window is longer than an hour, so that a caller may use up all of it at once; \
         add a policy with a short window"
    );
}

pub(crate) fn guessable_address(scope: &str, policy: &str) {
    mistake!(
        GuessableAddress,
        scope = %scope,
        policy = %policy,
        "a policy shows a partition key that is made from an address, which can be found out by trying all addresses; \
         set a digest key"
    );
}

pub(crate) fn two_quotas(scope: &str, policy: &str) {
    mistake!(
        TwoQuotas,
        scope = %scope,
        policy = %policy,
        "two layers of this process have the same scope, store and policy name, and other numbers in the policy; \
         they share what callers have used, and each decides with its own numbers"
    );
}

/// Most often it is meant, so it is no mistake.
pub(crate) fn counts_together(scope: &str, policy: &str) {
    event!(
        INFO,
        scope = %scope,
        policy = %policy,
        "two limiters of this process have the same scope, store and policy, and count together; give them different scopes \
         if each is to have a quota of its own"
    );
}

#[cfg(feature = "redis")]
pub(crate) fn connection_failed(error: &dyn std::fmt::Display) {
    meters::connection_failed();
    event!(DEBUG, error = %error, "a connection to Redis failed");
}

/// A node of a Redis cluster is not asked any more, or none is known at all, for as long as what is returned.
#[cfg(feature = "redis")]
pub(crate) fn node_lost(address: &str, error: &dyn std::fmt::Display) -> LostNode {
    event!(ERROR, node = %address, error = %error, "a node of the cluster does not answer and is not asked any more");
    meters::node_lost()
}

/// It is asked again, after so many calls that were not made.
#[cfg(feature = "redis")]
pub(crate) fn node_back(address: &str, rejected: u64) {
    event!(WARN, node = %address, rejected = %rejected, "a node of the cluster answers again");
}

/// A memory store is full and has evicted a partition.
pub(crate) fn partition_evicted() {
    meters::evicted();
}

/// Settlements that a store has dropped: charges stand as they are, and leases end by themselves.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct UnsettledTelemetry(throttle::EventThrottle);

#[cfg(feature = "redis")]
impl UnsettledTelemetry {
    pub(crate) fn record(&self, now: crate::clock::Timestamp, error: &crate::error::StoreError) {
        meters::unsettled();
        self.0.record(now, |suppressed| {
            event!(WARN, error = %error, suppressed = %suppressed, "a charge could not be settled");
        });
    }
}

/// The body of a rejection is a stream.
#[cfg(feature = "axum")]
#[derive(Debug, Default)]
pub(crate) struct StreamTelemetry(throttle::OnceFlags);

#[cfg(feature = "axum")]
impl StreamTelemetry {
    pub(crate) fn record(&self) {
        if self.0.is_first(Mistake::StreamedRejection) {
            mistake!(
                StreamedRejection,
                "the body of a rejection is a stream, which is not waited for; the usual response is given instead"
            );
        }
    }
}

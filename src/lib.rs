//! Distributed rate limiting as a Tower layer, for services on Axum, Hyper and Tonic.
//!
//! [`RateLimitLayer`] wraps any Tower service. It finds out [whose](key) quota a request uses, checks several windows
//! (second, minute, day …) in one atomic step, [in this process](MemoryStore) or in a Redis that all instances share
//! (`RedisStore`), and tells the client in `RateLimit` and `RateLimit-Policy` fields what is left, or answers 429 with
//! `Retry-After` and `application/problem+json`. When the store is away, requests pass.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//! # use tower::ServiceExt;
//!
//! # tokio_test::block_on(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_second("burst", 2))
//!     .policy(QuotaPolicy::per_day("daily", 5_000))
//!     .build()?;
//!
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//!
//! let request = || http::Request::get("/").header("x-user-id", "alice").body(String::new()).unwrap();
//! let response = app.clone().oneshot(request()).await?;
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.headers()["ratelimit"], r#""burst";r=1;t=1, "daily";r=4999;t=86383"#);
//! assert_eq!(response.headers()["ratelimit-policy"], r#""burst";q=2;w=1, "daily";q=5000;w=86400"#);
//!
//! app.clone().oneshot(request()).await?;
//! let refused = app.oneshot(request()).await?;
//! assert_eq!(refused.status(), 429);
//! assert_eq!(refused.headers()["retry-after"], "1");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # What to choose
//!
//! | you need | take |
//! |---|---|
//! | one limit over all instances | `RedisStore`: one script call per decision, by the server's clock |
//! | one caller that is hotter than what one Redis can decide | [`QuotaPolicy::with_unit_block`] |
//! | one process, or tests | [`MemoryStore`]: bounded, no server, no background task |
//! | users where you know them, else addresses | [`key::extension`]`.or_else(`[`key::client_ip`]`())` |
//! | a store that goes on when a server is lost | `RedisStore::sentinel`, or `RedisStore::cluster`, which also spreads the load |
//! | tokens that expire, client certificates, tunnels to Redis | `RedisStoreBuilder::connect_with` |
//! | per user *and* per address *and* for everybody, all or nothing | [`named_key`](RateLimitLayerBuilder::named_key), [`QuotaPolicy::counted_by`] |
//! | limits by plan: free, premium, admin | [`Tiers`] |
//! | plans that only a database knows | [`TierLayer`] |
//! | uncounted requests rather than failed ones while the store is away | nothing, it is the default: [`FailureMode::Open`] |
//! | a caller who goes on after a refusal to cost Redis next to nothing | nothing, it is the default: [`denial_cache`](RateLimitLayerBuilder::denial_cache) |
//! | failed requests rather than uncounted ones (logins, payments) | [`FailureMode::Closed`] |
//! | a limit per instance while Redis is away | [`fallback`](RateLimitLayerBuilder::fallback) with a [`MemoryStore`] |
//! | a promise that no window ever sees more than the quota | [`Algorithm::StrictTokenBucket`] or [`Algorithm::SlidingWindowLog`] |
//! | quotas that begin anew at midnight | [`Algorithm::FixedWindow`] |
//! | an even flow to something fragile | [`Algorithm::LeakyBucketQueue`] if requests may wait, else [`Algorithm::LeakyBucketMeter`] |
//! | few slow requests at a time | [`QuotaPolicy::concurrent`] |
//! | bandwidth rather than requests | [`QuotaPolicy::with_content_bytes`], and [`RequestContentLayer`] for uploads |
//! | requests that cost more than others | [`cost_by`](RateLimitLayerBuilder::cost_by), or [`ActualCost`] when it is known afterwards |
//! | failed logins only | [`actual_cost`](RateLimitLayerBuilder::actual_cost) |
//! | a response of your own | [`respond_with`](RateLimitLayerBuilder::respond_with), in axum `respond_with_axum` |
//! | to know in a handler what is left | [`decision_in_request`](RateLimitLayerBuilder::decision_in_request) |
//! | fields for older clients, fewer fields, or none | [`ResponseFields`] |
//! | rules from a file, and new ones without a restart | [`Rules`], [`RateLimitLayer::rules`] |
//! | new rules for 10 % of the callers first; a kill switch | [`RulesHandle::try_on`], [`RulesHandle::switch_off`] |
//! | to see whom new limits would hit before they hit anybody | [`QuotaPolicy::shadow`] |
//! | limits that clients must not see | [`QuotaPolicy::hidden`] |
//! | lower limits while the service is busy | [`capacity`](RateLimitLayerBuilder::capacity) |
//! | to turn away what looks like an attack | [`abnormal_usage`](RateLimitLayerBuilder::abnormal_usage) |
//! | health checks that cost nothing, partners without limits | [`exempt`](RateLimitLayerBuilder::exempt) |
//! | to allow or block clients while the service runs | [`AccessList`] |
//! | browsers and scripts of other origins | [`skip_cors_preflight`](RateLimitLayerBuilder::skip_cors_preflight), [`fields::EXPOSED`] |
//! | a client that is not refused | the module `client` |
//! | a gateway before a service with limits of its own | nothing: the layer [joins](fields::merge_into) both lists |
//! | to limit something that is not a request | a [`Store`] and a [`Plan`], without the layer |
//! | to read or write `RateLimit` fields yourself, in a client or a gateway | the module [`fields`] |
//!
//! # Order of layers
//!
//! Put authentication *outside* of a layer that counts users: what is charged has to be verified, or anybody could
//! use up somebody else's quota. Put the layer outside of a response cache, so that cached responses carry current
//! numbers, and inside of what writes logs and CORS fields, so that refusals get them too.
//!
//! The [guide] has a program for each order: before authentication, after it, and around logins.
//!
//! # What happens on failure
//!
//! Each decision has a [deadline](RateLimitLayerBuilder::deadline) of 50 ms, and none that may have been made is
//! repeated. After five failures in a row a circuit breaker opens: from then on no request waits for the store, and one
//! at a time tries whether it answers again, at most every 50 to 500 ms. In a Redis Cluster each node has a breaker of
//! its own, so that a lost one costs only those whose slots it has. A response that was not decided on carries no
//! fields; its [`Decision`] and a `tracing` event say so.
//!
//! # What is not promised
//!
//! - A decision says what was left when it was made. Other requests of the same caller may be faster than the next one.
//! - A call to Redis that was not answered in time may have been carried out; its units are then used up.
//! - Redis replicates asynchronously: a fail-over forgets what the new primary had not received.
//! - A refusal is [remembered](RateLimitLayerBuilder::denial_cache) for up to a second: what another instance gives back
//!   meanwhile is seen that late, and what comes back by itself up to 40 ms late.
//! - With [`MemoryStore`], as the store or the fallback, N processes admit N times the quota.
//! - Requests wait for nothing but the decision, unless a policy is a
//!   [leaky bucket with a queue](Algorithm::LeakyBucketQueue).
//! - A slot of a limit of concurrent requests may be taken twice while its holder cannot reach Redis for longer than a
//!   lease.
//! - In a Redis Cluster, a plan with several partitions is all or nothing only once what was charged is given back:
//!   meanwhile others may be refused for it.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `redis` | yes | `RedisStore` |
//! | `redis-rustls` | | TLS to Redis, with the rustls provider that the program installs |
//! | `tracing` | yes | events for failures, bounded in number: never one per request |
//! | `metrics` | | [counters, gauges and histograms](telemetry) through the `metrics` facade |
//! | `test_util` | | what tests of your limits need, and a guide: the module `test_util` |
//! | `axum` | | the peer address from axum's `ConnectInfo`, its routes as keys (`key::matched_path`), a [`Decision`] in its handlers, refusals from its responses (`respond_with_axum`) |
//! | `serde` | | policies and rules from any serde format |
//! | `tonic` | | the peer address from tonic's connection information |
//! | `client` | | `client`, the other side: a layer for clients that obeys the fields of any server |
//! | `grpc-details` | | when to try again and which quotas are used up, in the details of a gRPC status |
//!
//! Features only add. Without any, the crate has the layer and [`MemoryStore`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")
)]

#[macro_use]
pub mod telemetry;

mod algorithm;
mod bounded_map;
mod breaker;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
mod decision;
mod error;
pub mod fields;
mod guard;
pub mod guide;
pub mod key;
mod layer;
#[cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "the Redis store names leases to its server")
)]
mod lease;
mod partition;
mod plan;
mod policy;
mod quota;
mod random;
#[cfg(feature = "redis")]
pub mod redis;
mod rejection;
mod response_fields;
#[cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "the Redis store sends settlements")
)]
mod settlement;
mod store;
#[cfg(feature = "test_util")]
pub mod test_util;
mod tier;

#[cfg(feature = "axum")]
pub use self::layer::NoDecision;
#[cfg(feature = "redis")]
pub use self::store::redis::{RedisStore, RedisStoreBuilder};
pub use self::{
    decision::{Allowance, Decision, Outcome},
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
    guard::FailureMode,
    layer::{
        AbnormalUsage, Access, AccessList, AccessRules, ActualCost, AdminHandle, Capacity, Exemption, HeldSlot, NoKey,
        RateLimit, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder, RequestContent, RequestContentBody,
        RequestContentLayer, ResponseFuture, SlotHandle,
    },
    partition::{PartitionId, PartitionKey, Scope, ToPartitionKey},
    plan::{Charge, Plan},
    policy::{ResolvedTier, Rules, RulesHandle, Tiers},
    quota::{Algorithm, CheckedPolicies, CheckedPolicy, Content, QuotaPolicy, QuotaUnit},
    rejection::Rejection,
    response_fields::{LegacyReset, ResponseFields, ShownWhen},
    settlement::Settlement,
    store::{
        AcquireFuture, Store, StoreFuture,
        memory::{MemoryStore, MemoryStoreBuilder},
    },
    tier::{TierCache, TierFuture, TierLayer, TierLayerBuilder, TierService},
};

/// The programs of the README have to compile.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

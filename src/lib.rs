//! Distributed rate limiting as a Tower layer, for services on Axum, Hyper and Tonic.
//!
//! [`RateLimitLayer`] wraps any Tower service. It resolves each request to a [key], checks several windows (second, minute,
//! day …) of that key in one atomic step, and tells the client in `RateLimit` and `RateLimit-Policy` fields what is left, or
//! answers 429 with `Retry-After` and `application/problem+json`. The counts are in this process ([`MemoryStore`]) or in a
//! Redis that all instances share (`RedisStore`). When the store is unavailable, requests pass.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1", features = ["full"] }
//! tower-quota = { version = "0.1", features = ["axum"] }
//! ```
//!
//! A service that limits each address:
//!
//! ```no_run
//! use std::{error::Error, net::SocketAddr};
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("api")
//!         .key(key::client_ip())
//!         .policy(QuotaPolicy::per_second("burst", 10))
//!         .policy(QuotaPolicy::per_day("daily", 5_000))
//!         .build()?;
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//!
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     // With connect info: without it the layer does not know the address.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! ```
//!
//! With `RedisStore::new("redis://127.0.0.1/")?` in place of `MemoryStore::new()`, all instances with the same Redis and the
//! same scope enforce these limits together. Redis need not be up when the service starts.
//!
//! # What the client reads
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::extension::<u64>()) // the id of the user, which authentication leaves in the request
//!     .policy(QuotaPolicy::per_second("burst", 2))
//!     .policy(QuotaPolicy::per_day("daily", 5_000))
//!     .build()?;
//! # let inner = service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
//! # let service = limits.layer(inner);
//! # let send = || service.clone().oneshot(Request::get("/").extension(7_u64).body(()).unwrap());
//! let response = send().await?;
//! assert_eq!(response.headers()["ratelimit"], r#""burst";r=1;t=1, "daily";r=4999;t=86383"#);
//! assert_eq!(response.headers()["ratelimit-policy"], r#""burst";q=2;w=1, "daily";q=5000;w=86400"#);
//!
//! send().await?;
//! let rejected = send().await?;
//! assert_eq!(rejected.status(), 429);
//! assert_eq!(rejected.headers()["retry-after"], "1");
//! # Ok(()) });
//! ```
//!
//! `r` is how many units are left, and `t` is the *effective window*: the time, in seconds, in which the client may spend
//! them. It is not the time until the quota resets. The default algorithm is a token bucket, which gives units back one by
//! one: 4 999 units of 5 000 a day are what the bucket gives in 86 383 seconds.
//!
//! # Where to go from here
//!
//! - [`RateLimitLayerBuilder`]: the settings. [`QuotaPolicy`] and [`Algorithm`]: what a limit can be.
//! - [`docs::choosing`]: which piece of the crate is for which need.
//! - [`guide`]: where the layer goes, before authentication, after it, and around logins; what must not be a key.
//! - [`docs::proxies`]: the client's address behind nginx, Envoy, a load balancer or a CDN.
//! - [`docs::mistakes`]: what each event about the configuration means, and what to do.
//! - [`docs::cookbook`]: recipes for routes and methods, GraphQL, WebSocket messages, uploads and jobs.
//! - [`docs::moving`]: line by line from tower_governor, axum-governor and `tower::limit`. [`docs::comparison`]: beside others.
//! - [`docs::production`]: Redis, its settings, what to watch, what happens when something breaks, what is not promised.
//! - The package `tower-quota-anonymous`: quotas for callers that cannot be identified, with anonymous rate-limited credentials.
//! - The package `tower-quota-fleet`: one set of rules for all instances, with a version, a rollout and a kill switch.
//! - [`docs::alerts`]: what to do about each alert.
//! - [`docs::regions`]: limits that several regions share. [`docs::scale`]: the servers and the memory that a load takes.
//! - [`docs::design`]: the packages, the rooms and the life of a request. [`docs::decisions`]: the reasons.
//! - [`key`], [`fields`], [`telemetry`], `test_util`: modules with pages of their own.
//! - The package `tower-ratelimit-client`: the other side, a layer for clients that obeys the fields of any server.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `redis` | yes | `RedisStore` |
//! | `redis-rustls` | | TLS to Redis, with the rustls provider that the program installs |
//! | `tracing` | yes | events for failures, bounded in number: never one per request |
//! | `metrics` | | [counters, gauges and histograms](telemetry) through the `metrics` facade |
//! | `test-util` | | what tests of your limits need, and a guide: the module `test_util` |
//! | `axum` | | the peer address from axum's `ConnectInfo`, its routes as keys (`key::matched_path`), a [`Decision`] in its handlers, rejections from its responses (`respond_with_axum`) |
//! | `serde` | | policies and rules from any serde format |
//! | `calendar` | | time-zone data for [quotas per calendar day, week and month](QuotaPolicy::per_calendar) |
//! | `tonic` | | the peer address from tonic's connection information; when to try again and which quotas are exhausted, in the details of a gRPC status |
//! | `headers` | | the [`fields`] as typed headers, for `TypedHeader` of axum-extra |
//!
//! Features only add. Without any, the crate has the layer and [`MemoryStore`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")
)]

#[macro_use]
pub mod telemetry;

mod access;
mod algorithm;
mod breaker;
pub mod clock;
mod decision;
pub mod docs;
mod error;
pub mod fields {
    //! The fields of responses: the items of the package `ratelimit-fields`.
    #[doc(inline)]
    pub use ratelimit_fields::*;
}
pub mod guide;
pub mod key;
mod layer;
mod lease;
pub mod ledger;
mod limiter;
mod mistake;
mod partition;
mod policy;
#[cfg(feature = "redis")]
pub mod redis;
mod response;
mod round_trips;
mod rules;
mod store;
mod sync;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod tier;

#[cfg(feature = "axum")]
pub use self::layer::MissingDecision;
#[cfg(feature = "redis")]
pub use self::store::redis::{RedisStore, RedisStoreBuilder};
pub use self::{
    access::{AbnormalUsage, Access, AccessList, AccessOverlay, AccessRules, Capacity, Exemption},
    breaker::CircuitState,
    decision::{
        Allowance, Availability, Charge, ChargeTime, Decision, MeasuredCharge, Measurement, Outcome, Plan, Settlement,
    },
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
    layer::{
        ActualCost, Explanation, RateLimit, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder, RequestContent,
        RequestContentBody, RequestContentLayer, ResponseFuture,
    },
    limiter::{
        Caller, FailureMode, Limiter, LimiterBuilder, LimiterError, MissingKey, Permit, Refund, RefundOutcome,
        WeakPermit, WithPermit,
    },
    partition::{PartitionId, PartitionKey, Scope, ToPartitionKey},
    policy::{
        Algorithm, CalendarPeriod, CalendarWindow, CallerQuotas, Direction, Policy, PolicySet, QuotaPolicy, QuotaUnit,
        UnitName, Weekday,
    },
    response::{
        fields::{EmitWhen, LegacyReset, RateCap, ResponseFields},
        rejection::Rejection,
    },
    rules::{ChangeKind, ResolvedTier, Rules, RulesChange, RulesClaim, RulesDiff, RulesHandle, RulesUpdate, Tiers},
    store::{
        Store, StoreFuture, StoreReport, StoreTraits,
        memory::{MemoryStore, MemoryStoreBuilder},
    },
};

/// The programs of the README have to compile.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

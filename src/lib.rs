//! Distributed rate limiting as a Tower layer, for services built on axum, hyper and tonic.
//!
//! [`RateLimitLayer`] wraps any Tower service. For each request, it extracts a [key], checks several windows of that
//! key in one atomic decision, and adds the remaining units as `RateLimit` and `RateLimit-Policy` fields. Requests
//! above a limit are rejected with 429, `Retry-After` and `application/problem+json`. Counts are stored in this process
//! ([`MemoryStore`]) or in a Redis server shared by all instances (`RedisStore`). If the store is unavailable, requests
//! pass.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1", features = ["full"] }
//! tower-quota = { version = "0.1", features = ["axum"] }
//! ```
//!
//! A service with limits per address:
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
//!     // The connect info provides the client's address.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! ```
//!
//! With `RedisStore::new("redis://127.0.0.1/")?` instead of `MemoryStore::new()`, all instances with the same Redis and
//! scope share these limits.
//!
//! # What the client reads
//!
//! ```
//! use std::convert::Infallible;
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::extension::<u64>()) // the user ID, inserted by authentication
//!     .policy(QuotaPolicy::per_second("burst", 2))
//!     .policy(QuotaPolicy::per_day("daily", 5_000))
//!     .build()?;
//! let service = ServiceBuilder::new()
//!     .layer(limits)
//!     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
//! let send = || service.clone().oneshot(Request::builder().extension(7_u64).body(String::new()).unwrap());
//!
//! let response = send().await?;
//! assert_eq!(response.headers()["ratelimit"], r#""burst";r=1;t=1, "daily";r=4999;t=86383"#);
//! assert_eq!(response.headers()["ratelimit-policy"], r#""burst";q=2;w=1, "daily";q=5000;w=86400"#);
//!
//! send().await?;
//! let rejected = send().await?;
//! assert_eq!(rejected.status(), 429);
//! assert_eq!(rejected.headers()["retry-after"], "1");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! `r` is the number of remaining units, and `t` the *effective window*: the seconds over which the client can spread
//! them, not the time until the quota resets. The default algorithm is a token bucket, which refills continuously: in
//! 86,383 seconds, it restores 4,999 of 5,000 units per day.
//!
//! # Where to go from here
//!
//! - [`guide`]: a page with a program per task. [`docs::choosing`]: maps requirements to APIs. [`docs::options`]: all
//!   settings. [`docs::recipes`]: rules at run time, metrics and gRPC.
//! - [`docs::proxies`]: the client's address behind a proxy, a load balancer or a CDN.
//! - [`docs::troubleshooting`]: a limit that never triggers, or that limits everyone at once. [`docs::mistakes`]:
//!   events about misconfigurations.
//! - [`docs::production`]: a checklist, and the settings of Redis. [`docs::outages`]: each fault. [`docs::tuning`]: hot
//!   callers, a Redis far away, floods. [`docs::scale`]: servers, and several regions. [`docs::alerts`]: how to handle
//!   each alert.
//! - [`docs::moving`]: migration from tower_governor, axum-governor and `tower::limit`. [`docs::comparison`]: other
//!   crates.
//! - [`key`], [`fields`], [`telemetry`], `test_util`: modules with their own documentation.
//! - Packages: `tower-quota-fleet`, one set of rules for all instances; `tower-quota-anonymous`, quotas for callers
//!   that cannot be identified; `tower-ratelimit-client`, a layer for clients that respects the fields of any server.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `redis` | yes | `RedisStore` |
//! | `redis-rustls` | | TLS to Redis, with the rustls provider that the program installs |
//! | `metrics` | | [counters, gauges and histograms](telemetry) via the `metrics` facade |
//! | `test-util` | | the module `test_util`: tools and a guide for testing limits |
//! | `axum` | | the peer address from axum's `ConnectInfo`, routes as keys (`key::matched_path`), [`Decision`] as an extractor, rejections as axum responses (`respond_with_axum`) |
//! | `serde` | | policies and rules from any serde format |
//! | `calendar` | | time-zone data for [quotas per calendar day, week and month](QuotaPolicy::per_calendar) |
//! | `tonic` | | the peer address from tonic's connection information; retry delay and exhausted quotas in the details of a gRPC status |
//! | `headers` | | the [`fields`] as typed headers, for `TypedHeader` of axum-extra |
//!
//! Features are additive. Without any, the crate contains the layer and [`MemoryStore`].
//!
//! # WebAssembly
//!
//! With `default-features = false`, the crate compiles for `wasm32-wasip1` and `wasm32-unknown-unknown`, also with
//! `metrics`, `serde`, `calendar` and `test-util`, but not with `redis`. The automated tests do not run on either
//! target. `wasm32-unknown-unknown` has no clock, so the system clock panics: set a [manual
//! clock](clock::Clock::manual) for both the [store](MemoryStoreBuilder::clock) and the
//! [limiter](LimiterBuilder::clock), and set it to the time of the host before each request. Events that are limited in
//! time are then emitted once.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed test should report its line"))]

#[macro_use]
pub mod telemetry;

mod access;
mod algorithm;
mod breaker;
pub mod calendar {
    //! The periods of quotas per calendar day, week and month: see
    //! [`QuotaPolicy::per_calendar`](crate::QuotaPolicy::per_calendar).
    pub use crate::policy::{CalendarPeriod, CalendarWindow, Weekday};
}
pub mod clock;
pub mod content {
    //! The content of requests: [counts its bytes](RequestContentLayer), and [discards what a rejection leaves
    //! unread](LingeringClose).
    pub use crate::layer::{LingeringClose, RequestContent, RequestContentBody, RequestContentLayer};
}
mod decision;
pub mod docs;
mod error;
pub mod fields {
    //! Response fields, from the package `ratelimit-fields`, and settings of
    //! [`ResponseFields`](crate::ResponseFields).
    #[doc(inline)]
    pub use ratelimit_fields::*;

    pub use crate::response::fields::EmitWhen;
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
pub mod updates {
    //! Rules and access lists from a [source outside the program](RulesClaim), and the [counts that new rules
    //! reset](RulesDiff).
    pub use crate::{
        access::AccessOverlay,
        rules::{ChangeKind, RulesChange, RulesClaim, RulesDiff, RulesUpdate},
    };
}

#[cfg(feature = "redis")]
pub use self::store::redis::{RedisStore, RedisStoreBuilder};
pub use self::{
    access::{AbnormalUsage, Access, AccessList, AccessRules, Capacity, Exemption},
    breaker::CircuitState,
    decision::{Allowance, Availability, Charge, ChargeTime, Decision, Measurement, Outcome, Plan, Settlement},
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
    layer::{ActualCost, Explanation, RateLimit, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder, ResponseFuture},
    limiter::{
        Caller, FailureMode, LateCharge, LateChargeOutcome, Limiter, LimiterBuilder, LimiterError, MissingKey, Permit,
        Refund, RefundOutcome, WeakPermit, WithPermit,
    },
    partition::{PartitionId, PartitionKey, Scope, ToPartitionKey},
    policy::{Algorithm, CallerQuotas, Direction, PolicySet, QuotaPolicy, QuotaUnit, UnitName},
    response::{
        fields::{LegacyReset, ResponseFields},
        rejection::Rejection,
    },
    rules::{ResolvedTier, Rules, RulesHandle, Tiers},
    store::{
        Store, StoreFuture, StoreReport, StoreTraits,
        memory::{MemoryStore, MemoryStoreBuilder},
    },
};

/// Compiles the programs in the README.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

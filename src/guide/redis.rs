//! Share limits through Redis, and plan for its outages.
//!
//! All instances with the same Redis and scope share their limits. [Which Redis](crate::docs::production#which-redis)
//! lists the supported servers, Sentinel and Cluster. The service can start before Redis:
//! [`Limiter::ready`](crate::Limiter::ready) checks whether the limits can be enforced, and its error gives the reason,
//! such as a missing permission.
//!
//! ```
//! use std::{error::Error, time::Duration};
//!
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{QuotaPolicy, RateLimitLayer, RedisStore, key};
//!
//! fn app(limits: RateLimitLayer) -> Router {
//!     Router::new().route("/", get(|| async { "hello" })).layer(limits)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let redis = "redis://127.0.0.1/";
//! #   let redis = "redis://127.0.0.1:1/";
//!     let limits = RateLimitLayer::builder(RedisStore::new(redis)?)
//!         .scope("api")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("minute", 1_000))
//!         .build()?;
//!     let is_ready = match limits.limiter().ready(Duration::from_secs(1)).await {
//!         Ok(report) => {
//!             report.warnings().for_each(|warning| eprintln!("limits: {warning}"));
//!             true
//!         }
//!         Err(error) => {
//!             eprintln!("requests pass uncounted: {error}");
//!             false
//!         }
//!     };
//! #   assert!(!is_ready);
//!
//!     let request = Request::get("/").header("x-user-id", "alice").body(Body::empty())?;
//!     let response = app(limits).oneshot(request).await?;
//!     assert_eq!(response.status(), 200);
//!     // A request that passes uncounted has no fields in its response.
//!     assert_eq!(response.headers().contains_key("ratelimit"), is_ready);
//!     Ok(())
//! }
//! ```
//!
//! # When Redis is down
//!
//! By default, requests pass uncounted. If the server is silent, the first ones wait for up to the
//! [deadline](crate::LimiterBuilder::deadline) of 50 ms, until the circuit opens; if it refuses connections, none
//! waits. Limits apply again within 2 s of Redis' recovery. [When something
//! breaks](crate::docs::outages#when-something-breaks) lists each fault, and which counts survive it.
//!
//! [Failure modes](crate::docs::outages#failure-modes) lists the alternatives: to reject with 503, or to count per
//! process. Set a [`fallback`](crate::LimiterBuilder::fallback), like the deadline, on a [`Limiter`](crate::Limiter)
//! for [`RateLimitLayer::with_limiter`](crate::RateLimitLayer::with_limiter).
//!
//! Before limits go live, read [Settings of Redis](crate::docs::production#settings-of-redis). If the round trip takes
//! 30 ms or more, raise the deadline: see [Redis far away](crate::docs::tuning#redis-far-away). The example `redis` is
//! a service that listens on a port.

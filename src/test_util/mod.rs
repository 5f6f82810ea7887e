//! Utilities for testing your limits: a scripted store, a manual clock, and assertions.
//!
//! Requires the feature `test-util`, which belongs under `[dev-dependencies]`:
//!
//! ```toml
//! [dev-dependencies]
//! tower-quota = { version = "0.1", features = ["test-util"] }
//! ```
//!
//! The feature only adds this module. The module never sleeps or opens a connection, and only [`check_store`] spawns
//! tasks. Use it to test how *your service* behaves with its limits. To test with Redis, run a server, give each test
//! its own `RedisStoreBuilder::key_prefix`, and set a manual clock with `RedisStoreBuilder::clock`.
//!
//! # A guide
//!
//! Pass the store as an argument to the function that builds your service: a `RedisStore` in production, and a
//! [`ScriptedStore`] in tests. The examples below use this function:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_quota::{ConfigError, QuotaPolicy, RateLimitLayer, Store, key};
//!
//! pub fn app(store: impl Store) -> Result<Router, ConfigError> {
//!     let limits = RateLimitLayer::builder(store)
//!         .scope("items")
//!         .key(key::header("x-user-id"))
//!         .policy(QuotaPolicy::per_second("burst", 2))
//!         .policy(QuotaPolicy::per_day("daily", 5_000))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! }
//! # app(tower_quota::MemoryStore::new()).unwrap();
//! ```
//!
//! The tests send requests with `tower::ServiceExt::oneshot` (feature `util` of `tower`), without a socket. The
//! assertions read the [`Decision`](crate::Decision) from the extensions of the response, which are not transmitted
//! over connections. Behind a real server, parse the header fields with [`fields::Hints`](crate::fields::Hints).
//!
//! ## A limit is hit, and passes, without waiting
//!
//! ```
//! use axum::body::Body;
//! use http::Request;
//! use tower::ServiceExt;
//! use tower_quota::Outcome;
//! use tower_quota::test_util::{ScriptedStore, assert_outcome, assert_rejected_by, decision, remaining};
//!
//! # use axum::{Router, routing::get};
//! # use tower_quota::{ConfigError, QuotaPolicy, RateLimitLayer, Store, key};
//! # fn app(store: impl Store) -> Result<Router, ConfigError> {
//! #     let limits = RateLimitLayer::builder(store).scope("items").key(key::header("x-user-id"))
//! #         .policy(QuotaPolicy::per_second("burst", 2)).policy(QuotaPolicy::per_day("daily", 5_000)).build()?;
//! #     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! # }
//! # tokio_test::block_on(async {
//! let store = ScriptedStore::new();
//! let app = app(store.clone())?;
//! let send = async |user: &str| {
//!     let request = Request::get("/").header("x-user-id", user).body(Body::empty());
//!     app.clone().oneshot(request.unwrap()).await.unwrap()
//! };
//!
//! assert_outcome(&send("alice").await, Outcome::Allowed);
//! assert_eq!(remaining(&send("alice").await, "daily"), 4_998);
//!
//! let rejected = send("alice").await;
//! assert_rejected_by(&rejected, "burst");
//! assert_eq!(rejected.status(), 429);
//! assert_eq!(rejected.headers()["retry-after"], "1");
//! assert_outcome(&send("bob").await, Outcome::Allowed);
//!
//! // After this time, the same request passes.
//! store.clock().advance(decision(&rejected).retry_after().unwrap());
//! assert_outcome(&send("alice").await, Outcome::Allowed);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! ## A rejection, whatever the limits are
//!
//! A test with scripted rejections does not depend on the quota.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, body::Body, routing::get};
//! use tower_quota::{Outcome, test_util::{Answer, ScriptedStore, assert_outcome}};
//!
//! # fn app(store: impl Store) -> Result<Router, ConfigError> {
//! #     let limits = RateLimitLayer::builder(store).scope("items").key(key::header("x-user-id"))
//! #         .policy(QuotaPolicy::per_second("burst", 2)).policy(QuotaPolicy::per_day("daily", 5_000)).build()?;
//! #     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! # }
//! # run(async {
//! # let store = ScriptedStore::new();
//! # let app = app(store.clone())?;
//! # let send = async |user: &str| {
//! #     let request = Request::get("/").header("x-user-id", user).body(Body::empty());
//! #     app.clone().oneshot(request.unwrap()).await.unwrap()
//! # };
//! store.answer_next(1, Answer::Allowed);
//! store.answer_next(2, Answer::Rejected);
//!
//! assert_outcome(&send("alice").await, Outcome::Allowed);
//! assert_outcome(&send("alice").await, Outcome::Rejected);
//! let rejected = send("alice").await;
//! assert_eq!(rejected.headers()["content-type"], "application/problem+json");
//!
//! // All scripted answers have been returned. From now on, the store counts requests.
//! assert_outcome(&send("alice").await, Outcome::Allowed);
//! assert_eq!(store.calls(), 4);
//! # Ok(()) });
//! ```
//!
//! ## Redis is down: requests pass
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, body::Body, routing::get};
//! use tower_quota::{Outcome, StoreErrorKind};
//! use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome};
//!
//! # fn app(store: impl Store) -> Result<Router, ConfigError> {
//! #     let limits = RateLimitLayer::builder(store).scope("items").key(key::header("x-user-id"))
//! #         .policy(QuotaPolicy::per_second("burst", 2)).policy(QuotaPolicy::per_day("daily", 5_000)).build()?;
//! #     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! # }
//! # run(async {
//! # let store = ScriptedStore::new();
//! # let app = app(store.clone())?;
//! # let send = async |user: &str| {
//! #     let request = Request::get("/").header("x-user-id", user).body(Body::empty());
//! #     app.clone().oneshot(request.unwrap()).await.unwrap()
//! # };
//! store.answer(Answer::Failed(StoreErrorKind::Unreachable));
//!
//! for _ in 0..100 {
//!     let response = send("alice").await;
//!     assert_outcome(&response, Outcome::FailedOpen);
//!     assert_eq!(response.status(), 200);
//!     assert!(!response.headers().contains_key("ratelimit"), "nothing is known, so nothing is said");
//! }
//! assert!(store.calls() < 100, "the circuit breaker has left the store alone");
//! # Ok(()) });
//! ```
//!
//! ## Redis is back: limits hold again
//!
//! The circuit breaker waits before it probes the store. Use the store's clock as the
//! [`clock`](crate::LimiterBuilder::clock) of the limiter, and advance that clock.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, body::Body, routing::get};
//! use std::time::Duration;
//! use tower_quota::{Outcome, test_util::{Answer, ScriptedStore, assert_outcome}};
//!
//! # run(async {
//! let store = ScriptedStore::new();
//! let limits = RateLimitLayerBuilder::from(Limiter::builder(store.clone()).clock(store.clock().clone()))
//! #   .scope("items").key(key::header("x-user-id")).policy(QuotaPolicy::per_day("daily", 1))
//!     // … the rest as above, with one request per day
//!     .build()?;
//! # let app = Router::new().route("/", get(|| async { "some items" })).layer(limits);
//! # let send = async |user: &str| {
//! #     let request = Request::get("/").header("x-user-id", user).body(Body::empty());
//! #     app.clone().oneshot(request.unwrap()).await.unwrap()
//! # };
//! store.answer(Answer::Failed(StoreErrorKind::Unreachable));
//! for _ in 0..10 {
//!     assert_eq!(send("alice").await.status(), 200);
//! }
//!
//! store.answer(Answer::Counted);
//! store.clock().advance(Duration::from_secs(1));
//! assert_outcome(&send("alice").await, Outcome::Allowed);
//! assert_outcome(&send("alice").await, Outcome::Rejected);
//! # Ok(()) });
//! ```
//!
//! ## A route that fails closed answers 503
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, body::Body, routing::post};
//! use tower_quota::{FailureMode, Outcome, StoreErrorKind};
//! use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome};
//!
//! # run(async {
//! let store = ScriptedStore::new();
//! let logins = RateLimitLayer::builder(store.clone())
//!     .failure_mode(FailureMode::Closed)
//! #   .scope("login").key(key::header("x-user-id")).policy(QuotaPolicy::per_minute("minute", 5))
//!     // … scope, key and policies
//!     .build()?;
//! let app = Router::new().route("/login", post(|| async { "welcome" })).layer(logins);
//!
//! store.answer(Answer::Failed(StoreErrorKind::Unavailable));
//! let request = Request::post("/login").header("x-user-id", "alice").body(Body::empty())?;
//! let response = app.oneshot(request).await?;
//! assert_outcome(&response, Outcome::FailedClosed);
//! assert_eq!(response.status(), 503);
//! # Ok(()) });
//! ```
//!
//! ## Redis hangs: no request waits past the deadline
//!
//! Deadlines use Tokio's timer. A paused runtime (feature `test-util` of `tokio`) advances directly to the next timer,
//! in whole milliseconds, so the test itself takes no time.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, body::Body, routing::get};
//! use std::time::Duration;
//! use tower_quota::Outcome;
//! use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome};
//!
//! # fn app(store: impl Store) -> Result<Router, ConfigError> {
//! #     let limits = RateLimitLayer::builder(store).scope("items").key(key::header("x-user-id"))
//! #         .policy(QuotaPolicy::per_second("burst", 2)).policy(QuotaPolicy::per_day("daily", 5_000)).build()?;
//! #     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! # }
//! // #[tokio::test(start_paused = true)]
//! async fn a_store_that_hangs_costs_each_request_50_ms_until_the_circuit_opens() {
//!     let store = ScriptedStore::new();
//!     let app = app(store.clone()).unwrap();
//!     store.answer(Answer::Hanging);
//!
//!     let start = tokio::time::Instant::now();
//!     for _ in 0..100 {
//!         let request = Request::get("/").header("x-user-id", "alice").body(Body::empty()).unwrap();
//!         assert_outcome(&app.clone().oneshot(request).await.unwrap(), Outcome::FailedOpen);
//!     }
//!     let asked = store.calls() as u32;
//!     assert!(start.elapsed() >= Duration::from_millis(50) * asked);
//!     assert!(start.elapsed() <= Duration::from_millis(51) * asked);
//!     assert!(asked < 100);
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
//! #     .block_on(a_store_that_hangs_costs_each_request_50_ms_until_the_circuit_opens());
//! ```
//!
//! ## Slots
//!
//! A request holds its slot of a [concurrency limit](crate::QuotaPolicy::concurrent) until its response body has been
//! read or dropped. Keep the response to keep the slot, and drop it to release the slot.

mod assertions;
mod conformance;
mod scripted_store;

pub use self::{
    assertions::{assert_outcome, assert_rejected_by, decision, remaining},
    conformance::check_store,
    scripted_store::{Answer, ScriptedStore},
};
pub use crate::clock::{Clock, Timestamp};

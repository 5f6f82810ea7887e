//! Test your limits.
//!
//! Pass the store to the function that builds your service: a `RedisStore` in production, and a
//! [`ScriptedStore`](crate::test_util::ScriptedStore) in tests. `oneshot` sends requests without a socket, and the
//! clock is advanced by hand. Enable the feature `test-util` under `[dev-dependencies]`, and put the statements into a
//! `#[tokio::test]` that returns `Result<(), Box<dyn std::error::Error>>`.
//!
//! ```
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{ConfigError, Outcome, QuotaPolicy, RateLimitLayer, Store, StoreErrorKind, key};
//! use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome, assert_rejected_by, decision, remaining};
//!
//! fn app(store: impl Store) -> Result<Router, ConfigError> {
//!     let limits = RateLimitLayer::builder(store)
//!         .scope("items")
//!         .key(key::header("x-user-id"))
//!         .policy(QuotaPolicy::per_second("burst", 2))
//!         .policy(QuotaPolicy::per_day("daily", 5_000))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "items" })).layer(limits))
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let store = ScriptedStore::new();
//! let app = app(store.clone())?;
//! let send = async |user: &str| {
//!     let request = Request::get("/").header("x-user-id", user).body(Body::empty())?;
//!     Ok::<_, Box<dyn std::error::Error>>(app.clone().oneshot(request).await?)
//! };
//!
//! // A limit is hit.
//! assert_outcome(&send("alice").await?, Outcome::Allowed);
//! assert_eq!(remaining(&send("alice").await?, "daily"), 4_998);
//! let rejected = send("alice").await?;
//! assert_rejected_by(&rejected, "burst");
//! assert_eq!(rejected.status(), 429);
//! assert_eq!(rejected.headers()["retry-after"], "1");
//!
//! // Other callers pass, and after the wait, the same request passes.
//! assert_outcome(&send("bob").await?, Outcome::Allowed);
//! store.clock().advance(decision(&rejected).retry_after().ok_or("no wait")?);
//! assert_outcome(&send("alice").await?, Outcome::Allowed);
//!
//! // A rejection, whatever the limits are.
//! store.answer_next(1, Answer::Rejected);
//! assert_eq!(send("carol").await?.status(), 429);
//!
//! // An outage. Limits by address also need a `PeerAddress` in the extensions of each request.
//! store.answer_next(1, Answer::Failed(StoreErrorKind::Unreachable));
//! assert_outcome(&send("dave").await?, Outcome::FailedOpen);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! - The assertions read the [`Decision`](crate::Decision) from the extensions of the response. Behind a real server,
//!   parse the header fields with [`fields::Hints`](crate::fields::Hints) instead.
//! - [`test_util`](mod@crate::test_util) shows outages, timeouts, deadlines and custom stores.
//! - With real Redis, give each test its own [`key_prefix`](crate::RedisStoreBuilder::key_prefix), advance a manual
//!   [`clock`](crate::RedisStoreBuilder::clock), and do not pause Tokio's time (`tokio::time::pause`, `start_paused`):
//!   while all tasks wait for the connection, paused time jumps to the next timer, so most calls miss their deadline,
//!   and requests pass uncounted. Pause time only with `ScriptedStore`, or with `MemoryStore` and
//!   [`Clock::tokio`](crate::clock::Clock::tokio).
//! - To try limits on real traffic, use a [`shadow`](crate::QuotaPolicy::shadow) policy; [New
//!   limits](crate::docs::production#new-limits) describes the rollout.

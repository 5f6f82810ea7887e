//! Utilities for testing your limits: a scripted store, a manual clock, and assertions.
//!
//! Requires the feature `test-util`, which belongs under `[dev-dependencies]`:
//!
//! ```toml
//! [dev-dependencies]
//! tower-quota = { version = "0.1", features = ["test-util"] }
//! ```
//!
//! Pass the store as an argument to the function that builds your service: a `RedisStore` in production, and a
//! [`ScriptedStore`] in tests. The tests send requests with `oneshot` (feature `util` of `tower`), without a socket,
//! and read the [`Decision`](crate::Decision) from the extensions of the response. A test module, for axum:
//!
//! ```
//! use axum::{Router, body::Body, routing::get};
//! use http::Request;
//! use tower::ServiceExt;
//! use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome, assert_rejected_by, decision, remaining};
//! use tower_quota::{ConfigError, Outcome, QuotaPolicy, RateLimitLayer, Store, StoreErrorKind, key};
//!
//! /// The function that is tested.
//! fn app(store: impl Store) -> Result<Router, ConfigError> {
//!     let limits = RateLimitLayer::builder(store)
//!         .scope("items")
//!         .key(key::header("x-user-id"))
//!         .policy(QuotaPolicy::per_second("burst", 2))
//!         .policy(QuotaPolicy::per_day("daily", 5_000))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "some items" })).layer(limits))
//! }
//!
//! # /*
//! #[tokio::test]
//! # */
//! async fn the_third_request_of_a_second_is_rejected() -> Result<(), Box<dyn std::error::Error>> {
//!     let store = ScriptedStore::new();
//!     let app = app(store.clone())?;
//!     let send = async |user: &str| {
//!         let request = Request::get("/").header("x-user-id", user).body(Body::empty()).unwrap();
//!         app.clone().oneshot(request).await.unwrap()
//!     };
//!
//!     assert_outcome(&send("alice").await, Outcome::Allowed);
//!     assert_eq!(remaining(&send("alice").await, "daily"), 4_998);
//!
//!     let rejected = send("alice").await;
//!     assert_rejected_by(&rejected, "burst");
//!     assert_eq!(rejected.status(), 429);
//!     assert_eq!(rejected.headers()["retry-after"], "1");
//!     assert_outcome(&send("bob").await, Outcome::Allowed);
//!
//!     // The clock is manual, so the test does not wait.
//!     store.clock().advance(decision(&rejected).retry_after().unwrap());
//!     assert_outcome(&send("alice").await, Outcome::Allowed);
//!
//!     // While the store is unavailable, requests pass uncounted.
//!     store.answer(Answer::Failed(StoreErrorKind::Unreachable));
//!     assert_outcome(&send("alice").await, Outcome::FailedOpen);
//! #   for _ in 0..100 {
//! #       let response = send("alice").await;
//! #       assert_eq!(response.status(), 200);
//! #       assert!(!response.headers().contains_key("ratelimit"));
//! #   }
//! #   assert!(store.calls() < 100, "the circuit is open");
//!     Ok(())
//! }
//! # tokio::runtime::Runtime::new().unwrap().block_on(the_third_request_of_a_second_is_rejected()).unwrap();
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
//! # runtime.block_on(async {
//! #     let store = ScriptedStore::new();
//! #     let app = app(store.clone()).unwrap();
//! #     store.answer(Answer::Hanging);
//! #     let start = tokio::time::Instant::now();
//! #     for _ in 0..100 {
//! #         let request = Request::get("/").header("x-user-id", "alice").body(Body::empty()).unwrap();
//! #         assert_outcome(&app.clone().oneshot(request).await.unwrap(), Outcome::FailedOpen);
//! #     }
//! #     let asked = store.calls() as u32;
//! #     assert!(start.elapsed() >= std::time::Duration::from_millis(50) * asked);
//! #     assert!(start.elapsed() <= std::time::Duration::from_millis(51) * asked);
//! #     assert!(asked < 100);
//! # });
//! ```
//!
//! # Other tests
//!
//! | to test | do this |
//! |---|---|
//! | a rejection, whatever the quota is | `store.answer_next(1, Answer::Rejected)` |
//! | a route that fails closed | set [`FailureMode::Closed`](crate::FailureMode::Closed) and [`Answer::Failed`]: the response has the status 503 and [`Outcome::FailedClosed`](crate::Outcome::FailedClosed) |
//! | recovery | set the [`clock`](crate::LimiterBuilder::clock) of the limiter to `store.clock().clone()`. After an outage, set [`Answer::Counted`] and advance the clock by a second: the circuit breaker probes the store again |
//! | a store that hangs | set [`Answer::Hanging`] in a `#[tokio::test(start_paused = true)]` (feature `test-util` of `tokio`): each request waits for the deadline, 50 ms of Tokio's timer, until the circuit opens |
//! | a concurrency limit | keep a response to keep its slot; read or drop its body to release the slot |
//! | responses from a connection | parse the header fields with [`fields::Hints`](crate::fields::Hints), because extensions are not transmitted |
//! | a Redis server | give each test its own `RedisStoreBuilder::key_prefix`, and set a manual clock with `RedisStoreBuilder::clock` |
//! | a custom store | call [`check_store`] |

mod assertions;
mod conformance;
mod scripted_store;

pub use self::{
    assertions::{assert_outcome, assert_rejected_by, decision, remaining},
    conformance::check_store,
    scripted_store::{Answer, ScriptedStore},
};
pub use crate::clock::{Clock, Timestamp};

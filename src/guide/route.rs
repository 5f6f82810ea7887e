//! Limit a route, or a method of a route.
//!
//! A layer around a route limits that route. Routes with the same layer, or with the same scope and store, share their
//! quotas.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{Router, body::Body, http::Request, routing::{get, post}};
//! use tower::ServiceExt;
//! use tower_quota::{ConfigError, MemoryStore, QuotaPolicy, RateLimitLayer, key::{self, PeerAddress}};
//!
//! fn per_minute(store: &MemoryStore, scope: &str, quota: u64) -> Result<RateLimitLayer, ConfigError> {
//!     RateLimitLayer::builder(store.clone())
//!         .scope(scope)
//!         .key(key::client_ip())
//!         .policy(QuotaPolicy::per_minute("minute", quota))
//!         .build()
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let store = MemoryStore::new();
//!     let app: Router = Router::new()
//!         .route("/search", get(|| async { "found" }).layer(per_minute(&store, "search", 10)?))
//!         // Separate quotas for reading and for writing.
//!         .route(
//!             "/items",
//!             get(|| async { "items" })
//!                 .layer(per_minute(&store, "read items", 100)?)
//!                 .merge(post(|| async { "created" }).layer(per_minute(&store, "write items", 1)?)),
//!         );
//!
//!     let peer = PeerAddress(([203, 0, 113, 9], 50_000).into()); // in a service, from the connect info
//!     for (method, path, status) in [
//!         ("POST", "/items", 200),
//!         ("POST", "/items", 429),
//!         ("GET", "/items", 200),
//!         ("GET", "/search", 200),
//!     ] {
//!         let request = Request::builder().method(method).uri(path).extension(peer).body(Body::empty())?;
//!         assert_eq!(app.clone().oneshot(request).await?.status(), status);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - **One layer for all routes**: [`Tiers::from_fn`](crate::Tiers::from_fn) maps a request to a tier with its own
//!   policies, which count separately if their names differ. Exemptions and the failure mode are then configured once.
//! - **The same quota for each route**: count by caller and route, with `key::client_ip().and(key::MatchedPath)`
//!   (import [`KeyExtractor`](crate::key::KeyExtractor)), in a layer that [knows the
//!   route](crate::key::MatchedPath).
//! - **Unknown paths**: `Router::route_layer` does not count requests that match no route.

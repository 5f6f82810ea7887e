//! Apply several limits in one decision, and choose what must not be a key.
//!
//! Named keys count one request by user, by address and in total. All policies are checked in one decision, and a
//! rejected request is charged to none of them. Put the layer inside authentication if one of the keys is the user.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{Router, body::Body, extract::Request, middleware, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, key::{self, PeerAddress}};
//!
//! /// Replaces your authentication, which inserts the user.
//! async fn authenticate(mut request: Request) -> Request {
//!     if let Some(user) = request.headers().get("x-user").and_then(|user| user.to_str().ok()) {
//!         let user = user.to_owned();
//!         request.extensions_mut().insert(user);
//!     }
//!     request
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("api")
//!         .key(key::extension::<String>())
//!         .named_key("address", key::client_ip())
//!         .named_key("total", key::from_fn(|_| Some(PartitionKey::new("all", ""))))
//!         .on_missing_key(MissingKey::Reject)
//!         .policy(QuotaPolicy::per_hour("user", 2))
//!         .policy(QuotaPolicy::per_hour("address", 10).keyed_by("address"))
//!         .policy(QuotaPolicy::per_hour("total", 1_000).keyed_by("total"))
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(limits)
//!         .layer(middleware::map_request(authenticate)); // outermost
//!
//!     let send = async |user: &str| {
//!         let peer = PeerAddress(([192, 0, 2, 1], 50_000).into());
//!         let request = Request::get("/").header("x-user", user).extension(peer).body(Body::empty())?;
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request).await?)
//!     };
//!     for status in [200, 200, 429, 429, 429] {
//!         assert_eq!(send("bob").await?.status(), status);
//!     }
//!     // Bob's rejected requests were not charged to the address that alice shares.
//!     let response = send("alice").await?;
//!     assert!(response.headers()["ratelimit"].to_str()?.contains(r#""address";r=7;"#));
//!     Ok(())
//! }
//! ```
//!
//! # What must not be a key
//!
//! The caller that is charged must be the sender of the request:
//!
//! - A field that clients can set must not be a key: no unverified user ID or token, and no `X-Forwarded-For` except
//!   from a [trusted proxy](super::proxy). A client that invents values would get a new quota for each, and one that
//!   sends another user's name would exhaust that user's quota.
//! - The layer does not read `RateLimit` fields or partition keys (`pk`) of requests. A `pk` that responses
//!   [show](crate::QuotaPolicy::show_partition_key) can reveal the user.

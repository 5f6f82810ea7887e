//! Limit by address before authentication, and by user after it.
//!
//! A layer *outside* authentication protects authentication itself. It charges every request to its source address,
//! even if the client claims to be a user. Most services need both: a generous limit by address outside authentication,
//! and limits by user inside. Give the layers different scopes, and their policies different names, because the
//! response contains both.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{Router, body::Body, extract::Request, http::StatusCode, middleware, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, key::{self, PeerAddress}};
//!
//! /// Inserts the user, a `String`. In production, this is slow.
//! async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
//!     let user = match request.headers().get("authorization").map(|token| token.as_bytes()) {
//!         Some(b"Bearer alice") => "alice",
//!         Some(b"Bearer bob") => "bob",
//!         _ => return Err(StatusCode::UNAUTHORIZED),
//!     };
//!     request.extensions_mut().insert(user.to_owned());
//!     Ok(request)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let store = MemoryStore::new();
//!     let by_address = RateLimitLayer::builder(store.clone())
//!         .scope("addresses")
//!         .key(key::client_ip())
//!         .policy(QuotaPolicy::per_minute("address", 4)) // in production, more
//!         .build()?;
//!     let by_user = RateLimitLayer::builder(store)
//!         .scope("users")
//!         .key(key::extension::<String>())
//!         .on_missing_key(MissingKey::Reject)
//!         .policy(QuotaPolicy::per_minute("user", 2))
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(by_user) // innermost
//!         .layer(middleware::map_request(authenticate))
//!         .layer(by_address); // outermost
//!
//!     let mut policies = Vec::new();
//!     for (address, token, status) in [
//!         ([203, 0, 113, 9], "Bearer alice", 200),
//!         ([203, 0, 113, 9], "Bearer alice", 200),
//!         ([203, 0, 113, 9], "Bearer alice", 429), // by user, and still charged to the address
//!         ([203, 0, 113, 9], "Bearer guess", 401),
//!         ([203, 0, 113, 9], "Bearer guess", 429), // by address, before authentication
//!         ([192, 0, 2, 1], "Bearer bob", 200),     // other clients are not affected
//!     ] {
//!         let peer = PeerAddress((address, 50_000).into());
//!         let request = Request::get("/").header("authorization", token).extension(peer);
//!         let response = app.clone().oneshot(request.body(Body::empty())?).await?;
//!         assert_eq!(response.status(), status);
//!         policies = response.headers()["ratelimit-policy"].as_bytes().to_vec();
//!     }
//!     assert_eq!(policies, br#""user";q=2;w=60, "address";q=4;w=60"#);
//!     Ok(())
//! }
//! ```
//!
//! **Inner rejections stay charged** in the outer layer: otherwise, a user beyond the inner limit would never exhaust
//! it, and authentication would run for each of their requests. Only estimates of custom units for which nothing was
//! reported are [refunded](crate::WeakPermit#when-usage-is-charged). Therefore:
//!
//! - **Size the address limit for shared addresses**: a single user who ignores 429 can exhaust it. [Both keys in one
//!   layer](super::keys) inside authentication avoid this, but leave authentication itself unlimited.
//! - **Trust your [proxy](super::proxy)**, and do not let it retry 429: each retry charges the outer limit.
//! - **Keep CORS and health checks outside** both layers, or [exempt](super::rejection) them.

//! Limit by authenticated user.
//!
//! Put the layer *inside* authentication, which inserts the verified user as a value of your type into the request
//! extensions. [`key::extension`](crate::key::extension) reads it from there.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{Router, body::Body, extract::Request, http::StatusCode, middleware, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key};
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! impl ToPartitionKey for User {
//!     fn to_partition_key(&self) -> PartitionKey {
//!         PartitionKey::new("user", &self.0)
//!     }
//! }
//!
//! /// Returns the user if the password is correct.
//! fn verified(request: &Request) -> Option<User> {
//!     let field = |name| request.headers().get(name)?.to_str().ok();
//!     (field("x-password")? == "secret").then_some(User(field("x-user")?.to_owned()))
//! }
//!
//! async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
//!     let user = verified(&request).ok_or(StatusCode::UNAUTHORIZED)?;
//!     request.extensions_mut().insert(user);
//!     Ok(request)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let by_user = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("users")
//!         .key(key::extension::<User>())
//!         .on_missing_key(MissingKey::Reject) // 403 if a route lacks authentication
//!         .policy(QuotaPolicy::per_day("day", 100))
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(by_user)
//!         .layer(middleware::map_request(authenticate)); // outermost
//!
//!     let send = async |password: &str| {
//!         let request = Request::get("/").header("x-user", "bob").header("x-password", password);
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request.body(Body::empty())?).await?)
//!     };
//!     let first = send("secret").await?;
//!     assert!(first.headers()["ratelimit"].to_str()?.starts_with(r#""day";r=99"#));
//!
//!     // An attacker claims to be bob. Bob's quota does not change.
//!     let guess = send("wrong").await?;
//!     assert_eq!(guess.status(), 401);
//!     assert!(!guess.headers().contains_key("ratelimit"));
//!     let second = send("secret").await?;
//!     assert!(second.headers()["ratelimit"].to_str()?.starts_with(r#""day";r=98"#));
//!     Ok(())
//! }
//! ```
//!
//! - A request that fails authentication never reaches the layer, so it is not charged to the claimed user. To protect
//!   authentication itself, add [a limit by address](super::address).
//! - The inserted value must have the type of the key, and the layer that is added last is the outermost. If the layer
//!   never finds a user, an [event](crate::docs::mistakes#key-never-there) reports this.
//! - With a JWT, verify signature, expiry, issuer and audience, and insert the subject. A token that is only decoded is
//!   not a key: clients can invent one per request.
//! - For anonymous visitors, count by address: `key::extension::<User>().or_else(key::client_ip())` (import
//!   [`KeyExtractor`](crate::key::KeyExtractor)), with authentication that lets requests without credentials pass.
//! - If a gateway authenticates users, see [`key::header`](crate::key::header).

//! Block a caller at run time.
//!
//! An [`AccessList`](crate::AccessList) allows or blocks networks and keys, and can be changed while the service runs,
//! for example by a handler with a clone.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{
//!     Router,
//!     body::Body,
//!     extract::{FromRef, Path, State},
//!     http::{Request, StatusCode},
//!     routing::{get, post},
//! };
//! use tower::ServiceExt;
//! use tower_quota::{Access, AccessList, ConfigError, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! #[derive(Clone)]
//! struct App {
//!     access: AccessList,
//!     searches: RateLimitLayer,
//! }
//!
//! impl FromRef<App> for AccessList {
//!     fn from_ref(app: &App) -> Self {
//!         app.access.clone()
//!     }
//! }
//!
//! /// Only for administrators.
//! async fn block(State(access): State<AccessList>, Path(user): Path<String>) -> StatusCode {
//!     let user = key::header("x-user-id").key_of(user); // the key of the layer below
//!     match access.update(|rules| rules.set_key(user, Access::Block)) {
//!         Ok(()) => StatusCode::NO_CONTENT,
//!         Err(_) => StatusCode::INSUFFICIENT_STORAGE, // too many rules
//!     }
//! }
//!
//! fn state() -> Result<App, ConfigError> {
//!     let access = AccessList::new(key::client_ip());
//!     let searches = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("searches")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("minute", 10))
//!         .access_list(access.clone())
//!         .build()?;
//!     Ok(App { access, searches })
//! }
//!
//! fn router(app: App) -> Router {
//!     Router::new()
//!         .route("/search", get(|| async { "found" }))
//!         .route_layer(app.searches.clone())
//!         .route("/admin/block/{user}", post(block))
//!         .with_state(app)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let app = router(state()?);
//!     for (method, path, status) in [
//!         ("GET", "/search", 200),
//!         ("POST", "/admin/block/mallory", 204),
//!         ("GET", "/search", 403),
//!     ] {
//!         let request = Request::builder().method(method).uri(path).header("x-user-id", "mallory");
//!         assert_eq!(app.clone().oneshot(request.body(Body::empty())?).await?.status(), status);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - **A rule is only as trustworthy as its key.** An allowed network or key bypasses the limits, so it must not depend
//!   on a value that [clients can set](super::keys#what-must-not-be-a-key).
//! - **Behind a proxy**, give the list the same [`ClientIp`](crate::key::ClientIp) as the key.
//!   [`block_unknown_addresses`](crate::AccessRules::block_unknown_addresses) also blocks unknown addresses.
//! - **The list affects one process.** For all instances, use the access list of `tower-quota-fleet`, or an
//!   [overlay](crate::AccessList::overlay) from your own source.
//! - **Block by content** with [`abnormal_usage`](crate::RateLimitLayerBuilder::abnormal_usage); disable all limits
//!   with [`RulesHandle::disable`](crate::RulesHandle::disable).

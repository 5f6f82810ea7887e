//! Customize rejections, and exempt requests.
//!
//! By default, a rejected request gets 429, `Retry-After` and a problem document (`application/problem+json`), or a
//! gRPC status. With [`respond_with_axum`](crate::RateLimitLayerBuilder::respond_with_axum), a rejection is any
//! response of axum, to which the layer adds the rate limit fields.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{
//!     Router,
//!     body::Body,
//!     http::{Request, header::ACCEPT},
//!     response::{Html, IntoResponse, Response},
//!     routing::get,
//! };
//! use tower::ServiceExt;
//! use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer, Rejection, key};
//!
//! /// A page for browsers, and the problem document for programs.
//! fn slow_down(rejection: &Rejection<'_>) -> Response {
//!     let accept = rejection.request().headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
//!     if accept.is_some_and(|accept| accept.contains("text/html")) {
//!         (rejection.status(), Html("<h1>Please try again later</h1>")).into_response()
//!     } else {
//!         rejection.to_response().map(Body::from)
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("api")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("minute", 1))
//!         .exempt(Exemption::path("/health"))
//!         .skip_cors_preflight()
//!         .respond_with_axum(slow_down)
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .route("/health", get(|| async { "ok" }))
//!         .layer(limits);
//!
//!     let send = async |path: &str, accept: &str| {
//!         let request = Request::get(path).header("x-user-id", "alice").header(ACCEPT, accept).body(Body::empty())?;
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request).await?)
//!     };
//!     assert_eq!(send("/", "*/*").await?.status(), 200);
//!
//!     let program = send("/", "application/json").await?;
//!     assert_eq!(program.status(), 429);
//!     assert_eq!(program.headers()["content-type"], "application/problem+json");
//!     let browser = send("/", "text/html,*/*").await?;
//!     assert_eq!(browser.status(), 429);
//!     assert_eq!(browser.headers()["content-type"], "text/html; charset=utf-8");
//!     assert_eq!(browser.headers()["retry-after"], "60");
//!
//!     let health = send("/health", "*/*").await?;
//!     assert_eq!(health.status(), 200);
//!     assert!(!health.headers().contains_key("ratelimit"));
//!     Ok(())
//! }
//! ```
//!
//! - **Keep CORS and health checks outside** the limits if you can: scripts cannot read a rejection without CORS
//!   headers, and an orchestrator restarts an instance whose health checks are rejected. Otherwise, exempt them, as
//!   above.
//! - **An exemption is only as trustworthy as its condition.** Do not exempt by a header that your gateway does not
//!   remove from client requests.
//! - **gRPC clients require a gRPC status.** Return [`to_response`](crate::Rejection#grpc) for [gRPC
//!   requests](crate::Rejection::is_grpc).
//! - **Without axum**, use [`respond_with`](crate::RateLimitLayerBuilder::respond_with).

//! Limit bytes and concurrent uploads.
//!
//! One decision checks three limits: requests, bytes of content, and concurrent uploads. The bytes of `Content-Length`
//! are charged first. A [`RequestContentLayer`](crate::content::RequestContentLayer) outside the limits corrects the
//! charge to the bytes that were read.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{
//!     Router,
//!     body::{Body, Bytes},
//!     extract::DefaultBodyLimit,
//!     http::Request,
//!     routing::put,
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_quota::{Direction, MemoryStore, QuotaPolicy, RateLimitLayer, content::RequestContentLayer, key};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("uploads")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("requests", 30))
//!         .policy(QuotaPolicy::per_day("bytes", 1_000_000).with_content_bytes(Direction::Request))
//!         .policy(QuotaPolicy::concurrent("at once", 2))
//!         .build()?;
//!     let layers = ServiceBuilder::new()
//!         .layer(RequestContentLayer::new())
//!         .layer(limits)
//!         .layer(DefaultBodyLimit::max(500_000));
//!     let store_file = async |file: Bytes| file.len().to_string();
//!     let app: Router = Router::new().route("/files", put(store_file).layer(layers));
//!
//!     let upload = async |size: usize| {
//!         let request = Request::put("/files").header("x-user-id", "alice").header("content-length", size);
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request.body(Body::from("x".repeat(size)))?).await?)
//!     };
//!     assert_eq!(upload(400_000).await?.status(), 200);
//!     assert_eq!(upload(550_000).await?.status(), 413); // too large for one file; the bytes read are charged
//!     assert_eq!(upload(700_000).await?.status(), 429); // exceeds the remaining bytes of the day; nothing was read
//!     Ok(())
//! }
//! ```
//!
//! - **Without a `RequestContentLayer`**, content of unknown length counts as one byte, and an
//!   [event](crate::docs::mistakes#content-not-counted) reports this.
//! - **A byte quota does not bound a single file.** For this, use the limit of the server (413), such as axum's
//!   `DefaultBodyLimit`.
//! - **Downloads** are counted by [`Direction::Response`](crate::Direction).

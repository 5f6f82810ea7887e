//! Start, monitor and stop a service with limits.
//!
//! [`Limiter::ready`](crate::Limiter::ready) checks at [startup](super::redis) that limits can be enforced. See
//! [`docs::production`](crate::docs::production) for the settings of Redis and for monitoring.
//!
//! # Start
//!
//! Install the subscriber for events before the layers are built, and the recorder for metrics before the first
//! request: a layer creates its metrics with its first request, and a recorder installed later receives none of its
//! decisions. If the recorder comes late, from a plugin or a runtime agent, build the limiter and its layers after it:
//! new layers with the same store and scope continue all counts.
//!
//! # Shutdown
//!
//! A response is sent before its refund or the release of its slot has reached Redis. If the process exits before that,
//! callers stay overcharged, and slots stay occupied until their leases expire.
//!
//! ```
//! use std::{future::Future, io, time::Duration};
//!
//! use axum::{Router, extract::State, http::StatusCode, routing::get};
//! use tokio::{net::TcpListener, sync::watch, time::{Instant, sleep, timeout}};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! async fn ready(State(is_ready): State<watch::Receiver<bool>>) -> StatusCode {
//!     if *is_ready.borrow() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
//! }
//!
//! async fn serve(
//!     listener: TcpListener,
//!     limits: RateLimitLayer,
//!     terminated: impl Future<Output = ()>,
//! ) -> io::Result<()> {
//!     let (readiness, is_ready) = watch::channel(true);
//!     let (stop, mut stopped) = watch::channel(());
//!     let app = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .route_layer(limits.clone())
//!         .route("/ready", get(ready).with_state(is_ready));
//!     let server = axum::serve(listener, app).with_graceful_shutdown(async move {
//!         let _ = stopped.changed().await;
//!     });
//!     let server = tokio::spawn(server.into_future());
//!
//!     terminated.await;
//!     readiness.send_replace(false);
//!     sleep(Duration::from_secs(5)).await;
//!     stop.send_replace(());
//!     if timeout(Duration::from_secs(15), server).await.is_err() {
//!         eprintln!("some requests have not ended");
//!     }
//!     if let Err(error) = limits.limiter().flush(Duration::from_secs(5)).await {
//!         eprintln!("{error}");
//!     }
//!     Ok(())
//! }
//!
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
//! # set_up::run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new()) // in production, a `RedisStore`
//!     .scope("api")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_minute("minute", 60).with_prefetch(10))
//!     .build()?;
//! let listener = TcpListener::bind("127.0.0.1:3000").await?;
//! # drop(listener); let listener = TcpListener::bind("127.0.0.1:0").await?;
//! // In a pod: `tokio::signal::unix::signal(SignalKind::terminate())?.recv()`.
//! let terminated = async {};
//! let start = Instant::now();
//! serve(listener, limits, terminated).await?;
//! // No request was in flight, so only load balancers had to be waited for.
//! assert_eq!(start.elapsed().as_secs(), 5);
//! # Ok(()) });
//! ```
//!
//! | step | at most | why |
//! |---|---|---|
//! | readiness off, but continue to serve | 5 s | load balancers keep sending requests until they notice |
//! | graceful shutdown | 15 s | requests end, and their costs are settled |
//! | [flush](crate::Limiter::flush) | 5 s | settlements reach Redis, and prefetched units are refunded |
//!
//! Together, the steps must fit into the 30 seconds that Kubernetes allows by default. Flush several layers
//! concurrently. Requests that still run when the process exits, such as WebSockets, stay charged.

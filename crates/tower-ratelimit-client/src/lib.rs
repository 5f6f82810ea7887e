//! A Tower layer for HTTP clients that obeys the rate limits of servers.
//!
//! [`ClientLayer`] wraps the service that sends requests. It parses the `RateLimit`, `RateLimit-Policy` and
//! `Retry-After` fields of each response, in any [dialect](ratelimit_fields::Dialect), and delays requests while their
//! server's quota is exhausted.
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_ratelimit_client::{ClientError, ClientLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server whose quota is exhausted for 30 seconds after the first request.
//! let server = service_fn(async |_: Request<()>| {
//!     Response::builder().header("ratelimit", r#""minute";r=0;t=30"#).body(())
//! });
//! let client = ClientLayer::builder().queue_timeout(Duration::ZERO).build()?;
//! let service = ServiceBuilder::new().layer(client).service(server);
//! let get = || service.clone().oneshot(Request::get("http://api.example/").body(()).unwrap());
//!
//! assert_eq!(get().await?.status(), 200);
//!
//! // The server would reject the second request. With the default timeout, it would wait.
//! let ClientError::Throttled(error) = get().await.unwrap_err() else { panic!() };
//! assert!(error.retry_after() > Some(Duration::from_secs(29)));
//! # Ok(())
//! # }
//! ```
//!
//! # Where it fits
//!
//! The layer wraps any `Service<Request<B>, Response = Response<R>>` that implements `Clone`, and requires a Tokio
//! runtime with time enabled. The README has programs for hyper-util and reqwest. All requests of a tonic channel have
//! the same origin.
//!
//! Place the layer *inside* retry layers and caches, so that retries wait and cache hits do not count, and *outside*
//! connection pools and concurrency limits, so that waiting requests hold neither connections nor permits.
//!
//! # What it obeys
//!
//! | a server sends | the client |
//! |---|---|
//! | `r=5;t=10` | sends at most five requests in ten seconds, those in flight included, until the response to a later request reports more |
//! | `r=0;t=10` | waits ten seconds, then sends one request at a time until a response reports remaining units |
//! | `r=5` of `concurrent-requests` | has at most five requests in flight |
//! | several limits | obeys all of them |
//! | `Retry-After` | sends nothing until then, ignoring `t`, then one request at a time |
//! | 429 or gRPC status 8, without a wait or with `Retry-After: 0` | waits a second, then twice as long after each further rejection |
//! | 503 without a wait | does not delay other requests |
//! | `grpc-retry-pushback-ms` in a rejection | treats it as `Retry-After`; does not retry if it is negative |
//! | `t=1000000` | waits at most ten minutes: see [`Caps`] |
//! | `X-RateLimit-*`, `anthropic-ratelimit-*` | ignores them, unless the origin has a [`Profile`] |
//!
//! [`Strategy`] controls how the client spends the remaining units. [`Pacing`](Pacing#rules) has further rules.
//!
//! A request that is not sent fails with [`ClientError::Throttled`]. A rejection is an ordinary response, unless
//! [retries](ClientLayerBuilder::retries) are enabled.
//!
//! # With your own limit: a webhook sender
//!
//! A `Limiter` of [`tower-quota`](https://docs.rs/tower-quota) adds a limit per receiver across all instances.
//!
//! ```
//! use std::{convert::Infallible, error::Error, time::Duration};
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
//! use tower_ratelimit_client::ClientLayer;
//!
//! # use std::sync::atomic::{AtomicUsize, Ordering};
//! # use tower_quota::{MissingKey, RateLimitBody, RateLimitLayerBuilder, clock::Clock, key};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::time::pause();
//! # let clock = Clock::tokio();
//! // Replace this service with an HTTP client, for example of hyper-util.
//! let http_client = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
//! # let receiver_store = MemoryStore::builder().clock(clock.clone()).build()?;
//! # let receiver = RateLimitLayerBuilder::from(Limiter::builder(receiver_store).clock(clock.clone()))
//! #     .scope("receiver")
//! #     .key(key::header("x-sender"))
//! #     .on_missing_key(MissingKey::Share)
//! #     .policy(QuotaPolicy::per_second("second", 2))
//! #     .build()?;
//! # static REJECTED: AtomicUsize = AtomicUsize::new(0);
//! # let http_client = ServiceBuilder::new()
//! #     .map_response(|response: Response<RateLimitBody<String>>| {
//! #         REJECTED.fetch_add(usize::from(response.status() == 429), Ordering::Relaxed);
//! #         response
//! #     })
//! #     .layer(receiver)
//! #     .service(http_client);
//! let polite = ClientLayer::builder()
//!     .queue_timeout(Duration::from_secs(60)) // then the delivery fails with `ClientError::Throttled`
//!     .retries(3, |body: &String| Some(body.clone())) // after rejections
//!     .build()?;
//! let client = ServiceBuilder::new().layer(polite).service(http_client);
//!
//! // At most 10 per second to each receiver from all instances together, even if the receiver sends no limits.
//! let store = MemoryStore::new(); // in production, a `RedisStore`
//! # let store = MemoryStore::builder().clock(clock.clone()).build()?;
//! let receivers = Limiter::builder(store)
//!     .scope("webhooks")
//!     .policy(QuotaPolicy::per_second("second", 10))
//! #   .clock(clock)
//!     .build()?;
//! let deliver = async |url: &str, event: &str| {
//!     let request = Request::post(url).body(event.to_owned())?;
//!     let origin = request.uri().authority().ok_or("no origin")?.as_str().to_owned();
//!     // If the store is unavailable, the receiver's own limits are still obeyed.
//!     let permit = receivers.caller(&origin).wait(Duration::from_secs(60)).await;
//!     drop(permit.map_err(|_| "the receiver has too many deliveries")?);
//!     let response = client.clone().oneshot(request).await?;
//!     Ok::<_, Box<dyn Error>>(response.status())
//! };
//!
//! // Twenty simultaneous events for one receiver.
//! let events: Vec<_> = (0..20).map(|number| format!("event {number}")).collect();
//! let deliveries = events.iter().map(|event| deliver("http://shop.example/hooks", event));
//! for status in futures_util::future::join_all(deliveries).await {
//!     assert_eq!(status?, 200);
//! }
//! # // The receiver allows two per second.
//! # assert!(REJECTED.load(Ordering::Relaxed) <= 19, "{}", REJECTED.load(Ordering::Relaxed));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//!
//! The layer cannot prevent every rejection: other clients and processes may share the quota, and requests may cost
//! more than one unit. The timing of requests can identify a client, even if it hides its address.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod advice;
mod builder;
mod caps;
mod error;
mod future;
mod layer;
mod limit;
mod origin;
mod origins;
mod pacing;
mod problem;
mod profile;
mod reader;
mod ready;
mod retry;
mod service;
mod time;

pub use self::{
    advice::{Advice, Exchange},
    builder::ClientLayerBuilder,
    caps::Caps,
    error::{BuildError, ClientError, Throttled, ThrottledKind},
    future::ResponseFuture,
    layer::{ClientLayer, OriginStatus},
    limit::Limit,
    pacing::{Acquire, Pacing, SendPermit, Strategy, Wait},
    problem::{Problem, ProblemKind},
    profile::{LimitFields, Profile},
    retry::{NoRetries, Retries, Retry},
    service::Client,
};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

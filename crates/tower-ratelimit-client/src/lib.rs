//! A Tower layer for HTTP clients that obeys the rate limits of servers.
//!
//! [`ClientLayer`] wraps the service that sends requests. It reads `RateLimit`, `RateLimit-Policy` and `Retry-After` of
//! each response, in any [dialect](ratelimit_fields::Dialect), and holds requests back while their server has nothing left
//! for them, so that they are not rejected. You want it for jobs with many requests to a server that limits them, be it
//! one with `tower-quota` or another.
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
//! // The server would reject the second request, so the client does not send it. With the default timeout, it would wait.
//! let ClientError::Throttled(error) = get().await.unwrap_err() else { panic!() };
//! assert!(error.retry_after() > Some(Duration::from_secs(29)));
//! # Ok(())
//! # }
//! ```
//!
//! # Where it fits
//!
//! Around any `Service<Request<B>, Response = Response<R>>` that can be cloned, whatever `B`, `R` and its error are.
//!
//! - hyper-util: `ServiceBuilder::new().layer(ClientLayer::new()).service(client)`, with a
//!   `hyper_util::client::legacy::Client`.
//! - tonic: `HealthClient::new(ClientLayer::new().layer(channel))`, with a `tonic::transport::Channel`. All
//!   requests through one channel are to one origin.
//! - reqwest: its client has types of its own, so a `tower::service_fn` converts them:
//!   `client.execute(request.try_into()?).await.map(Response::from)`, where `request` is an
//!   `http::Request<reqwest::Body>`.
//!
//! Put it *inside* of layers that make requests again after a failure, so that those wait, too; *inside* of a cache, so
//! that only what goes to the server counts; and *outside* of connection pools and concurrency limits, which a request
//! that waits then does not hold.
//!
//! # What it obeys
//!
//! | a server says | the client |
//! |---|---|
//! | nothing | holds nothing back |
//! | `r=5;t=10` | sends at most five in ten seconds, those on their way counted, until a later answer says more |
//! | `r=0;t=10` | waits ten seconds, then lets one request at a time try, until an answer says what is left |
//! | `r=0;t=10` of `content-bytes` or `concurrent-requests` | the same |
//! | `r=5` of `concurrent-requests` | has at most five requests on their way at once |
//! | several limits | obeys each of them, also where they are in two dialects |
//! | `Retry-After`, seconds or a date | sends nothing until then, and forgets about `t`; then one at a time tries |
//! | `t=1000000` | believes ten minutes: [`Caps`] |
//! | something malformed | ignores that field |
//! | something with an `Age` | ignores its `RateLimit` fields: they were true for another client, some time ago |
//! | `X-RateLimit-*`, `anthropic-ratelimit-*` | reads it if a [`Profile`] says what it means at this origin |
//!
//! You choose how the client spends the remaining units: [`Strategy`]. [`Pacing`] has the rules in full; it is the part to make a
//! client of your own with, one without Tower or without tokio.
//!
//! # What happens on failure
//!
//! A request whose turn does not come in time, or that finds too many waiting, fails with
//! [`ClientError::Throttled`], which says until when. One whose service fails has that service's error. A rejection is a
//! response as any other, unless [retries](ClientLayerBuilder::retries) are on. [`Problem`] reads what its content says.
//!
//! # Together with a limit of your own: a webhook sender
//!
//! A sender of webhooks has thousands of receivers, each with its own limits. The layer obeys those that a receiver reports. A
//! `Limiter` of [`tower-quota`](https://docs.rs/tower-quota) adds a limit by origin, on a store that all instances share. A
//! delivery that waits for too long fails, so that a queue can retry it later.
//!
//! ```
//! # use std::{convert::Infallible, error::Error, sync::atomic::{AtomicUsize, Ordering}};
//! # use http::Response;
//! # use tower::service_fn;
//! # use tower_quota::{MissingKey, RateLimitBody, RateLimitLayerBuilder, clock::Clock, key};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::time::pause();
//! use std::time::Duration;
//! use http::Request;
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
//! use tower_ratelimit_client::ClientLayer;
//! # let clock = Clock::tokio();
//! # let receiver = RateLimitLayerBuilder::from(Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?).clock(clock.clone()))
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
//! #     .service(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
//! # let store = MemoryStore::builder().clock(clock).build()?;
//!
//! let polite = ClientLayer::builder()
//!     .queue_timeout(Duration::from_secs(60)) // then the delivery fails with `ClientError::Throttled`
//!     .retries(3, |body: &String| Some(body.clone())) // only after a rejection that says when
//!     .build()?;
//! let client = ServiceBuilder::new().layer(polite).service(http_client); // of hyper-util, say
//!
//! // At most 10 a second to each receiver, whatever it says, from all instances together.
//! let receivers = Limiter::builder(store)
//!     .scope("webhooks")
//!     .policy(QuotaPolicy::per_second("second", 10))
//! #   .clock(Clock::tokio())
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
//! // Twenty events at once for a receiver that allows two a second.
//! let events: Vec<_> = (0..20).map(|number| format!("event {number}")).collect();
//! let deliveries = events.iter().map(|event| deliver("http://shop.example/hooks", event));
//! for status in futures_util::future::join_all(deliveries).await {
//!     assert_eq!(status?, 200);
//! }
//! # assert!(REJECTED.load(Ordering::Relaxed) <= 19, "{}", REJECTED.load(Ordering::Relaxed));
//! # Ok(())
//! # }
//! ```
//!
//! # Clocks
//!
//! Waits are measured by the clock of tokio's timers (`tokio::time::Instant`), so they need a runtime with time enabled, and
//! tests can [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html) them. [`Pacing`] has its
//! moments from its caller. Only dates in responses without a `Date` field, and `Date` itself if it is
//! [trusted](Caps::trust_dates), are compared with the wall clock: see [`wall_clock`](ClientLayerBuilder::wall_clock).
//!
//! # What it does not do
//!
//! It does not make rejections impossible: a server promises nothing, others may use the same quota, and requests may
//! cost more than one unit. It bounds neither concurrency nor the rate of requests where servers say nothing. And other
//! processes do not know what this one knows.
//!
//! The pace of its requests may identify a client to a server, although it hides its address.
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
mod ready;
mod retry;
mod service;

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
    profile::Profile,
    retry::{NoRetries, Retries, Retry},
    service::Client,
};

/// The programs of the README have to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The other side: a layer for clients that obeys what servers say about their limits.
//!
//! [`ClientLayer`] wraps the service that sends requests. It reads `RateLimit`, `RateLimit-Policy` and `Retry-After` of
//! each response, in any [dialect](crate::fields::Dialect), and holds requests back while their server has nothing left
//! for them, so that they are not rejected. You want it for jobs with many requests to a server that limits them, be it
//! one with this crate or another.
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_quota::client::{ClientError, ClientLayer};
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
//! # Clocks
//!
//! Waits are measured by the clock of tokio's timers (`tokio::time::Instant`), so they need a runtime with time enabled, and
//! tests can pause them: see [`tokio::time::pause`]. [`Pacing`] has its moments from its caller. Only dates of responses
//! without a `Date` field are compared with the wall clock: see [`wall_clock`](ClientLayerBuilder::wall_clock).
//!
//! # What it does not do
//!
//! It does not make rejections impossible: a server promises nothing, others may use the same quota, and requests may
//! cost more than one unit. It bounds neither concurrency nor the rate of requests where servers say nothing. And other
//! processes do not know what this one knows.
//!
//! The pace of its requests may identify a client to a server, although it hides its address.

mod advice;
mod builder;
mod caps;
mod error;
mod future;
mod layer;
mod origin;
mod origins;
mod pacing;
mod problem;
mod profile;
mod ready;
mod retry;
mod service;

pub use self::{
    advice::{Advice, Exchange, Limit},
    builder::ClientLayerBuilder,
    caps::Caps,
    error::{BuildError, ClientError, Throttled, ThrottledKind},
    future::ResponseFuture,
    layer::{ClientLayer, OriginStatus},
    pacing::{Acquire, Pacing, SendPermit, Strategy, Wait},
    problem::{Problem, ProblemKind},
    profile::Profile,
    retry::{NoRetries, Retries, Retry},
    service::Client,
};

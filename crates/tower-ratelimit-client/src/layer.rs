use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;

use super::{Limit, NoRetries, origin::now, origins::Origins};

/// A layer that delays requests while the quota of their server is exhausted.
///
/// Clones, and the services created by them, share the known limits.
///
/// ```
/// use http::{Request, Response};
/// use tokio::time::Instant;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::ClientLayer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", r#""a";r=0;t=20"#).body(()));
/// let client = ClientLayer::builder().jitter_percent(0).build()?.layer(server);
/// let get = |uri| client.clone().oneshot(Request::get(uri).body(()).unwrap());
///
/// let start = Instant::now();
/// get("http://a.example/").await?;
/// // The limits of one server do not affect another.
/// get("http://b.example/").await?;
/// assert_eq!(start.elapsed().as_secs(), 0);
/// get("http://a.example/other").await?;
/// assert_eq!(start.elapsed().as_secs(), 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClientLayer<R = NoRetries> {
    pub(super) origins: Arc<Origins>,
    pub(super) retry: R,
}

impl<R> ClientLayer<R> {
    /// Returns the known limits of a request's server, or `None` if its origin is not cached.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # tokio_test::block_on(async {
    /// let client = ClientLayer::new();
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""daily";r=99;t=50"#).body(())
    /// });
    /// client.layer(server).oneshot(Request::get("http://api.example/a").body(())?).await?;
    ///
    /// let (request, ()) = Request::get("http://api.example/b").body(())?.into_parts();
    /// let known = client.origin_status(&request).expect("the origin is cached");
    /// assert_eq!(known.limits()[0].name(), Some("daily"));
    /// assert_eq!(known.limits()[0].remaining(), Some(99));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn origin_status(&self, request: &Parts) -> Option<OriginStatus> {
        let origin = self.origins.get(request)?;
        let now = now();
        let state = origin.lock();
        let blocked_until = state.pacing.blocked_until(now);
        Some(OriginStatus {
            limits: state.pacing.limits(now),
            retry_after: blocked_until.map(|until| until - now),
            in_flight: state.pacing.in_flight(),
            waiting: state.waiting,
        })
    }

    /// Returns the number of cached origins, or partitions of origins.
    pub fn origins(&self) -> usize {
        self.origins.len()
    }
}

/// A snapshot of the known limits of a server.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_ratelimit_client::ClientLayer;
///
/// # tokio_test::block_on(async {
/// let server = service_fn(async |_: Request<()>| {
///     Response::builder().status(429).header("retry-after", "60").body(())
/// });
/// let mut client = ClientLayer::new().layer(server);
/// let request = || Request::get("http://a.example/").body(()).unwrap();
/// let (parts, ()) = request().into_parts();
///
/// let first = client.ready().await?.call(request());
/// assert_eq!(client.layer().origin_status(&parts).unwrap().in_flight(), 1);
/// first.await?;
///
/// let second = client.ready().await?.call(request());
/// let known = client.layer().origin_status(&parts).unwrap();
/// assert_eq!((known.in_flight(), known.waiting()), (0, 1));
/// assert!(known.retry_after() > Some(Duration::from_secs(59)));
/// assert!(known.limits().is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginStatus {
    limits: Vec<Limit>,
    retry_after: Option<Duration>,
    in_flight: u64,
    waiting: usize,
}

impl OriginStatus {
    /// Returns the [limits](super::Pacing::limits), at most 32.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the remaining wait after `Retry-After` or a rejection.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

impl<R> fmt::Debug for ClientLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayer")
            .field("caps", &self.origins.config.caps)
            .field("queue_timeout", &self.origins.config.queue_timeout)
            .field("origins", &self.origins())
            .finish_non_exhaustive()
    }
}

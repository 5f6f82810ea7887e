//! Settings of a client, checked as a whole.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, SystemTime},
};

use http::request::Parts;

use super::{
    BuildError, Caps, ClientLayer, NoRetries, Profile, Retries, Strategy, origin::ClientConfig, origins::Origins,
    profile::Profiles,
};

/// Settings of a [`ClientLayer`]. All have a default, and are checked when the layer is built.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit_client::{BuildError, ClientLayer, ClientLayerBuilder, Strategy};
///
/// let layer = ClientLayer::builder()
///     .strategy(Strategy::pace())
///     .queue_timeout(Duration::from_secs(30))
///     .max_waiting(100)
///     .build()?;
/// assert_eq!(layer.origins(), 0);
///
/// let error = |builder: ClientLayerBuilder| builder.build().unwrap_err().to_string();
/// let builder = ClientLayer::builder;
/// let queue_timeout = Duration::from_secs(100_000);
/// assert_eq!(error(builder().queue_timeout(queue_timeout)), "client: queue_timeout 100000s is outside 0ns..=86400s");
/// assert_eq!(error(builder().max_waiting(0)), "client: max_waiting 0 is outside 1..=1000000");
/// assert_eq!(error(builder().max_origins(0)), "client: max_origins 0 is outside 1..=1000000");
/// assert_eq!(error(builder().jitter_percent(101)), "client: jitter_percent 101 is outside 0..=100");
/// # Ok::<_, BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientLayerBuilder<R = NoRetries> {
    config: ClientConfig,
    retries: u8,
    retry: R,
}

impl ClientLayer {
    /// A layer with all settings as they are by default.
    ///
    /// ```
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// let layer = ClientLayer::new();
    /// assert_eq!(layer.origins(), 0, "nothing is known yet");
    /// ```
    pub fn new() -> Self {
        Self::builder().build().expect("the default settings are valid")
    }

    /// A layer with settings of your own: see [`ClientLayerBuilder`].
    pub fn builder() -> ClientLayerBuilder {
        ClientLayerBuilder {
            config: ClientConfig {
                wall_clock: Box::new(system_time),
                caps: Caps::default(),
                queue_timeout: Duration::from_secs(120),
                max_waiting: 1_024,
                waiting: AtomicUsize::new(0),
                strategy: Strategy::default(),
                jitter_percent: 10,
                max_origins: 1_024,
                partition_of: None,
                profiles: Profiles::default(),
            },
            retries: 0,
            retry: NoRetries,
        }
    }
}

impl Default for ClientLayer {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(clippy::disallowed_methods, reason = "dates of servers are compared with it")]
fn system_time() -> SystemTime {
    SystemTime::now()
}

impl<R> ClientLayerBuilder<R> {
    const TIMEOUTS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
    const COUNTS: RangeInclusive<usize> = 1..=1_000_000;

    /// Sets the way in which the client spends the remaining units. Default: [`Strategy::Greedy`].
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::{ClientLayer, Strategy};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with two units left for a minute.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""a";r=2;t=60"#).body(())
    /// });
    /// let strategy = Strategy::Pace { below_percent: 100 };
    /// let client = ClientLayer::builder().strategy(strategy).jitter_percent(0).build()?.layer(server);
    /// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.config.strategy = strategy;
        self
    }

    /// Sets the bounds on what the client believes of a server. Default: [`Caps::default`].
    ///
    /// A request is sent after [`Caps::max_wait`], even if `Retry-After` or a window is longer, and however long the
    /// [`queue_timeout`](Self::queue_timeout) is. Until a server sends another number, the client sends at most
    /// [`Caps::max_units`] requests.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::{Caps, ClientLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server that asks for more than eleven days.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().status(503).header("retry-after", "999999").body(())
    /// });
    /// let caps = Caps::new(Duration::from_secs(60), 50)?;
    /// let client = ClientLayer::builder().caps(caps).build()?.layer(server);
    /// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 60);
    /// # Ok(())
    /// # }
    /// ```
    pub fn caps(mut self, caps: Caps) -> Self {
        self.config.caps = caps;
        self
    }

    /// Sets the maximum time that a request waits for its turn, at most one day. Default: two minutes.
    ///
    /// The time begins when the service is called, and no turn comes after it, neither the first nor that of a retry. It
    /// does not bound the time for the response. A request that is known to have to wait longer fails at once. Zero lets
    /// no request wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::{ClientError, ClientLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with no units for 30 seconds.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""a";r=0;t=30"#).body(())
    /// });
    /// let layer = ClientLayer::builder().queue_timeout(Duration::from_secs(29)).jitter_percent(0).build()?;
    /// let client = layer.layer(server);
    /// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// assert!(matches!(get().await, Err(ClientError::Throttled(_))));
    /// assert_eq!(start.elapsed(), Duration::ZERO);
    ///
    /// tokio::time::advance(Duration::from_secs(1)).await;
    /// assert!(get().await.is_ok());
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue_timeout(mut self, queue_timeout: Duration) -> Self {
        self.config.queue_timeout = queue_timeout;
        self
    }

    /// Sets the maximum number of waiting requests, in all clones and for all origins together, 1 to a million.
    /// Default: 1,024.
    ///
    /// One more fails at once: see [`ThrottledKind`](super::ThrottledKind) for an example.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// Sets the maximum number of cached origins, or partitions of origins, 1 to a million. Default: 1,024.
    ///
    /// If the cache is full, a new origin evicts one of a random sample of 16: preferably an origin of which nothing is
    /// known, then one that was used only once, so that many origins that are used once do not evict the others. Requests
    /// to an evicted origin that wait or are in flight complete.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", r#""a";r=5;t=60"#).body(()));
    /// let client = ClientLayer::builder().max_origins(10).build()?.layer(server);
    /// for number in 0..100 {
    ///     let request = Request::get(format!("http://{number}.example/")).body(())?;
    ///     client.clone().oneshot(request).await?;
    /// }
    /// assert_eq!(client.layer().origins(), 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_origins(mut self, origins: usize) -> Self {
        self.config.max_origins = origins;
        self
    }

    /// Makes each wait longer by a random part of it, up to `percent`, at most 100. Default: 10.
    ///
    /// Jitter keeps the clients of a server from returning at the same moment. All requests of this client that wait for
    /// one origin wait equally long. [`Caps::max_wait`] stays the longest wait.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with no units for 100 seconds.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""a";r=0;t=100"#).body(())
    /// });
    /// let client = ClientLayer::builder().jitter_percent(20).build()?.layer(server);
    /// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// get().await?;
    /// let waited = start.elapsed().as_secs_f64();
    /// assert!(waited > 100.0 && waited <= 120.001);
    /// # Ok(())
    /// # }
    /// ```
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.config.jitter_percent = percent;
        self
    }

    /// Sets the partition of a request at its server: a user, an API key, a tenant. Default: all requests to one origin
    /// share what is known of it.
    ///
    /// Use this if one client sends with the credentials of several users, so that a user with an exhausted quota does not
    /// hold back the others. Compute what the server computes for the parameter `pk` of its fields, if you know how: the
    /// client then finds its own partition in responses that list several. Any other value that distinguishes the users
    /// works, too. The value never leaves the process.
    ///
    /// The closure runs on the request's task and must not block.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with no units for a minute, whichever client asks.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""a";r=0;t=60"#).body(())
    /// });
    /// let client = ClientLayer::builder()
    ///     .partition_by(|request| {
    ///         let key = request.headers.get("authorization")?;
    ///         Some(key.as_bytes().to_vec())
    ///     })
    ///     .build()?
    ///     .layer(server);
    /// let get = |user: &str| {
    ///     client.clone().oneshot(Request::get("http://a.example/").header("authorization", user).body(()).unwrap())
    /// };
    ///
    /// let start = Instant::now();
    /// get("alice").await?;
    /// get("bob").await?;
    /// assert_eq!(start.elapsed().as_secs(), 0);
    /// get("alice").await?;
    /// assert!(start.elapsed().as_secs() >= 60);
    /// # Ok(())
    /// # }
    /// ```
    pub fn partition_by(mut self, partition_of: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        self.config.partition_of = Some(Box::new(partition_of));
        self
    }

    /// Sets the fields that an origin sends and their meaning there: see [`Profile`]. Default: the `RateLimit` fields of the
    /// drafts for all origins.
    ///
    /// `origin` is a host, for all its ports, or a host and a port, which takes precedence: `api.github.com`,
    /// `localhost:8080`. Both apply to `http` and `https`. A request without a host in its URI has that of its `Host`
    /// field.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::{ClientLayer, Profile};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with no units for 40 seconds.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder()
    ///         .header("date", "Tue, 14 Nov 2023 22:13:20 GMT")
    ///         .header("x-ratelimit-remaining", "0")
    ///         .header("x-ratelimit-reset", "1700000040")
    ///         .header("x-ratelimit-resource", "core")
    ///         .body(())
    /// });
    /// let client = ClientLayer::builder()
    ///     .profile("api.github.com", Profile::GitHub)
    ///     .profile("api.openai.com", Profile::OpenAi)
    ///     .jitter_percent(0)
    ///     .build()?
    ///     .layer(server);
    /// let get = || client.clone().oneshot(Request::get("https://api.github.com/user").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 40);
    ///
    /// let error = ClientLayer::builder().profile("https://api.github.com", Profile::GitHub).build().unwrap_err();
    /// assert_eq!(error.to_string(), r#"client: profile "https://api.github.com" is not a host, with or without a port"#);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// To keep the resources of GitHub apart, so that an exhausted quota of searches holds back no other request:
    ///
    /// ```
    /// use tower_ratelimit_client::{BuildError, ClientLayer, Profile};
    ///
    /// let layer = ClientLayer::builder()
    ///     .profile("api.github.com", Profile::GitHub)
    ///     .partition_by(|request| match request.uri.path().split('/').nth(1) {
    ///         Some(resource @ ("search" | "graphql")) => Some(resource.into()),
    ///         _ => None,
    ///     })
    ///     .build()?;
    /// # Ok::<_, BuildError>(())
    /// ```
    pub fn profile(mut self, origin: &str, profile: Profile) -> Self {
        self.config.profiles.set(origin, profile);
        self
    }

    /// Sets the wall clock, with which dates are compared that have no `Date` of the response beside them, and `Date`
    /// itself if the client [trusts dates](Caps::trust_dates). Default: [`SystemTime::now`].
    ///
    /// Use this to test such responses. Waits are measured by the clock of tokio's timers, which tests can
    /// [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html), and which does not move the wall clock.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server that is unavailable until 22:14:00.
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().status(503).header("retry-after", "Tue, 14 Nov 2023 22:14:00 GMT").body(())
    /// });
    /// // The time is 22:13:20.
    /// let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    /// let client = ClientLayer::builder().wall_clock(move || now).jitter_percent(0).build()?.layer(server);
    /// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    ///
    /// let start = Instant::now();
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 40);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wall_clock(mut self, wall_clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.config.wall_clock = Box::new(wall_clock);
        self
    }

    /// Sends requests again that were rejected, up to 10 times each. Default: never.
    ///
    /// A request is sent again after a response 429 with `Retry-After`, whatever its method, since it was not
    /// processed; and after 503 with `Retry-After` if its method is idempotent, since a server may have begun with it.
    /// The response is dropped, and the request waits as others do. If it cannot wait that long, or `clone_body` gives
    /// nothing, you get the response.
    ///
    /// `clone_body` gives the content once more; `None` if it cannot be had. It is called for each request before it is
    /// sent.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server that rejects every request, for ten seconds.
    /// let calls = &AtomicUsize::new(0);
    /// let server = service_fn(async |_: Request<String>| {
    ///     calls.fetch_add(1, Ordering::Relaxed);
    ///     Response::builder().status(429).header("retry-after", "10").body(())
    /// });
    /// let layer = ClientLayer::builder().retries(3, |body: &String| Some(body.clone())).jitter_percent(0).build()?;
    ///
    /// let start = Instant::now();
    /// let request = Request::post("http://a.example/").body("hello".to_owned())?;
    /// assert_eq!(layer.layer(server).oneshot(request).await?.status(), 429);
    /// assert_eq!(calls.load(Ordering::Relaxed), 4);
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retries<B, F>(self, count: u8, clone_body: F) -> ClientLayerBuilder<Retries<F>>
    where
        F: Fn(&B) -> Option<B>,
    {
        ClientLayerBuilder {
            config: self.config,
            retries: count,
            retry: Retries::new(count, clone_body),
        }
    }

    /// Builds the layer, if the settings are valid.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of its range.
    pub fn build(self) -> Result<ClientLayer<R>, BuildError> {
        let config = self.config;
        config.profiles.check()?;
        if let Strategy::Pace { below_percent } = config.strategy {
            BuildError::check_range("below_percent", below_percent, 1..=100)?;
        }
        BuildError::check_range("queue_timeout", config.queue_timeout, Self::TIMEOUTS)?;
        BuildError::check_range("max_waiting", config.max_waiting, Self::COUNTS)?;
        BuildError::check_range("max_origins", config.max_origins, Self::COUNTS)?;
        BuildError::check_range("jitter_percent", config.jitter_percent, 0..=100)?;
        BuildError::check_range("retries", self.retries, 0..=Retries::<()>::MAX)?;
        Ok(ClientLayer {
            origins: Arc::new(Origins::new(config)),
            retry: self.retry,
        })
    }
}

impl<R> fmt::Debug for ClientLayerBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayerBuilder")
            .field("strategy", &self.config.strategy)
            .field("queue_timeout", &self.config.queue_timeout)
            .field("max_waiting", &self.config.max_waiting)
            .finish_non_exhaustive()
    }
}

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

/// A builder for [`ClientLayer`]. All settings have defaults.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tokio::time::Instant;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{Caps, ClientLayer, Strategy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A server with two remaining units for a minute.
/// let server = service_fn(async |_: Request<String>| {
///     Response::builder().header("ratelimit", r#""a";r=2;t=60"#).body(())
/// });
/// let client = ClientLayer::builder()
///     .strategy(Strategy::Pace { below_percent: 100 })
///     .caps(Caps::new(Duration::from_secs(300), 500)?)
///     .queue_timeout(Duration::from_secs(90))
///     .max_waiting(100)
///     .max_origins(10)
///     .jitter_percent(20)
///     .build()?
///     .layer(server);
///
/// // The first response reports the limit. The strategy then sends one request every 30 seconds.
/// let start = Instant::now();
/// for _ in 0..3 {
///     client.clone().oneshot(Request::get("http://a.example/").body(String::new())?).await?;
/// }
/// let seconds = start.elapsed().as_secs_f64();
/// assert!(seconds > 30.0 && seconds < 36.1); // up to 20% of jitter
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientLayerBuilder<R = NoRetries> {
    config: ClientConfig,
    retries: u8,
    retry: R,
}

impl ClientLayer {
    /// Creates a layer with the default settings.
    pub fn new() -> Self {
        Self::builder().build().expect("the default settings are valid")
    }

    /// Returns a builder with the default settings.
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

#[allow(
    clippy::disallowed_methods,
    reason = "dates of servers are compared with the system clock"
)]
fn system_time() -> SystemTime {
    SystemTime::now()
}

impl<R> ClientLayerBuilder<R> {
    const TIMEOUTS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
    const COUNTS: RangeInclusive<usize> = 1..=1_000_000;

    /// Sets the strategy for spending the remaining units. Default: [`Strategy::Greedy`].
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.config.strategy = strategy;
        self
    }

    /// Caps the waits and remaining units accepted from servers. Default: [`Caps::default`].
    pub fn caps(mut self, caps: Caps) -> Self {
        self.config.caps = caps;
        self
    }

    /// Sets the maximum time that a request waits, including waits before retries, at most one day. Default: two
    /// minutes.
    ///
    /// The timeout starts when the service is called, and does not limit the response. A request that is known to
    /// exceed it fails at once. With zero, no request waits.
    pub fn queue_timeout(mut self, queue_timeout: Duration) -> Self {
        self.config.queue_timeout = queue_timeout;
        self
    }

    /// Sets the maximum number of waiting requests across all clones and origins, 1 to 1,000,000. Default: 1,024.
    ///
    /// Further requests fail at once.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// Sets the maximum number of cached origins, or partitions of origins, 1 to 1,000,000. Default: 1,024.
    ///
    /// In a full cache, a new origin evicts one of a random sample of 16: preferably one without known limits, then one
    /// that was used only once. Its requests complete.
    pub fn max_origins(mut self, origins: usize) -> Self {
        self.config.max_origins = origins;
        self
    }

    /// Lengthens each wait by a random fraction of up to `percent` percent, 0 to 100. Default: 10.
    ///
    /// A wait that reaches [`Caps::max_wait`] is shortened instead. Waiting requests to one origin share the jitter.
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.config.jitter_percent = percent;
        self
    }

    /// Partitions the requests to an origin, for example by API key, so that a user with an exhausted quota does not
    /// delay the others. Default: one partition.
    ///
    /// The value never leaves the process. If it equals the `pk` parameter of the server, the client also recognizes
    /// its partition in responses that list several. Requests without a value share one partition. The closure must not
    /// block.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::time::Instant;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server with no units for a minute, for any client.
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

    /// Sets the [`Profile`] of an origin. Default: [`Profile::new`].
    ///
    /// `origin` is a host, such as `api.github.com`, or a host with a port, such as `localhost:8080`, which takes
    /// precedence. If the URI of a request has no host, its `Host` field is used. [`build`](Self::build) rejects an
    /// invalid or repeated `origin`, and a profile with an invalid field name.
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
    ///     .profile("api.github.com", Profile::github())
    ///     .profile("api.openai.com", Profile::open_ai())
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
    /// let error = ClientLayer::builder().profile("https://api.github.com", Profile::github()).build().unwrap_err();
    /// let message = r#"client: profile "https://api.github.com" is not a host with an optional port"#;
    /// assert_eq!(error.to_string(), message);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// To separate the resources of GitHub:
    ///
    /// ```
    /// use tower_ratelimit_client::{BuildError, ClientLayer, Profile};
    ///
    /// let layer = ClientLayer::builder()
    ///     .profile("api.github.com", Profile::github())
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

    /// Sets the wall clock, for responses without `Date` and [trusted dates](Caps::trust_dates). Default:
    /// [`SystemTime::now`], which paused Tokio time does not advance.
    pub fn wall_clock(mut self, wall_clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.config.wall_clock = Box::new(wall_clock);
        self
    }

    /// Retries each rejected request up to `count` times, 0 to 10. Default: 0.
    ///
    /// A [rejected](super::Advice::is_rejection) request of any method is retried, because the server has not processed
    /// it; after 503, only an idempotent one. A retry is queued like any other request. After 503 without
    /// `Retry-After`, only this request waits: one second, doubled for each further attempt.
    ///
    /// The response is returned if it [forbids a retry](super::Advice::is_final), the wait would exceed the queue
    /// timeout, the queue is full, or `clone_body`, called before each attempt that can be retried, has returned
    /// `None`.
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
    /// // A server that rejects every request, with a wait of ten seconds.
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

    /// Builds the layer. Fails for the first setting outside its range, and for an invalid [`profile`](Self::profile).
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

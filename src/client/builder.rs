//! Settings of a client, checked as a whole.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http::request::Parts;

use super::{
    Caps, ClientLayer, NoRetries, Profile, Retries, Strategy, origin::ClientConfig, origins::Origins, profile::Profiles,
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind::Client},
};

/// Settings of a [`ClientLayer`]. All have a default, and are checked when the layer is built.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::client::{ClientLayer, ClientLayerBuilder, Strategy};
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
/// assert_eq!(error(builder().wait_cap(Duration::ZERO)), "client: wait cap 0ns is outside 1s..=86400s");
/// assert_eq!(error(builder().unit_cap(0)), "client: unit cap 0 is outside 1..=999999999999999");
/// let queue_timeout = Duration::from_secs(100_000);
/// assert_eq!(error(builder().queue_timeout(queue_timeout)), "client: queue_timeout 100000s is outside 0ns..=86400s");
/// assert_eq!(error(builder().max_waiting(0)), "client: max_waiting 0 is outside 1..=1000000");
/// assert_eq!(error(builder().max_origins(0)), "client: max_origins 0 is outside 1..=1000000");
/// assert_eq!(error(builder().jitter_percent(101)), "client: jitter_percent 101 is outside 0..=100");
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientLayerBuilder<R = NoRetries> {
    config: ClientConfig,
    retries: u8,
    retry: R,
}

impl ClientLayerBuilder {
    pub(super) fn new() -> Self {
        Self {
            config: ClientConfig {
                clock: Clock::tokio(),
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

impl<R> ClientLayerBuilder<R> {
    const PATIENCES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
    const COUNTS: RangeInclusive<usize> = 1..=1_000_000;

    /// Sets the way in which the client spends the remaining units. Default: [`Strategy::Greedy`].
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::{ClientLayer, Strategy};
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().strategy(Strategy::Pace { below_percent: 100 }).jitter_percent(0).build()?;
    /// // A server with two units left for a minute.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=2;t=60"#).body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    /// # let start = tokio::time::Instant::now();
    /// get().await?;
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(()) });
    /// ```
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.config.strategy = strategy;
        self
    }

    /// The longest wait that a server is believed, one second to one day. Default: ten minutes.
    ///
    /// After it a request is sent, even if `Retry-After` or a window is longer. A longer
    /// [`queue_timeout`](Self::queue_timeout) does not change that.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::time::Duration;
    /// use tower_quota::client::ClientLayer;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().wait_cap(Duration::from_secs(60)).build()?;
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().status(503).header("retry-after", "999999").body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    /// # let start = tokio::time::Instant::now();
    /// // A server that answers `Retry-After: 999999`.
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 60);
    /// # Ok(()) });
    /// ```
    pub fn wait_cap(mut self, wait: Duration) -> Self {
        self.config.caps.wait = wait;
        self
    }

    /// The most units that a server is believed to have left, at least one and at most 15 digits. Default: 10 000.
    ///
    /// Until it gives another number, the client sends at most as much.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::ClientLayer;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().unit_cap(50).build()?;
    /// // A server with 999999 units left.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=999999;t=9"#).body(())
    /// # });
    /// let request = || Request::get("http://a.example/").body(()).unwrap();
    /// layer.layer(server).oneshot(request()).await?;
    ///
    /// let known = layer.origin_status(&request().into_parts().0).unwrap();
    /// assert_eq!(known.limits()[0].remaining(), Some(50));
    /// # Ok(()) });
    /// ```
    pub fn unit_cap(mut self, units: u64) -> Self {
        self.config.caps.units = units;
        self
    }

    /// Compares `Date` fields with the time of this computer, if true: see [`Caps::trust_dates`]. Default: false.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{client::ClientLayer, clock::{Clock, Timestamp}};
    ///
    /// # run(async {
    /// // It is the 14th of November 2023, 22:13:20.
    /// let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    /// let builder = || ClientLayer::builder().clock(clock.clone());
    /// let request = || Request::get("http://a.example/").body(()).unwrap();
    /// let limits = async |layer: ClientLayer| {
    ///     let server = service_fn(async |_: Request<()>| {
    ///         Response::builder()
    ///             .header("date", "Tue, 14 Nov 2023 21:00:00 GMT")
    ///             .header("ratelimit", r#""a";r=5;t=60"#)
    ///             .body(())
    ///     });
    ///     layer.layer(server).oneshot(request()).await.unwrap();
    ///     layer.origin_status(&request().into_parts().0).unwrap().limits().len()
    /// };
    /// assert_eq!(limits(builder().build()?).await, 1);
    /// // The response is more than an hour old.
    /// assert_eq!(limits(builder().trust_dates(true).build()?).await, 0);
    /// # Ok(()) });
    /// ```
    pub fn trust_dates(mut self, trusts_dates: bool) -> Self {
        self.config.caps.trusts_dates = trusts_dates;
        self
    }

    /// The maximum time that a request waits for its turn, at most one day. Default: two minutes.
    ///
    /// It begins when the service is called, and no turn comes after it, neither the first nor that of a retry. It does
    /// not bound the time for the response. A request that is known to have to wait longer fails at once. Zero lets no
    /// request wait.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::time::Duration;
    /// use tower_quota::client::{ClientError, ClientLayer};
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().queue_timeout(Duration::from_secs(29)).jitter_percent(0).build()?;
    /// // A server with nothing left for 30 seconds.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=0;t=30"#).body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    /// # let start = tokio::time::Instant::now();
    /// get().await?;
    /// assert!(matches!(get().await, Err(ClientError::Throttled(_))));
    /// assert_eq!(start.elapsed(), Duration::ZERO);
    ///
    /// tokio::time::advance(Duration::from_secs(1)).await;
    /// assert!(get().await.is_ok());
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(()) });
    /// ```
    pub fn queue_timeout(mut self, queue_timeout: Duration) -> Self {
        self.config.queue_timeout = queue_timeout;
        self
    }

    /// The maximum number of waiting requests, in all clones and for all origins together, 1 to a million.
    /// Default: 1 024. One more fails at once: see [`ThrottledKind`](super::ThrottledKind) for an example.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// The maximum number of cached origins, or partitions of origins, 1 to a million. Default: 1 024.
    ///
    /// One more evicts another: one of which nothing is known, if possible, then one that was asked only once, so that
    /// many origins that are asked once do not evict those that are used. Requests that wait for an evicted origin, or
    /// are on their way, are completed all the same.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::ClientLayer;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().max_origins(10).build()?;
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=5;t=60"#).body(())
    /// # });
    /// let client = layer.layer(server);
    /// for number in 0..100 {
    ///     let request = Request::get(format!("http://{number}.example/")).body(())?;
    ///     client.clone().oneshot(request).await?;
    /// }
    /// assert_eq!(layer.origins(), 10);
    /// # Ok(()) });
    /// ```
    pub fn max_origins(mut self, origins: usize) -> Self {
        self.config.max_origins = origins;
        self
    }

    /// Makes each wait longer by a random part of it, up to so many percent, at most 100. Default: 10.
    ///
    /// So not all clients of a server return at one moment. All requests of this client that wait for one origin wait
    /// equally long. [`wait_cap`](Self::wait_cap) stays the longest wait.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::ClientLayer;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder().jitter_percent(20).build()?;
    /// // A server with nothing left for 100 seconds.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=0;t=100"#).body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    /// # let start = tokio::time::Instant::now();
    /// get().await?;
    /// get().await?;
    /// let waited = start.elapsed().as_secs_f64();
    /// assert!(waited > 100.0 && waited <= 120.001);
    /// # Ok(()) });
    /// ```
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.config.jitter_percent = percent;
        self
    }

    /// Sets the partition of a request at its server: a user, an API key, a tenant. Default: all requests to one origin
    /// share what is known of it.
    ///
    /// You want it if one client sends with the credentials of several users: then one of them who has used up a quota
    /// does not hold back the others. Compute what the server computes for the parameter `pk` of its fields, if you
    /// know how; where its responses speak of several partitions, the client then finds its own. Anything else that
    /// tells the users apart will do, too. What it returns never leaves the process.
    ///
    /// The closure runs on the request's task and must not block.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::ClientLayer;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder()
    ///     .partition_by(|request| {
    ///         let key = request.headers.get("authorization")?;
    ///         Some(key.as_bytes().to_vec())
    ///     })
    ///     .build()?;
    ///
    /// // A server with nothing left for any client, for a minute.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=0;t=60"#).body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = |user: &str| {
    /// #     client.clone().oneshot(Request::get("http://a.example/").header("authorization", user).body(()).unwrap())
    /// # };
    /// # let start = tokio::time::Instant::now();
    /// get("alice").await?;
    /// get("bob").await?;
    /// assert_eq!(start.elapsed().as_secs(), 0);
    /// get("alice").await?;
    /// assert!(start.elapsed().as_secs() >= 60);
    /// # Ok(()) });
    /// ```
    pub fn partition_by(mut self, partition_of: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        self.config.partition_of = Some(Box::new(partition_of));
        self
    }

    /// Sets the fields that an origin sends and their meaning there: see [`Profile`]. Default: the `RateLimit` fields of the
    /// drafts for all origins.
    ///
    /// `origin` is a host, for all its ports, or a host and a port, which counts more: `api.github.com`,
    /// `localhost:8080`. Both `http` and `https` are meant. A request without a host in its URI has that of its `Host`
    /// field.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::client::{ClientLayer, Profile};
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder()
    ///     .profile("api.github.com", Profile::GitHub)
    ///     .profile("api.openai.com", Profile::OpenAi)
    ///     .jitter_percent(0)
    ///     .build()?;
    /// // A server with nothing left for 40 seconds.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder()
    /// #         .header("date", "Tue, 14 Nov 2023 22:13:20 GMT")
    /// #         .header("x-ratelimit-limit", "60")
    /// #         .header("x-ratelimit-remaining", "0")
    /// #         .header("x-ratelimit-reset", "1700000040")
    /// #         .header("x-ratelimit-resource", "core")
    /// #         .body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("https://api.github.com/user").body(()).unwrap());
    /// # let start = tokio::time::Instant::now();
    /// get().await?;
    /// get().await?;
    /// assert_eq!(start.elapsed().as_secs(), 40);
    ///
    /// let error = ClientLayer::builder().profile("https://api.github.com", Profile::GitHub).build().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     r#"client: profile origin "https://api.github.com" is not a host, with or without a port"#
    /// );
    /// # Ok(()) });
    /// ```
    ///
    /// To keep the resources of GitHub apart, so that searches that are used up hold back no other request:
    ///
    /// ```
    /// use tower_quota::client::{ClientLayer, Profile};
    ///
    /// let layer = ClientLayer::builder()
    ///     .profile("api.github.com", Profile::GitHub)
    ///     .partition_by(|request| match request.uri.path().split('/').nth(1) {
    ///         Some(resource @ ("search" | "graphql")) => Some(resource.into()),
    ///         _ => None,
    ///     })
    ///     .build()?;
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn profile(mut self, origin: &str, profile: Profile) -> Self {
        self.config.profiles.set(origin, profile);
        self
    }

    /// The clock. Default: [`Clock::tokio`], which is the clock of the timers that requests wait with.
    ///
    /// Requests wait for as long as another clock stands still, and longer than their patience. A test with a manual
    /// clock should let none of them wait.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::time::Duration;
    /// use tower_quota::{client::ClientLayer, clock::{Clock, Timestamp}};
    ///
    /// # run(async {
    /// let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    /// let layer = ClientLayer::builder()
    ///     .clock(clock.clone())
    ///     .queue_timeout(Duration::ZERO)
    ///     .jitter_percent(0)
    ///     .build()?;
    /// // A server with nothing left for a minute.
    /// # let server = service_fn(async |_: Request<()>| {
    /// #     Response::builder().header("ratelimit", r#""a";r=0;t=60"#).body(())
    /// # });
    /// # let client = layer.layer(server);
    /// # let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
    /// assert!(get().await.is_ok());
    /// clock.advance(Duration::from_secs(59));
    /// assert!(get().await.is_err());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(get().await.is_ok());
    /// # Ok(()) });
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.config.clock = clock;
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
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use tower_quota::client::ClientLayer;
    /// # use std::sync::Arc;
    ///
    /// # run(async {
    /// let layer = ClientLayer::builder()
    ///     .retries(3, |body: &Full<Bytes>| Some(body.clone()))
    ///     .jitter_percent(0)
    ///     .build()?;
    ///
    /// # let asked = Arc::new(AtomicUsize::new(0));
    /// # let count = asked.clone();
    /// # let server = service_fn(move |_: Request<Full<Bytes>>| {
    /// #     count.fetch_add(1, Ordering::Relaxed);
    /// #     async { Response::builder().status(429).header("retry-after", "10").body(()) }
    /// # });
    /// # let start = tokio::time::Instant::now();
    /// # let send = layer.layer(server).oneshot(Request::post("http://a.example/").body(Full::from("hello"))?);
    /// // A server that rejects every time, for ten seconds.
    /// let response = send.await?;
    /// assert_eq!(response.status(), 429);
    /// assert_eq!(asked.load(Ordering::Relaxed), 4);
    /// assert_eq!(start.elapsed().as_secs(), 30);
    /// # Ok(()) });
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
    /// The first setting that is out of its range. The message names the setting, the value and the bound.
    pub fn build(self) -> Result<ClientLayer<R>, ConfigError> {
        let config = self.config;
        config.caps.checked()?;
        config.profiles.check()?;
        if let Strategy::Pace { below_percent } = config.strategy {
            ConfigError::check_range(Client, "client: pace below_percent", below_percent, 1..=100)?;
        }
        ConfigError::check_range(Client, "client: queue_timeout", config.queue_timeout, Self::PATIENCES)?;
        ConfigError::check_range(Client, "client: max_waiting", config.max_waiting, Self::COUNTS)?;
        ConfigError::check_range(Client, "client: max_origins", config.max_origins, Self::COUNTS)?;
        ConfigError::check_range(Client, "client: jitter_percent", config.jitter_percent, 0..=100)?;
        ConfigError::check_range(Client, "client: retries", self.retries, 0..=Retries::<()>::MAX)?;
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

use std::{
    fmt,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, aio::MultiplexedConnection};
use bb8_redis::{
    RedisConnectionManager,
    bb8::{self, RunError},
};
use tokio::sync::watch;

use super::{
    RedisStore,
    engine::Engine,
    keyspace::{self, Keyspace},
    leases::Leases,
    net::{
        Cluster, ClusterSettings, Connect, Endpoint, Opener, Pool, Prepare, Sentinels, TlsSettings, Topology,
        config_error as error, connection_info,
    },
    order::Order,
    script::ServerTime,
    scripts::{self, Script},
    server::Server,
    shared_calls::SharedCalls,
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind},
    sync::mutex::Mutex,
    telemetry::UnsettledTelemetry,
};

/// Settings of a [`RedisStore`], all with defaults.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::RedisStore;
///
/// let store = RedisStore::builder("redis://10.0.0.1/")
///     .connections(4)
///     .connection_timeout(Duration::from_millis(500))
///     .decisions_per_call(8)
///     .key_prefix("staging:")
///     .lease_time(Duration::from_secs(60))
///     .expiry_jitter(Duration::from_secs(300))
///     .build()?;
/// assert_eq!(store.key_prefix(), "staging:");
///
/// let error = RedisStore::builder("redis://10.0.0.1/").connections(65).build().unwrap_err();
/// assert_eq!(error.to_string(), "redis store: connections 65 is outside 1..=64");
/// # let builder = || RedisStore::builder("redis://10.0.0.1/");
/// # let error = builder().decisions_per_call(0).build().unwrap_err();
/// # assert_eq!(error.to_string(), "redis store: decisions_per_call 0 is outside 1..=64");
/// # let error = builder().connection_timeout(Duration::from_secs(90)).build().unwrap_err();
/// # assert_eq!(error.to_string(), "redis store: connection_timeout 90s is outside 10ms..=60s");
/// # let error = builder().expiry_jitter(Duration::from_secs(3_601)).build().unwrap_err();
/// # assert_eq!(error.to_string(), "redis store: expiry_jitter 3601s is outside 0ns..=3600s");
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RedisStoreBuilder {
    servers: Servers,
    urls: Vec<String>,
    primary_url: Option<String>,
    prepare: Option<Prepare>,
    connect: Option<Connect>,
    pub(super) tls: TlsSettings,
    connections: u32,
    connection_timeout: Duration,
    key_prefix: String,
    clock: Option<Clock>,
    lease_time: Duration,
    expiry_jitter: Duration,
    one_slot_per_call: bool,
    decisions_per_call: usize,
}

#[derive(Clone, Hash)]
enum Servers {
    Single,
    Cluster,
    Primary(String),
}

impl RedisStore {
    /// Creates a store on the Redis at `url`, a [URL](Self#urls), with default settings.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// assert!(RedisStore::new("redis://10.0.0.1/").is_ok());
    /// assert!(RedisStore::new("redis+unix:///run/redis.sock").is_ok());
    ///
    /// let error = RedisStore::new("localhost:6379").unwrap_err().to_string();
    /// assert!(error.starts_with(r#"redis store: invalid URL "localhost:6379": must start with "redis://""#));
    ///
    /// // Neither the error nor the store contains the password.
    /// let error = RedisStore::new("redis://limiter:secret@10.0.0.1:port/").unwrap_err();
    /// assert!(!error.to_string().contains("secret"));
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, or uses TLS without a rustls crypto provider or the feature
    /// `redis-rustls`.
    pub fn new(url: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self::builder(url).build()
    }

    /// Creates a builder for the Redis at `url`.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::at(Servers::Single, [url])
    }

    /// Creates a builder for a store on the connections of an existing pool.
    ///
    /// For each of its [`connections`](RedisStoreBuilder::connections), the store clones a connection out of the pool,
    /// and another one after a loss. The program can use them as well, except for commands that block or change their
    /// state. The pool must lead to a single server, or to a proxy.
    ///
    /// The connections of [`new`](Self::new) are safer: the store notices immediately when the server closes them,
    /// sends unsent calls again, and extends deadlines [under load](crate::LimiterBuilder::deadline).
    ///
    /// ```no_run
    /// use tower_quota::redis::{RedisConnectionManager, bb8};
    /// use tower_quota::{QuotaPolicy, RateLimitLayer, RedisStore, key};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = RedisConnectionManager::new("redis://127.0.0.1/")?;
    /// let pool = bb8::Pool::builder().build(manager).await?;
    ///
    /// let layer = RateLimitLayer::builder(RedisStore::from_pool(pool).build()?)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .build()?;
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_pool(pool: bb8::Pool<RedisConnectionManager>) -> RedisStoreBuilder {
        static POOLS: AtomicU64 = AtomicU64::new(1);

        // Only identifies the pool.
        let url = format!("redis://pool-{}/", POOLS.fetch_add(1, Ordering::Relaxed));
        Self::builder(url).connect_with(move |_| {
            let pool = pool.clone();
            async move {
                match pool.get().await {
                    Ok(connection) => Ok(connection.clone()),
                    Err(RunError::User(error)) => Err(error),
                    Err(RunError::TimedOut) => Err((ErrorKind::Io, "no free connection in the pool").into()),
                }
            }
        })
    }

    /// Creates a store on a [Redis Cluster](Self#cluster) with nodes at `urls`, with default settings.
    ///
    /// Takes 1 to 64 URLs without Unix sockets and databases. The user, password and TLS setting must be the same in
    /// all URLs, and apply to all nodes.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let store = RedisStore::cluster(["redis://10.0.0.1:6379/", "redis://10.0.0.2:6379/"])?;
    ///
    /// let error = RedisStore::cluster(["redis://10.0.0.1:6379/1"]).unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: database 1 is not supported in a cluster");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), or an error if the URLs differ in user, password or TLS.
    pub fn cluster(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        Self::cluster_builder(urls).build()
    }

    /// Creates a builder for a store on a [Redis Cluster](Self#cluster).
    pub fn cluster_builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> RedisStoreBuilder {
        RedisStoreBuilder::at(Servers::Cluster, urls)
    }

    /// Creates a store on the primary of `service_name`, as reported by the [sentinels](Self#sentinel) at `urls`.
    ///
    /// Takes 1 to 64 URLs without Unix sockets. Their user, password and TLS setting apply only to the sentinels: see
    /// [`primary_url`](RedisStoreBuilder::primary_url).
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let store = RedisStore::sentinel(sentinels, "limits")?;
    ///
    /// let error = RedisStore::sentinel(sentinels, "").unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: the sentinels' service name is empty");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), or an error if the name is empty.
    pub fn sentinel(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        service_name: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        Self::sentinel_builder(urls, service_name).build()
    }

    /// Creates a builder for a store on the primary reported by [sentinels](Self#sentinel).
    pub fn sentinel_builder(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        service_name: impl Into<String>,
    ) -> RedisStoreBuilder {
        RedisStoreBuilder::at(Servers::Primary(service_name.into()), urls)
    }
}

impl RedisStoreBuilder {
    fn at(servers: Servers, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self {
            servers,
            urls: urls.into_iter().map(|url| url.as_ref().to_owned()).collect(),
            primary_url: None,
            prepare: None,
            connect: None,
            tls: TlsSettings::default(),
            connections: 2,
            connection_timeout: Duration::from_secs(1),
            key_prefix: keyspace::DEFAULT_PREFIX.to_owned(),
            clock: None,
            lease_time: Duration::from_secs(30),
            expiry_jitter: Duration::from_millis(scripts::EXPIRY_JITTER),
            one_slot_per_call: false,
            decisions_per_call: 32,
        }
    }

    /// Sets the number of shared connections, from 1 to 64; in a cluster, per node. Default: 2.
    ///
    /// More connections are seldom faster.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum number of concurrent decisions that share a script call, from 1 to 64. Default: 32.
    ///
    /// While more than two decisions per connection are in flight, a decision may wait for a shared call, normally for
    /// at most 2 ms. Other clients of the server wait while a shared call runs: lower the maximum if they are
    /// latency-critical. See [calls and connections](crate::docs::tuning#calls-and-connections) for the decisions that
    /// never share calls, and for overload.
    #[must_use]
    pub fn decisions_per_call(mut self, decisions: usize) -> Self {
        self.decisions_per_call = decisions;
        self
    }

    /// Sets the timeout for opening a connection, including TLS, login and queries to sentinels, from 10 ms to 60 s.
    /// Default: 1 s.
    ///
    /// After a quarter of the timeout, a second attempt starts in parallel. Requests have their own deadline.
    #[must_use]
    pub fn connection_timeout(mut self, connection_timeout: Duration) -> Self {
        self.connection_timeout = connection_timeout;
        self
    }

    /// Computes the user, password and address of each new connection, for [credentials that
    /// rotate](crate::docs::production#rotating-passwords-and-certificates) without a restart.
    ///
    /// `prepare` receives the settings from the URL. An error, a panic, or a call longer than
    /// [`connection_timeout`](Self::connection_timeout) counts as a failed attempt. Connections to sentinels do not use
    /// `prepare`. Default: the settings from the URL.
    ///
    /// ```
    /// use std::{future::ready, sync::{Arc, Mutex}};
    /// use tower_quota::RedisStore;
    ///
    /// let password = Arc::new(Mutex::new("first".to_owned()));
    /// let current = Arc::clone(&password);
    /// let store = RedisStore::builder("redis://limits.example/")
    ///     .connection_info_with(move |to| {
    ///         let password = current.lock().unwrap().clone();
    ///         let login = to.redis_settings().clone().set_username("limits").set_password(password);
    ///         ready(Ok(to.set_redis_settings(login)))
    ///     })
    ///     .build()?;
    ///
    /// // New connections log in with the second password.
    /// *password.lock().unwrap() = "second".to_owned();
    /// # drop(store);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn connection_info_with<F>(mut self, prepare: impl Fn(ConnectionInfo) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<ConnectionInfo, RedisError>> + Send + 'static,
    {
        self.prepare = Some(Arc::new(move |to| Box::pin(prepare(to))));
        self
    }

    /// Opens connections with a custom function, for example through a tunnel.
    ///
    /// `connect` receives the settings of the URL with the address of the server, cluster node or primary, and may
    /// change all of them. Failures and sentinels are treated as by
    /// [`connection_info_with`](Self::connection_info_with).
    ///
    /// The store cannot observe the sockets: a closed connection is only detected when a call fails, and the call is
    /// not retried. Set the server's `timeout` to 0, and no response timeout, because the layer has a deadline.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    /// use tower_quota::redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError};
    ///
    /// async fn fetch_token() -> Result<String, RedisError> {
    ///     Err((ErrorKind::Client, "the token service is unavailable").into())
    /// }
    ///
    /// let store = RedisStore::builder("redis://limits.example:6379/")
    ///     .connect_with(|to| async move {
    ///         let login = to.redis_settings().clone().set_username("limiter").set_password(fetch_token().await?);
    ///         let config = AsyncConnectionConfig::new().set_response_timeout(None);
    ///         let client = Client::open(to.set_redis_settings(login))?;
    ///         client.get_multiplexed_async_connection_with_config(&config).await
    ///     })
    ///     .build()?;
    /// # use tower_quota::{PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
    /// # let error = store.decide(plan).await.unwrap_err();
    /// # assert!(error.to_string().contains("the token service is unavailable"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn connect_with<F>(mut self, connect: impl Fn(ConnectionInfo) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<MultiplexedConnection, RedisError>> + Send + 'static,
    {
        self.connect = Some(Arc::new(move |to| Box::pin(connect(to))));
        self
    }

    /// Sets the TLS setting, user, password and database of the primary behind sentinels. Host and port are ignored.
    ///
    /// Default: `redis://primary/`. [`build`](Self::build) rejects this setting for stores without sentinels.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let sentinels = ["redis://:sentinels-password@10.0.0.1:26379/"];
    /// let store = RedisStore::sentinel_builder(sentinels, "limits")
    ///     .primary_url("redis://limiter:password@primary/2")
    ///     .build()?;
    /// # drop(store);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn primary_url(mut self, url: impl Into<String>) -> Self {
        self.primary_url = Some(url.into());
        self
    }

    /// Sets whether plans with several partitions are sent in one call per partition. Default: `false`.
    ///
    /// Required behind a proxy that distributes keys among several servers and respects the hash tag, `{…}`: it may
    /// otherwise reject these plans, or count them on servers where later calls do not find the charges. Plans with
    /// several partitions are then not atomic, as in a [cluster](RedisStore#cluster), which does not need this setting.
    /// [`Limiter::ready`](crate::Limiter::ready) then accepts nodes of a cluster, and proxies without `INFO` and
    /// `TIME`.
    #[must_use]
    pub fn one_slot_per_call(mut self, one_slot_per_call: bool) -> Self {
        self.one_slot_per_call = one_slot_per_call;
        self
    }

    /// Sets the prefix of all keys, up to 64 bytes without `{` and `}`. Default: `quota:`.
    ///
    /// Stores with different prefixes share no quota. See [permissions](crate::docs::production#permissions) for the
    /// ACL user.
    #[must_use]
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
        self
    }

    /// Sets the lease time of slots, from 1 s to 24 h. Default: 30 s.
    ///
    /// Instances renew their leases three times per lease time. If an instance crashes, or cannot reach Redis for this
    /// time, its slots are released. After reconnecting, it acquires them again, even above the limit.
    #[must_use]
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = lease_time;
        self
    }

    /// Sets the maximum random delay of the expiry of keys after their last window has ended, from 0 s to 1 h. Default:
    /// 1 min.
    ///
    /// Windows of all callers end at the same time, and expiring a million keys at once blocks Redis for seconds. Use a
    /// longer delay for daily windows with several million callers. The delay is at most the remaining lifetime of the
    /// key; keys of buckets, logs and slots have none.
    #[must_use]
    pub fn expiry_jitter(mut self, longest: Duration) -> Self {
        self.expiry_jitter = longest;
        self
    }

    /// Sets a clock that replaces the clock of the Redis server, for tests. Default: the server's clock.
    ///
    /// Not for production: instances whose clocks differ do not share limits correctly. Keys still expire by the
    /// server's clock: if `clock` does not advance for longer than a window, its counts may be lost.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    /// use tower_quota::clock::{Clock, Timestamp};
    ///
    /// // Each test has its own prefix. To move on to the next window, it calls `clock.advance`.
    /// let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    /// let store = RedisStore::builder("redis://127.0.0.1/")
    ///     .key_prefix("test 7:")
    ///     .clock(clock.clone())
    ///     .build()?;
    /// # drop(store);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the store, without waiting for a connection.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`RedisStore::new`], or an error if a setting is out of range or does not apply to this
    /// kind of store.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        self.check()?;
        let topology = self.topology()?;
        let identity = self.identity();
        let decisions_per_call = match topology {
            Topology::Single {
                one_slot_per_call: false,
                ..
            } => self.decisions_per_call,
            _ => 1,
        };
        Ok(RedisStore(Arc::new(Engine {
            server: Arc::new(Server {
                topology,
                identity,
                keyspace: Keyspace(self.key_prefix),
                time: ServerTime::new(self.clock.clone()),
                clock: self.clock,
                texts: Script::texts(self.expiry_jitter),
                lease_time: self.lease_time,
                leases: Leases::default(),
                order: Order::default(),
                renewing: tokio::sync::Mutex::default(),
                settling: watch::Sender::default(),
                unsettled: UnsettledTelemetry::default(),
                paused_until: AtomicU64::default(),
            }),
            jobs: Mutex::default(),
            shared_calls: SharedCalls::new(decisions_per_call, self.connections),
        })))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let timeouts = Duration::from_millis(10)..=Duration::from_secs(60);
        let lease_times = Duration::from_secs(1)..=Duration::from_secs(86_400);
        check_range("connections", self.connections, 1..=64)?;
        check_range("connection_timeout", self.connection_timeout, timeouts)?;
        check_range("decisions_per_call", self.decisions_per_call, 1..=64)?;
        check_range("lease_time", self.lease_time, lease_times)?;
        check_range(
            "expiry_jitter",
            self.expiry_jitter,
            Duration::ZERO..=Duration::from_secs(3_600),
        )?;
        let prefix = &self.key_prefix;
        if prefix.len() > 64 || prefix.contains(['{', '}']) {
            let message = format!("key_prefix {prefix:?} is longer than 64 bytes or contains a brace");
            return Err(error(message));
        }
        if self.primary_url.is_some() && !matches!(self.servers, Servers::Primary(_)) {
            return Err(error("primary_url requires sentinels"));
        }
        Ok(())
    }

    fn topology(&self) -> Result<Topology, ConfigError> {
        let opener = Opener {
            timeout: self.connection_timeout,
            prepare: self.prepare.clone(),
            connect: self.connect.clone(),
            tls: self.tls.clone(),
        };
        let endpoint = match &self.servers {
            Servers::Single => Endpoint::Address(Box::new(connection_info(&self.urls[0])?)),
            Servers::Primary(service) => Endpoint::Primary(Arc::new(self.sentinels(service)?)),
            Servers::Cluster => {
                return Ok(Topology::Cluster(Cluster::new(ClusterSettings {
                    seeds: self.seeds()?,
                    opener,
                    connections: self.connections,
                })));
            }
        };
        Ok(Topology::Single {
            pool: Pool::new(endpoint, opener, self.connections),
            one_slot_per_call: self.one_slot_per_call,
        })
    }

    /// Credentials may differ.
    fn identity(&self) -> u64 {
        let urls = self.urls.iter().chain(&self.primary_url);
        let infos = urls.filter_map(|url| connection_info(url).ok());
        let mut places: Vec<(String, i64)> = infos
            .map(|info| (info.addr().to_string(), info.redis_settings().db()))
            .collect();
        places.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (&self.servers, places, &self.key_prefix).hash(&mut hasher);
        hasher.finish()
    }

    fn sentinels(&self, service: &str) -> Result<Sentinels, ConfigError> {
        if service.is_empty() {
            return Err(error("the sentinels' service name is empty"));
        }
        let primary = self.primary_url.as_deref().unwrap_or("redis://primary/");
        Ok(Sentinels {
            sentinels: self.infos("sentinels")?,
            service: service.to_owned(),
            primary: connection_info(primary)?,
        })
    }

    fn seeds(&self) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let seeds = self.infos("nodes of a cluster")?;
        for seed in &seeds {
            let (first, settings) = (seeds[0].redis_settings(), seed.redis_settings());
            if settings.db() != 0 {
                return Err(error(format!(
                    "database {} is not supported in a cluster",
                    settings.db()
                )));
            }
            let is_same_user = (settings.username(), settings.password()) == (first.username(), first.password());
            let is_same_kind = std::mem::discriminant(seed.addr()) == std::mem::discriminant(seeds[0].addr());
            if !is_same_user || !is_same_kind {
                return Err(error(
                    "the URLs of a cluster must have the same user, password and TLS setting",
                ));
            }
        }
        Ok(seeds)
    }

    fn infos(&self, what: &str) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let count = self.urls.len();
        if !(1..=64).contains(&count) {
            return Err(error(format!("number of URLs of {what}: {count} is outside 1..=64")));
        }
        let info = |url: &String| {
            let info = connection_info(url)?;
            if matches!(info.addr(), ConnectionAddr::Unix(_)) {
                return Err(error(format!("{what} cannot be Unix sockets")));
            }
            Ok(info)
        };
        self.urls.iter().map(info).collect()
    }
}

fn check_range<T: PartialOrd + fmt::Debug>(name: &str, value: T, range: RangeInclusive<T>) -> Result<(), ConfigError> {
    ConfigError::check_range(
        ConfigErrorKind::Store,
        format_args!("redis store: {name}"),
        value,
        range,
    )
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("connections", &self.connections)
            .field("connection_timeout", &self.connection_timeout)
            .field("key_prefix", &self.key_prefix)
            .finish_non_exhaustive()
    }
}

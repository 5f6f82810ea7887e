//! Settings of a store, checked before anything is connected.

use std::{
    fmt,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use ::redis::{ConnectionAddr, ConnectionInfo, RedisError, aio::MultiplexedConnection};
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

/// Settings of a [`RedisStore`]. All have a default, and are checked when the store is built, before anything connects.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{RedisStore, RedisStoreBuilder};
///
/// let builder = || RedisStore::builder("redis://10.0.0.1/");
/// let store = builder()
///     .connections(4)
///     .connection_timeout(Duration::from_millis(500))
///     .decisions_per_call(8)
///     .key_prefix("staging:")
///     .lease_time(Duration::from_secs(60))
///     .expiry_jitter(Duration::from_secs(300))
///     .build()?;
/// assert_eq!(format!("{store:?}"), r#"RedisStore { key_prefix: "staging:", .. }"#);
///
/// let error = |builder: RedisStoreBuilder| builder.build().unwrap_err().to_string();
/// assert_eq!(error(builder().connections(65)), "redis store: connections 65 is outside 1..=64");
/// assert_eq!(error(builder().decisions_per_call(0)), "redis store: decisions_per_call 0 is outside 1..=64");
/// let error_of_timeout = error(builder().connection_timeout(Duration::from_secs(90)));
/// assert_eq!(error_of_timeout, "redis store: connection_timeout 90s is outside 10ms..=60s");
/// let error_of_lease = error(builder().lease_time(Duration::from_millis(999)));
/// assert_eq!(error_of_lease, "redis store: lease_time 999ms is outside 1s..=86400s");
/// let error_of_jitter = error(builder().expiry_jitter(Duration::from_secs(3_601)));
/// assert_eq!(error_of_jitter, "redis store: expiry_jitter 3601s is outside 0ns..=3600s");
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
    polls_info: bool,
}

/// The servers that keep the quota.
#[derive(Clone, Hash)]
enum Servers {
    /// One, of the only URL.
    Single,
    Cluster,
    /// The primary that sentinels know by this name.
    Primary(String),
}

impl RedisStore {
    /// A store on the Redis at `url`, with default settings.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// assert!(RedisStore::new("redis://10.0.0.1/").is_ok());
    /// assert!(RedisStore::new("redis+unix:///run/redis.sock").is_ok());
    /// assert!(RedisStore::new("10.0.0.1:6379").is_err());
    ///
    /// let error = RedisStore::new("localhost:6379").unwrap_err().to_string();
    /// assert!(error.starts_with(r#"redis store: the URL "localhost:6379" has to begin with "redis://""#));
    ///
    /// // Neither the error nor the store shows a password.
    /// let error = RedisStore::new("redis://limiter:secret@10.0.0.1:port/").unwrap_err();
    /// assert!(!error.to_string().contains("secret"));
    /// ```
    ///
    /// # Errors
    ///
    /// If the URL is not understood, or asks for TLS that this program has not set up. It is no error if nothing
    /// listens at the URL.
    pub fn new(url: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self::builder(url).build()
    }

    /// A store with settings of your own; the URL is checked when it is [built](RedisStoreBuilder::build).
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let builder = RedisStore::builder("http://10.0.0.1/").connections(4);
    /// assert!(builder.build().is_err());
    /// ```
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::at(Servers::Single, [url])
    }

    /// A store on the [Redis Cluster](Self#cluster) that has nodes at `urls`, with default settings.
    ///
    /// A few nodes are enough, from 1 to 64; they say who the others are. All URLs have the same user, password and TLS,
    /// which are those of all nodes, and no database.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let store = RedisStore::cluster(["redis://10.0.0.1:6379/", "redis://10.0.0.2:6379/"])?;
    ///
    /// let error = RedisStore::cluster(["redis://10.0.0.1:6379/1"]).unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: a cluster has no database 1");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a URL is not understood, asks for TLS that this program has not set up, or does not go with the others. It is
    /// no error if nothing listens at any of them.
    pub fn cluster(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        Self::cluster_builder(urls).build()
    }

    /// A store on a [Redis Cluster](Self#cluster), with settings of your own.
    ///
    /// ```
    /// use tower_quota::{RedisStore, Store};
    ///
    /// let store = RedisStore::cluster_builder(["redis://10.0.0.1/", "redis://10.0.0.2/"]).connections(1).build()?;
    /// assert!(store.traits().has_own_breakers(), "one for each node");
    ///
    /// let differ = ["redis://10.0.0.1/", "redis://:password@10.0.0.2/"];
    /// let error = RedisStore::cluster_builder(differ).build().unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: the URLs of a cluster differ in user, password or TLS");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn cluster_builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> RedisStoreBuilder {
        RedisStoreBuilder::at(Servers::Cluster, urls)
    }

    /// A store on whichever Redis the [sentinels](Self#sentinel) at `urls` call the primary of the service `service_name`,
    /// with default settings.
    ///
    /// From 1 to 64 URLs, which say how to speak to the sentinels themselves; a primary that wants a password or has
    /// another database than 0 needs [`primary_url`](RedisStoreBuilder::primary_url).
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let store = RedisStore::sentinel(sentinels, "limits")?;
    ///
    /// let error = RedisStore::sentinel(sentinels, "").unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: the name of the sentinels' service is empty");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a URL is not understood or asks for TLS that this program has not set up, or the name is empty. It is no error
    /// if nothing listens at any of the URLs.
    pub fn sentinel(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        service_name: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        Self::sentinel_builder(urls, service_name).build()
    }

    /// A store on the primary that [sentinels](Self#sentinel) name, with settings of your own. See
    /// [`primary_url`](RedisStoreBuilder::primary_url) for an example with a password.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let none: [&str; 0] = [];
    /// let error = RedisStore::sentinel_builder(none, "limits").connections(4).build().unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: 0 URLs of sentinels are outside 1..=64");
    /// ```
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
            polls_info: false,
        }
    }

    /// Sets the number of connections that all requests share, from 1 to 64; in a cluster, to each node. Default: 2.
    ///
    /// More are seldom faster: requests are pipelined, and the server does one thing at a time.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum number of concurrent decisions that share a call of the script, from 1 to 64.
    /// Default: 32.
    ///
    /// Each is decided for itself, with the answer that it would get alone. Fewer than this number share a call if they have
    /// more than 256 policies together, where a sliding window log counts as eight. Calls are shared only while more than two for
    /// each connection are in flight; a decision then waits until one of them returns, at most about 3 ms. It spares the
    /// server and the process work when there are many at once. A call takes the server some 5 µs for each decision, and
    /// other clients of the server wait for all of it. At most twelve calls for each connection are in flight: where the
    /// server is far away, an instance makes up to `12 × connections × decisions` in a round trip.
    ///
    /// Above the throughput of the server, decisions that would miss the layer's deadline fail as
    /// [`Overloaded`](crate::StoreErrorKind::Overloaded), and the server is not asked for them.
    ///
    /// Decisions about more than four partitions or sixteen policies, and those that take slots of concurrent requests, go
    /// alone. With 1 all do, and also in a cluster and with [`one_slot_per_call`](Self::one_slot_per_call).
    #[must_use]
    pub fn decisions_per_call(mut self, decisions: usize) -> Self {
        self.decisions_per_call = decisions;
        self
    }

    /// Sets the time limit for opening a connection, TLS and password included, from 10 ms to 60 s. Default: 1 s.
    ///
    /// No request waits that long: its own deadline ends earlier, and the connection is opened in the background. With
    /// sentinels, it includes asking them. After a quarter of it, a second attempt begins beside the first one, which may
    /// have lost a packet.
    ///
    /// It says nothing of connections that are open. One on which three calls in a row got no reply is replaced. On Linux,
    /// the kernel ends one whose data was not acknowledged for 75 s (`TCP_USER_TIMEOUT`): longer than the longest
    /// [`deadline`](crate::LimiterBuilder::deadline), within which a server that hangs may go on.
    #[must_use]
    pub fn connection_timeout(mut self, connection_timeout: Duration) -> Self {
        self.connection_timeout = connection_timeout;
        self
    }

    /// Computes user, password and address of each new connection, which the store then opens itself.
    ///
    /// Use this for passwords and tokens that change without a restart. The function is called for each connection to a
    /// server, the first ones and those that replace broken ones, with the settings from the URL, and returns them changed. An
    /// error, a panic, or more time than the [`connection_timeout`](Self::connection_timeout) is an attempt that failed. It is
    /// not called for connections to sentinels. Default: the settings from the URL.
    ///
    /// Redis leaves open connections logged in when it learns of a new password. If it closes them, a call that finds its
    /// connection closed goes to another one, so no request is undecided. Only calls that were in flight at that moment are.
    /// For the steps of a rotation, see [`docs::production`](crate::docs::production).
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
    /// // From now on, new connections log in with the second one.
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

    /// Replaces the way in which connections are opened: for tunnels, and for what
    /// [`connection_info_with`](Self::connection_info_with) and `tls_config` cannot set.
    ///
    /// The function is called for each connection, the first ones and those that replace broken ones, and told where it
    /// has to lead and what the URL says of user, password, database and TLS: the server, a node of the cluster, or the
    /// server that a sentinel has named. It may change all of that. An error, a panic, or more time than the
    /// [`connection_timeout`](Self::connection_timeout) is an attempt that failed; the next request tries again, spaced
    /// out by a circuit breaker, and so does the store in the background. Connections to sentinels are not opened by it.
    ///
    /// The store cannot look into a connection that the function has opened. It learns of the end of such a connection from
    /// the first call on it that fails, and that call is not repeated, because it is not known if it was sent. If the server
    /// closes idle connections, set its `timeout` to 0. What a reply has to look like is checked as always.
    ///
    /// A connection by [`AsyncConnectionConfig`](crate::redis::AsyncConnectionConfig) should have no response timeout: the
    /// deadline of the layer says how long a request waits.
    ///
    /// ```
    /// use tower_quota::{
    ///     RedisStore, Store, StoreErrorKind,
    ///     redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError},
    /// };
    /// # use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope};
    ///
    /// async fn fetch_token() -> Result<String, RedisError> {
    ///     Err((ErrorKind::Client, "the token service is unavailable").into())
    /// }
    ///
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
    /// # tokio_test::block_on(async {
    /// let store = RedisStore::builder("redis://limits.example:6379/")
    ///     .connect_with(|to| async move {
    ///         let login = to.redis_settings().clone().set_username("limiter").set_password(fetch_token().await?);
    ///         let config = AsyncConnectionConfig::new().set_response_timeout(None);
    ///         let client = Client::open(to.set_redis_settings(login))?;
    ///         client.get_multiplexed_async_connection_with_config(&config).await
    ///     })
    ///     .build()?;
    ///
    /// let error = store.decide(plan).await.unwrap_err();
    /// assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    /// assert!(error.to_string().contains("the token service is unavailable"));
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

    /// Sets TLS, user, password and database for the primary that sentinels name, from this URL; its host and port
    /// are not used. Default: `redis://primary/`, none of these.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let store = RedisStore::sentinel_builder(["redis://:sentinels-password@10.0.0.1:26379/"], "limits")
    ///     .primary_url("redis://limiter:password@primary/2")
    ///     .build()?;
    ///
    /// let error = RedisStore::builder("redis://127.0.0.1/").primary_url("redis://primary/2").build().unwrap_err();
    /// assert_eq!(error.to_string(), "redis store: a primary_url is for a store with sentinels");
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn primary_url(mut self, url: impl Into<String>) -> Self {
        self.primary_url = Some(url.into());
        self
    }

    /// Asks for partitions one by one, if true, because what looks like one server keeps its keys on several. Default:
    /// they are not.
    ///
    /// You want it behind Envoy, Twemproxy, and the proxies of hosted services. They send a script to the server of its
    /// first key, and know nothing of the others; keys of one partition have the same hash tag, `{…}`, which the proxy
    /// has to observe. A plan with several partitions is then several calls, and as little atomic as in a
    /// [cluster](RedisStore#cluster), which does the same without being told. A plan with one partition is one call, as
    /// always.
    ///
    /// Without it, such a proxy answers a plan with several partitions with an error, or has it counted where later calls
    /// do not look.
    ///
    /// ```no_run
    /// use tower_quota::{PolicySet, Outcome, PartitionKey, Plan, QuotaPolicy, RedisStore, Scope, Store};
    ///
    /// # tokio_test::block_on(async {
    /// let envoy = RedisStore::builder("redis://envoy.internal/").one_slot_per_call(true).build()?;
    ///
    /// let policies = |name| PolicySet::new([QuotaPolicy::per_hour(name, 5)]);
    /// let of = |kind, name: &str| Scope::new("mails").partition(&PartitionKey::new(kind, name.as_bytes()));
    /// let plan = Plan::new(policies("user")?, of("user", "alice"), 1).and(policies("address")?, of("ip", "10.9.9.9"));
    /// assert_eq!(envoy.decide(plan).await?.outcome(), Outcome::Allowed);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn one_slot_per_call(mut self, one_slot_per_call: bool) -> Self {
        self.one_slot_per_call = one_slot_per_call;
        self
    }

    /// Polls each server with `INFO` when the store connects and then about once a minute, to report its memory and evictions.
    ///
    /// Use this to be warned before Redis is full, and if it evicts keys: both let callers exceed their limits. The results
    /// are [metrics](crate::telemetry) and events; the numbers include the keys of other programs. Each poll opens a connection
    /// of its own, which makes no decisions. An ACL user needs `+info`. If the server rejects the command, one event says
    /// so and the polls end; decisions are not affected. Default: `false`.
    ///
    /// ```
    /// let store = tower_quota::RedisStore::builder("redis://10.0.0.1/").poll_server_info(true).build()?;
    /// # drop(store);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn poll_server_info(mut self, enabled: bool) -> Self {
        self.polls_info = enabled;
        self
    }

    /// Sets the prefix of all keys, up to 64 bytes without `{` and `}`. Default: `quota:`.
    ///
    /// Stores with different prefixes share no quota. An ACL user needs this prefix and the commands `EVAL`, `EVALSHA`,
    /// `TIME`, `GET`, `SET`, `SETRANGE`, `DEL`; for sliding window logs and concurrent requests also `ZADD`, `ZCARD`,
    /// `ZCOUNT`, `ZRANGE`, `ZRANGEBYSCORE`, `ZRANK`, `ZREM`, `ZREMRANGEBYRANK`, `PEXPIRE`; `UNLINK` for
    /// [`reset`](crate::Store::reset); `CLUSTER|SLOTS` in a cluster, and `ROLE` with sentinels.
    ///
    /// ```
    /// use tower_quota::RedisStore;
    ///
    /// let error = RedisStore::builder("redis://10.0.0.1/").key_prefix("{eu}:").build().unwrap_err();
    /// assert_eq!(error.to_string(), r#"redis store: key_prefix "{eu}:" is longer than 64 bytes or holds a brace"#);
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
        self
    }

    /// Sets the time after which the slot of a crashed holder is free again, from 1 s to 24 h.
    /// Default: 30 s.
    ///
    /// Live holders renew their leases three times in this time, in batches. A holder that cannot reach Redis for longer
    /// loses its slots there, and takes them again, whether or not the limit has been reached meanwhile, once it can.
    #[must_use]
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = lease_time;
        self
    }

    /// Sets the longest time for which the key of a caller lives on after its last window has ended, from 0 to an hour.
    /// Default: a minute.
    ///
    /// Fixed and sliding windows of all callers end at one moment. Were their keys to expire at one moment, a million of
    /// them would keep the server from its work for seconds: `benches/README.md` has the figures. So each key lives on for
    /// a time by chance, up to this one, but never for longer than it had to live when it was written. What it holds
    /// counts as none meanwhile. The keys of buckets end at different moments anyway, and those of logs and of
    /// slots do, too: they get none.
    ///
    /// You want more for windows of a day and several million callers, and less where memory is short: at most, a window of
    /// some seconds doubles the life of its keys. Instances with different times may run side by side.
    #[must_use]
    pub fn expiry_jitter(mut self, longest: Duration) -> Self {
        self.expiry_jitter = longest;
        self
    }

    /// A clock to use instead of the server's, for tests. Default: the server's, which is what you want in production.
    /// Instances whose clocks differ do not enforce a limit together.
    ///
    /// Keys expire by the server's own clock all the same: a clock that stands still for longer than a window takes may
    /// find them gone.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_quota::{Outcome, RedisStore, Store, clock::{Clock, Timestamp}};
    /// # use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope};
    ///
    /// # tokio_test::block_on(async {
    /// # let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 1)])?;
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// # let plan = || Plan::new(policies.clone(), alice, 1);
    /// let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    /// let store = RedisStore::builder("redis://127.0.0.1/").key_prefix("test 7:").clock(clock.clone()).build()?;
    /// assert_eq!(store.decide(plan()).await?.outcome(), Outcome::Allowed);
    /// assert_eq!(store.decide(plan()).await?.outcome(), Outcome::Rejected);
    ///
    /// clock.advance(Duration::from_secs(3_600));
    /// assert_eq!(store.decide(plan()).await?.outcome(), Outcome::Allowed);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or for another kind of store, a URL is not understood, or it asks for TLS that
    /// this program has not set up.
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
                renewing: watch::Sender::default(),
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
            let message = format!("key_prefix {prefix:?} is longer than 64 bytes or holds a brace");
            return Err(error(message));
        }
        if self.primary_url.is_some() && !matches!(self.servers, Servers::Primary(_)) {
            return Err(error("a primary_url is for a store with sentinels"));
        }
        Ok(())
    }

    fn topology(&self) -> Result<Topology, ConfigError> {
        let opener = Opener {
            timeout: self.connection_timeout,
            prepare: self.prepare.clone(),
            connect: self.connect.clone(),
            tls: self.tls.clone(),
            polls_info: self.polls_info,
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

    /// A number for the servers and the prefix of keys, whatever the credentials.
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
            return Err(error("the name of the sentinels' service is empty"));
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
                return Err(error(format!("a cluster has no database {}", settings.db())));
            }
            let is_same_user = (settings.username(), settings.password()) == (first.username(), first.password());
            let is_same_kind = std::mem::discriminant(seed.addr()) == std::mem::discriminant(seeds[0].addr());
            if !is_same_user || !is_same_kind {
                return Err(error("the URLs of a cluster differ in user, password or TLS"));
            }
        }
        Ok(seeds)
    }

    fn infos(&self, what: &str) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let count = self.urls.len();
        if !(1..=64).contains(&count) {
            return Err(error(format!("{count} URLs of {what} are outside 1..=64")));
        }
        let info = |url: &String| {
            let info = connection_info(url)?;
            if matches!(info.addr(), ConnectionAddr::Unix(_)) {
                return Err(error(format!("{what} have no socket in the file system")));
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

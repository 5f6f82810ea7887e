//! Quota kept in Redis, shared by all instances of a service.

mod client;
mod connection;
mod keyspace;
mod leases;
mod pool;
mod script;
mod settlements;
mod shared_calls;

use std::{fmt, sync::Arc, time::Duration};

use self::{
    connection::store_error,
    keyspace::{Keys, Keyspace},
    leases::Leases,
    pool::Connections,
    script::Call,
    settlements::{Job, Settlements},
    shared_calls::{SharedCalls, Way, together},
};
use super::{AcquireFuture, Store, StoreFuture};
use crate::{
    clock::{Clock, Timestamp},
    decision::Decision,
    error::{ConfigError, ConfigErrorKind, StoreError},
    lease::LeaseId,
    plan::Plan,
    settlement::Settlement,
};

/// Keeps quota in Redis, so that any number of instances enforce one limit.
///
/// Each decision is one call of one Lua script: all windows of a caller are read, checked and charged together, by the
/// server's clock. A caller's state is one key, and another for each sliding window log and limit of concurrent requests.
/// All expire by themselves when the caller no longer differs from one never seen. Redis 5 or newer, or Valkey; no modules.
///
/// Requests share a few connections and are pipelined on them; many at once share
/// [calls](RedisStoreBuilder::decisions_per_call) as well. Making a store waits for no connection: a service can be
/// started while Redis is away, and limits once it is there. Clones share the connections.
///
/// An [`acquire`](Store::acquire) that was sent and not answered is never repeated, because it may have been carried
/// out. The store itself keeps no time; the layer's deadline, circuit breaker and [`FailureMode`](crate::FailureMode)
/// stand around it.
///
/// ```
/// use tower_quota::RedisStore;
///
/// let store = RedisStore::new("redis://:password@127.0.0.1:6379/0")?;
///
/// let error = RedisStore::new("http://127.0.0.1/").unwrap_err();
/// assert!(error.to_string().starts_with("redis store: the URL is not understood"));
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
///
/// # URLs
///
/// `redis://[user[:password]@]host[:port][/database]`, the same with `rediss:` for TLS (feature `redis-rustls`), and
/// `redis+unix:///path/to/socket`. With TLS the program has to install a rustls crypto provider first: without one
/// `new` returns an error.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    server: Arc<Server>,
    settlements: Settlements,
    shared_calls: SharedCalls,
}

/// What is needed to speak with the server.
struct Server {
    connections: Connections,
    keyspace: Keyspace,
    clock: Option<Clock>,
    lease_time: Duration,
    leases: Leases,
}

impl Server {
    /// The time of a test; otherwise the server knows it.
    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(Clock::now)
    }
}

impl RedisStore {
    /// A store on the Redis at `url`, with default settings.
    ///
    /// # Errors
    ///
    /// If the URL is not understood, or asks for TLS that this program has not set up. It is no error if nothing
    /// listens at the URL.
    pub fn new(url: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self::builder(url).build()
    }

    /// A store with settings of your own.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.as_ref().to_owned(),
            connections: 2,
            connection_timeout: Duration::from_secs(1),
            key_prefix: keyspace::DEFAULT_PREFIX.to_owned(),
            clock: None,
            lease_time: Duration::from_secs(30),
            decisions_per_call: 32,
        }
    }
}

impl Inner {
    async fn acquire(&self, plan: Plan) -> Result<Decision, StoreError> {
        match self.shared_calls.way(&self.server, plan) {
            Way::Alone(plan, _under_way) => self.acquire_alone(plan).await,
            Way::Together(answered, _under_way) => together(answered).await,
        }
    }

    async fn acquire_alone(&self, plan: Plan) -> Result<Decision, StoreError> {
        let server = &*self.server;
        let lease = plan.takes_slots().then(LeaseId::unique);
        let call = {
            let lease = lease.map(|lease| (lease, server.lease_time));
            Call::acquire(&server.keyspace, &plan, lease, server.now())
        };
        let mut connection = server.connections.get().await?;
        let in_flight = lease.map(|lease| InFlight::new(self, &plan, lease));
        let reply = call.send(&mut connection).await.map_err(store_error)?;
        let decision = script::decode(plan, lease, &reply)?;
        if let Some(in_flight) = in_flight {
            in_flight.answered(&decision);
        }
        Ok(decision)
    }

    async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let mut connection = self.server.connections.get().await?;
        let mut command = ::redis::cmd("UNLINK");
        for key in self.server.keyspace.windows(&plan) {
            command.arg(&*key);
        }
        connection.send(&command).await.map(drop).map_err(store_error)
    }
}

/// A call that takes slots. Whoever gives it up does not know whether it has taken them, so they are released by name.
struct InFlight<'a> {
    store: &'a Inner,
    slots: Option<(LeaseId, Keys)>,
}

impl<'a> InFlight<'a> {
    fn new(store: &'a Inner, plan: &Plan, lease: LeaseId) -> Self {
        let keys = store.server.keyspace.slots(plan);
        Self {
            store,
            slots: Some((lease, keys)),
        }
    }

    fn answered(mut self, decision: &Decision) {
        if let Some((lease, keys)) = self.slots.take()
            && decision.receipt().is_some()
        {
            let taken = decision.takes_slots();
            let keys: Keys = keys
                .into_iter()
                .zip(taken)
                .filter_map(|(key, is_taken)| is_taken.then_some(key))
                .collect();
            self.store.server.leases.hold(lease, keys);
            self.store.settlements.start(&self.store.server);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some((lease, keys)) = self.slots.take() {
            self.store
                .settlements
                .send(&self.store.server, Job::Abandon { lease, keys });
        }
    }
}

impl Store for RedisStore {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        let inner = Arc::clone(&self.0);
        AcquireFuture::boxed(async move { inner.acquire(plan).await })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let Inner {
            server, settlements, ..
        } = &*self.0;
        if let Some(lease) = settlement.released() {
            server.leases.release(lease);
        }
        settlements.settle(server, settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        let inner = Arc::clone(&self.0);
        StoreFuture::boxed(async move { inner.reset(plan).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL holds the password, and the connections hold the URL.
        f.debug_struct("RedisStore")
            .field("key_prefix", &self.0.server.keyspace.prefix)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`RedisStore`].
#[derive(Clone)]
pub struct RedisStoreBuilder {
    url: String,
    connections: u32,
    connection_timeout: Duration,
    key_prefix: String,
    clock: Option<Clock>,
    lease_time: Duration,
    decisions_per_call: usize,
}

impl RedisStoreBuilder {
    /// How many connections all requests share, from 1 to 64. Default: 2.
    ///
    /// More are seldom faster: requests are pipelined, and the server does one thing at a time.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// How many decisions that are asked for at the same moment may share a call of the script, from 1 to 64.
    /// Default: 32.
    ///
    /// Each is decided for itself, with the answer that it would get alone, and no decision waits for others to come:
    /// calls are shared only while as many are under way as the connections take. It spares the server and the process
    /// work when there are many at once. A call takes the server some 5 µs for each decision, and other
    /// clients of the server wait for all of it. Decisions about several partitions, and those that take slots of
    /// concurrent requests, go alone. With 1 all do.
    #[must_use]
    pub fn decisions_per_call(mut self, decisions: usize) -> Self {
        self.decisions_per_call = decisions;
        self
    }

    /// How long opening a connection may take, TLS and password included, from 10 ms to 60 s. Default: 1 s.
    ///
    /// No request waits that long: its own deadline ends earlier, and the connection is opened in the background.
    /// Data that the server's side does not acknowledge for this time ends a connection, too.
    #[must_use]
    pub fn connection_timeout(mut self, connection_timeout: Duration) -> Self {
        self.connection_timeout = connection_timeout;
        self
    }

    /// What the names of all keys begin with, up to 64 bytes without `{` and `}`. Default: `quota:`.
    ///
    /// Stores with different prefixes share no quota. An ACL user needs this prefix and the commands `EVAL`, `EVALSHA`,
    /// `TIME`, `GET`, `SET`, `SETRANGE`, `DEL`; for sliding window logs and concurrent requests also `ZADD`, `ZCARD`,
    /// `ZCOUNT`, `ZRANGE`, `ZRANGEBYSCORE`, `ZRANK`, `ZREM`, `ZREMRANGEBYSCORE`, `PEXPIRE`; and `UNLINK` for
    /// [`reset`](Store::reset).
    #[must_use]
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
        self
    }

    /// How long a slot of a limit of concurrent requests stays taken when its holder has crashed, from 1 s to 24 h.
    /// Default: 30 s.
    ///
    /// Live holders renew their leases three times in this time, in batches. A holder that cannot reach Redis for longer
    /// loses its slots there, and takes them again, whether or not the limit has been reached meanwhile, once it can.
    #[must_use]
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = lease_time;
        self
    }

    /// A clock to use instead of the server's, for tests. Instances whose clocks differ do not enforce a limit
    /// together.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, the URL is not understood, or it asks for TLS that this program has not set
    /// up.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        let error = |message: String| {
            Err(ConfigError::new(
                ConfigErrorKind::Store,
                format!("redis store: {message}"),
            ))
        };
        if !(1..=64).contains(&self.connections) {
            return error(format!("connections {} is outside 1..=64", self.connections));
        }
        let timeout = self.connection_timeout;
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&timeout) {
            return error(format!("connection_timeout {timeout:?} is outside 10ms..=60s"));
        }
        if !(1..=64).contains(&self.decisions_per_call) {
            return error(format!(
                "decisions_per_call {} is outside 1..=64",
                self.decisions_per_call
            ));
        }
        if self.key_prefix.len() > 64 || self.key_prefix.contains(['{', '}']) {
            return error(format!(
                "key_prefix {:?} is longer than 64 bytes or holds a brace",
                self.key_prefix
            ));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&self.lease_time) {
            return error(format!("lease_time {:?} is outside 1s..=86400s", self.lease_time));
        }
        let connections = Connections::new(&self.url, self.connections, timeout)?;
        Ok(RedisStore(Arc::new(Inner {
            server: Arc::new(Server {
                connections,
                keyspace: Keyspace {
                    prefix: self.key_prefix,
                },
                clock: self.clock,
                lease_time: self.lease_time,
                leases: Leases::default(),
            }),
            settlements: Settlements::default(),
            shared_calls: SharedCalls::new(self.decisions_per_call, self.connections),
        })))
    }
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

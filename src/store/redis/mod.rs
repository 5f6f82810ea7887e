//! Quota kept in Redis, shared by all instances of a service.

mod client;
mod connection;
mod keyspace;
mod pool;
mod script;

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{ErrorKind, ServerErrorKind, Value};

use self::{connection::store_error, pool::Connections};
use super::{AcquireFuture, Store};
use crate::{
    clock::Clock,
    decision::Decision,
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
    plan::Plan,
};

/// Keeps quota in Redis, so that any number of instances enforce one limit.
///
/// Each decision is one call of one Lua script: all windows of a caller are read, checked and charged together, by the
/// server's clock. A caller's state is one key that expires by itself at the moment when it no longer differs from that
/// of a caller never seen. Redis 5 or newer, or Valkey; no modules.
///
/// Requests share a few connections and are pipelined on them. Making a store waits for no connection: a service can be
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
    connections: Connections,
    key_prefix: String,
    clock: Option<Clock>,
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
        }
    }
}

impl Inner {
    async fn acquire(&self, plan: Plan) -> Result<Decision, StoreError> {
        let key = keyspace::key(&self.key_prefix, plan.partition());
        let now = self.clock.as_ref().map(Clock::now);
        let mut connection = self.connections.get().await?;
        let reply = match connection.send(&script::call_by_hash(&key, &plan, now)).await {
            // The server has not run anything: it does not know the script, being new, restarted or flushed.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.send(&script::call_by_source(&key, &plan, now)).await
            }
            reply => reply,
        };
        match reply.map_err(store_error)? {
            Value::BulkString(reply) => script::decode(plan, &reply),
            _ => Err(StoreError::new(
                StoreErrorKind::Rejected,
                "the reply of the script is not a string",
            )),
        }
    }
}

impl Store for RedisStore {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        let inner = Arc::clone(&self.0);
        AcquireFuture::boxed(async move { inner.acquire(plan).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL holds the password, and the connections hold the URL.
        f.debug_struct("RedisStore")
            .field("key_prefix", &self.0.key_prefix)
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
    /// Stores with different prefixes share no quota. An ACL user needs this prefix and `GET`, `SET`, `TIME`, `EVAL`,
    /// `EVALSHA`.
    #[must_use]
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
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
        if self.key_prefix.len() > 64 || self.key_prefix.contains(['{', '}']) {
            return error(format!(
                "key_prefix {:?} is longer than 64 bytes or holds a brace",
                self.key_prefix
            ));
        }
        let connections = Connections::new(&self.url, self.connections, timeout)?;
        Ok(RedisStore(Arc::new(Inner {
            connections,
            key_prefix: self.key_prefix,
            clock: self.clock,
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

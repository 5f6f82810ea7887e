mod acquire;
mod builder;
mod engine;
mod keyspace;
mod leases;
mod net;
mod order;
mod ready;
mod script;
mod scripts;
mod server;
mod settlements;
mod shared_calls;
#[cfg(feature = "redis-rustls")]
mod tls;

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{Cmd, Value};

pub use self::builder::RedisStoreBuilder;
use self::{engine::Engine, keyspace::Key};
use super::{Store, StoreFuture, StoreReport, StoreTraits};
use crate::{
    decision::{Measurement, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
};

/// A store that keeps quota in Redis, so that any number of instances share their limits.
///
/// Each decision is one call of a Lua script, which reads, checks and charges all policies of a caller atomically, by
/// the server's clock. Keys expire when their state no longer affects decisions. The store keeps at most 78 states per
/// caller and scope, one per policy, and further ones for its lockout and initial units. It evicts the least recently
/// charged.
///
/// Building a store succeeds while Redis is unavailable, and lost connections are replaced in the background. The store
/// itself has no timeouts: the [limiter](crate::LimiterBuilder::deadline) adds a deadline, a circuit breaker and a
/// [`FailureMode`](crate::FailureMode). Clones share the connections. See
/// [`docs::production`](crate::docs::production#which-redis) for supported servers, memory and permissions.
///
/// ```
/// use tower_quota::{QuotaPolicy, RateLimitLayer, RedisStore, key};
///
/// let layer = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .build()?;
/// # drop(layer);
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use tower_quota::{PartitionKey, Plan, PolicySet, Scope, Store, StoreErrorKind};
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
/// # // No server listens on this port.
/// # let store = RedisStore::new("redis://127.0.0.1:1/")?;
/// # assert_eq!(store.decide(plan).await.unwrap_err().kind(), StoreErrorKind::Unreachable);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # URLs
///
/// `redis://[user[:password]@]host[:port][/database]`, the same with `rediss:` for TLS (feature `redis-rustls`), and
/// `redis+unix:///path/to/socket`. For TLS, the program must first install a rustls crypto provider.
///
/// # Cluster
///
/// Each partition is in one slot, so decisions about it are atomic. A plan with several partitions, such as user and
/// address, calls their slots one after another: if one of them rejects or fails, the earlier charges are refunded, but
/// count until then.
///
/// Each node has its own circuit breaker, so a node that does not respond affects only the callers in its slots. See
/// [Redis Cluster](crate::docs::outages#redis-cluster) for exceptions and migrated slots.
///
/// # Sentinel
///
/// The store queries all sentinels for each new connection, and follows each failover that they announce. A failover
/// [loses the latest charges](crate::docs::outages#sentinel-and-failovers), because replication is asynchronous.
///
/// # Proxies
///
/// A proxy that distributes keys among several servers needs
/// [`one_slot_per_call`](RedisStoreBuilder::one_slot_per_call). See [which Redis](crate::docs::production#which-redis)
/// for the tested proxies.
#[derive(Clone)]
pub struct RedisStore(Arc<Engine>);

impl RedisStore {
    /// Returns the [prefix](RedisStoreBuilder::key_prefix) of all keys.
    pub fn key_prefix(&self) -> &str {
        &self.0.server.keyspace.0
    }

    /// Sends a command on the connections of this store, and returns the reply.
    ///
    /// Use this to keep other data in the same Redis. In a cluster, all keys of the command must be in the slot of
    /// `key`; elsewhere, `key` is ignored. Decisions on the same connection wait for the reply, so use a separate store
    /// for replies larger than a few kilobytes. There is no deadline: wrap the future in a timeout.
    ///
    /// The command runs in a script, so the user needs the permission for `EVAL`, and scripts must be able to call the
    /// command: `EVAL` in full instead of `EVALSHA`, no `FCALL` or `CLIENT`, and nothing that blocks or changes the
    /// state of the connection. It can have up to 7,000 arguments. Integers above 2⁵³ lose precision.
    ///
    /// ```no_run
    /// use tower_quota::RedisStore;
    /// use tower_quota::redis::{cmd, from_redis_value};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::new("redis://127.0.0.1/")?;
    /// let mut get = cmd("GET");
    /// get.arg("settings");
    /// let settings: Option<String> = from_redis_value(store.command("settings", get).await?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`StoreErrorKind::Unreachable`] if no reply arrives; the command may have been executed and is not
    /// retried. Errors of the server are the [source](std::error::Error::source) of the returned error, most of them
    /// with [`StoreErrorKind::Failed`].
    pub async fn command(&self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        self.0.query(&Key::from_slice(key.as_bytes()), &command).await
    }
}

impl Store for RedisStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        Arc::clone(&self.0).acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        let engine = Arc::clone(&self.0);
        StoreFuture::boxed(async move { engine.reset(plan).await })
    }

    fn traits(&self) -> StoreTraits {
        let server = &self.0.server;
        let traits = StoreTraits::default().with_identity(server.identity);
        match server.topology.has_own_breakers() {
            true => traits.with_own_breakers(),
            false => traits,
        }
    }

    fn silence(&self) -> StoreFuture<Option<Duration>> {
        let engine = Arc::clone(&self.0);
        StoreFuture::boxed(async move { Ok(engine.server.topology.silence().await) })
    }

    fn ready(&self, timeout: Duration) -> StoreFuture<StoreReport> {
        let engine = Arc::clone(&self.0);
        StoreFuture::boxed(async move {
            let late = |_| {
                let message = format!("check of the servers timed out after {timeout:?}");
                Err(StoreError::new(StoreErrorKind::TimedOut, message))
            };
            tokio::time::timeout(timeout, engine.ready()).await.unwrap_or_else(late)
        })
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        let engine = Arc::clone(&self.0);
        StoreFuture::boxed(async move { engine.flush(timeout).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL contains the password, and the connections contain the URL.
        f.debug_struct("RedisStore")
            .field("key_prefix", &self.0.server.keyspace.0)
            .finish_non_exhaustive()
    }
}

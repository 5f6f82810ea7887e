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
use self::{engine::Engine, keyspace::Key, script::Call};
use super::{Store, StoreFuture, StoreReport, StoreTraits};
use crate::{
    clock::Clock,
    decision::{Measurement, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
};

/// A store that keeps quota in Redis, so that any number of instances share their limits.
///
/// Each decision is one call of a Lua script, which reads, checks and charges all policies of a caller atomically, by
/// the server's clock. The state of a caller is one key, plus one for each sliding window log and concurrency limit.
/// Keys expire when their state no longer affects decisions. The store keeps at most 78 policies per caller and scope,
/// and evicts the least recently charged policies.
///
/// Requires Redis 5 or newer, or Valkey, without modules: see [tested versions](crate::docs::production#which-redis).
///
/// Requests are pipelined on a few connections, and concurrent decisions share
/// [calls](RedisStoreBuilder::decisions_per_call). Creating a store does not wait for a connection, so services start
/// while Redis is unavailable. Clones share the connections.
///
/// The store detects immediately when a connection ends, and replaces it in the background. While the server rejects
/// connections, the store makes at most a few attempts per second. An [`acquire`](Store::acquire) call is sent on
/// another connection if the first connection ended before any byte of the call was written. A call that was sent and
/// has no reply is never retried, because it may have been executed. Replies contain the number of their call: if bytes
/// of replies are lost, the connection is closed, and no call receives the decision of another call. The store has no
/// timeouts; the layer adds a deadline, a circuit breaker and a [`FailureMode`](crate::FailureMode).
///
/// A [settlement](Store::settle) takes effect before any later decision of this store and its clones about the same
/// partition: both are sent on one connection, and no decision waits for an acknowledgement. The order may be lost if
/// one of these events occurs while the settlement is in flight: its connection ends, its cluster slot moves (`MOVED`,
/// `ASK`), the primary fails over, or the server loses its scripts. Settlements of other stores are visible once the
/// server has received them.
///
/// ```
/// use tower_quota::{RedisStore, Store, StoreErrorKind};
/// # use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope};
///
/// let error = RedisStore::new("http://127.0.0.1/").unwrap_err();
/// let begins = r#"redis store: invalid URL "http://127.0.0.1/": must start with "redis://""#;
/// assert!(error.to_string().starts_with(begins));
///
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
/// # tokio_test::block_on(async {
/// // No server listens on this port, so the first decision fails.
/// let store = RedisStore::new("redis://127.0.0.1:1/")?;
/// assert_eq!(store.decide(plan).await.unwrap_err().kind(), StoreErrorKind::Unreachable);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # URLs
///
/// `redis://[user[:password]@]host[:port][/database]`, the same with `rediss:` for TLS (feature `redis-rustls`), and
/// `redis+unix:///path/to/socket`. For TLS, the program must install a rustls crypto provider first; otherwise, `new`
/// returns an error.
///
/// # Cluster
///
/// All state of a partition is in one slot, so a decision about one partition is one atomic call, as on a single
/// server. **For a plan with several partitions**, such as user and address, the slots are called one after another, in
/// the plan's order. If one call rejects, fails or is cancelled, earlier charges are refunded in the background. Such
/// plans are the only exception to "all or nothing":
///
/// - For the duration of one or two calls, charges that will be refunded still count, so other requests may be rejected
///   because of them.
/// - A charge that cannot be refunded because its node is lost stays until its window restores it. Slots of concurrency
///   limits are released when their lease expires.
/// - A rejection contains no information about the partitions that were not called.
/// - Charges to a [fixed window](crate::Algorithm::FixedWindow) that has ended, and to a leaky bucket in which later
///   requests are queued, are not refunded.
///
/// Put the policy that rejects most often first. A plan that charges nothing calls all slots concurrently.
///
/// If a node does not respond, only the callers in its slots are affected: each node has its own circuit breaker, which
/// opens after five consecutive failures. Until then, requests wait for the node up to their deadline. While the
/// circuit is open, requests fail immediately, except for one probe call every 50 to 500 ms. The layer's circuit
/// breaker stays closed. A call is sent to another node if the reply proves that it was not executed: `MOVED`, and
/// `LOADING` or `READONLY` if another node owns the slot now.
///
/// While a slot is migrated (`MIGRATING`), counts move with the keys, and all calls continue to work: the old node
/// replies `ASK` for a key that has already moved, and the store repeats the call on the importing node, preceded by
/// `ASKING`. Partitions with several keys, which have a sliding window log or a concurrency limit, are an exception. A
/// call needs all keys of its partition on one node, and nodes reply `TRYAGAIN` while the keys are split between two
/// nodes. The call is retried after 3 to 96 ms, within the layer's deadline and for at most 2 s. If one of the keys
/// does not exist, retries continue until the whole slot has moved. The [`FailureMode`](crate::FailureMode) applies to
/// requests without a decision; by default, they pass uncounted.
///
/// With `cluster-require-full-coverage yes`, the default of Redis, all nodes reject calls if a single slot has no
/// owner; set the option to `no`. The clocks of the nodes may differ. An ACL user also needs `CLUSTER|SLOTS` and
/// `ASKING`.
///
/// # Sentinel
///
/// For each new connection, the store queries all sentinels concurrently and connects to the first reported address
/// whose server confirms with `ROLE` that it is the primary. If a connection breaks or its server turns out to be a
/// replica (`READONLY`), all connections to that server are closed. The store therefore follows failovers
/// automatically, as long as one sentinel responds. If the old primary rejects a call because it is a replica now, the
/// call is retried once on the new primary.
///
/// An ACL user also needs `ROLE`; without it, replicas are only detected by `READONLY`.
///
/// # What a fail-over forgets
///
/// Redis replicates asynchronously. After a failover, the new primary lacks the latest charges, so callers may exceed
/// their limits by at most the admission rate multiplied by the replication lag. An old primary that was partitioned or
/// paused keeps counting for instances with open connections until it is demoted, by Sentinel after about 10 s. With
/// `min-replicas-to-write 1`, it rejects writes during that time.
///
/// # Proxies
///
/// A proxy that distributes keys among several servers (Envoy, Twemproxy, the proxies of hosted services) needs
/// [`one_slot_per_call`](RedisStoreBuilder::one_slot_per_call).
#[derive(Clone)]
pub struct RedisStore(Arc<Engine>);

impl RedisStore {
    /// Returns the [prefix](RedisStoreBuilder::key_prefix) of all keys of this store.
    pub fn key_prefix(&self) -> &str {
        &self.0.server.keyspace.0
    }

    /// Sends a command on the connections of this store, and returns the reply.
    ///
    /// Use this to keep other data in the same Redis, with the same login, TLS and failover. In a cluster, the command
    /// is sent to the node that owns the slot of `key`, and all keys of the command must be in that slot; elsewhere,
    /// `key` is ignored. For replies larger than a few kilobytes, create a separate store, because decisions on the
    /// same connection wait until the whole reply has arrived.
    ///
    /// The connections are shared, so the command must neither block (`BLPOP`, `WAIT`) nor change the state of its
    /// connection (`SELECT`, `MULTI`, `SUBSCRIBE`, `HELLO`).
    ///
    /// # Errors
    ///
    /// Returns [`StoreErrorKind::Unreachable`] if no reply arrives; the command may have been executed and is not
    /// retried. Errors of the server are the [source](std::error::Error::source) of the returned error, most of them
    /// with [`StoreErrorKind::Failed`]. There is no deadline: wrap the future in a timeout.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tower_quota::{RedisStore, redis::{cmd, from_redis_value}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::new("redis://127.0.0.1/")?;
    /// let mut get = cmd("GET");
    /// get.arg("settings");
    /// let settings: Option<String> = from_redis_value(store.command("settings", get).await?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn command(&self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let call = Call::query(Key::from_slice(key.as_bytes()), command);
        self.0.server.topology.send(&call).await?;
        Ok(call.into_value())
    }
}

impl Store for RedisStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        StoreFuture::boxed(Arc::clone(&self.0).acquire(plan))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(&settlement)
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

    fn catch_up(&self) -> StoreFuture<bool> {
        let engine = Arc::clone(&self.0);
        StoreFuture::boxed(async move {
            let since = Clock::system().now();
            engine.shared_calls.catch_up().await;
            Ok(engine.server.topology.catch_up(since).await)
        })
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

//! Quota kept in Redis, shared by all instances of a service.

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

/// Keeps quota in Redis, so that any number of instances enforce one limit.
///
/// Each decision is one call of one Lua script: all windows of a caller are read, checked and charged together, by the
/// server's clock. A caller's state is one key, and another for each sliding window log and limit of concurrent requests.
/// All expire by themselves when the caller no longer differs from one never seen. Of more than 78 policies about one
/// caller, from all layers of the same scope, those that were not charged for the longest time are forgotten.
///
/// Requires Redis 5 or newer, or Valkey, without modules: see the [tested versions](crate::docs::production#which-redis).
///
/// Requests share a few connections and are pipelined on them; many at once share
/// [calls](RedisStoreBuilder::decisions_per_call) as well. Making a store waits for no connection: a service can be
/// started while Redis is unavailable, and limits once it answers. Clones share the connections.
///
/// The store learns of the end of a connection when it happens, and opens another one in the background; while the server
/// rejects, it tries at most a few times a second. An [`acquire`](Store::acquire) goes to another connection if its own has
/// ended before any of its bytes were written. One that was sent and not answered is never repeated, because it may have
/// been carried out. A reply carries the number of its call: if bytes of replies are lost on the way, the connection ends,
/// and no call gets the decision of another one. The store itself keeps no time; the layer's deadline, circuit breaker and
/// [`FailureMode`](crate::FailureMode) stand around it.
///
/// A [settlement](Store::settle) takes effect before any decision of this store and its clones about the same
/// partition that is asked for later: both are sent on one connection, and no decision waits for an acknowledgement.
/// The order may be lost for a settlement that is under way when its connection ends, its slot of a cluster moves (`MOVED`,
/// `ASK`), a fail-over happens or the server forgets its scripts. What another store, of this process or of another one,
/// has settled is seen once the server has it.
///
/// ```
/// use tower_quota::{RedisStore, Store, StoreErrorKind};
/// # use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope};
///
/// let error = RedisStore::new("http://127.0.0.1/").unwrap_err();
/// assert!(error.to_string().starts_with(r#"redis store: the URL "http://127.0.0.1/" has to begin with "redis://""#));
///
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// # let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?, alice, 1);
/// # tokio_test::block_on(async {
/// // Nothing listens here, which is found out when a decision is asked for.
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
/// `redis+unix:///path/to/socket`. With TLS the program has to install a rustls crypto provider first: without one
/// `new` returns an error.
///
/// # Cluster
///
/// Everything that is kept about one partition is in one slot, so a decision about one partition is one call, atomic as
/// on a single server. **Of a plan with several partitions** (per user and per address, say) the partitions of different
/// slots are asked one after the other, in the plan's order. When one rejects, fails, or is not waited for any more,
/// what earlier ones have charged is given back, in the background. This is the one exception to "all or nothing":
///
/// - For the time of a call or two, other requests see charges that are then given back, and may be rejected for them.
/// - A charge that cannot be given back, because the node is lost meanwhile, stays charged until its window gives it back. Slots
///   of concurrent requests become free with their lease.
/// - A rejection says nothing about partitions that were not asked any more.
/// - Units of a [fixed window](crate::Algorithm::FixedWindow) that has ended, and places in a leaky bucket behind which
///   others have come, are not given back.
///
/// Put the policy that rejects most often first. A plan that charges nothing asks all partitions at once.
///
/// A node that does not answer costs only those whose slots it has: each node has a circuit breaker of its own, which
/// opens after five failures in a row. Until then each request waits for the node up to its deadline, and afterwards
/// none does; one at a time tries, every 50 to 500 ms. The breaker of the layer stays closed. A call is repeated on
/// another node when the reply proves that it was not carried out: `MOVED`, and `LOADING` or `READONLY` if another node
/// has the slot by now.
///
/// While a slot is moved (`MIGRATING`), what was counted moves with the keys, and all goes on: a node that does not have
/// a key any more, or has never had it, answers with `ASK`, and the call follows to the node that imports the slot, with
/// `ASKING` before it. This holds for decisions, settlements, renewed and released slots, and resets. The exception are
/// partitions with several keys: those that have a sliding window log, or a limit of concurrent requests. A call needs
/// all keys of its partition on one node, and the importing node answers `TRYAGAIN` as long as one of them is not there.
/// The call is tried again, 3 to 96 ms later, within the deadline of the layer and for two seconds at most. A key of the
/// partition that does not exist keeps the call waiting until the slot has arrived, and what is not decided by
/// then passes uncounted (or as the [`FailureMode`](crate::FailureMode) says).
///
/// With `cluster-require-full-coverage yes`, the default of Redis, all nodes reject to work when one slot is lost; set it to
/// `no`. The clocks of the nodes need not agree. A user of the ACL needs `CLUSTER|SLOTS` and `ASKING`, too.
///
/// # Sentinel
///
/// For each connection that is opened, all sentinels are asked for the primary, the first address that also says by `ROLE`
/// that it is one is taken, and when a connection is found broken, or its server to be a replica (`READONLY`), all others
/// are closed with it. So the store follows a fail-over by itself, however many sentinels are down as long as one
/// answers; a call that met the old primary as a replica is repeated once on the new one.
///
/// A user of the ACL needs `ROLE`, too; without it, a replica is only found out by `READONLY`.
///
/// # What a fail-over forgets
///
/// Redis replicates asynchronously. A new primary does not know what the old one had not sent to it, so that callers may
/// be admitted again: at most the rate of admissions times the lag of the replica. And an old primary that was cut off or
/// paused, and comes back, counts on by itself for those whose connections are still open, until it is demoted: by
/// Sentinel after some ten seconds. `min-replicas-to-write 1` has it reject to work meanwhile.
///
/// # Proxies
///
/// Something that looks like one Redis and keeps its keys on several (Envoy, Twemproxy, the proxies of hosted services)
/// needs [`one_slot_per_call`](RedisStoreBuilder::one_slot_per_call).
#[derive(Clone)]
pub struct RedisStore(Arc<Engine>);

impl RedisStore {
    /// Returns the [prefix](RedisStoreBuilder::key_prefix) of all keys of this store.
    pub fn key_prefix(&self) -> &str {
        &self.0.server.keyspace.0
    }

    /// Sends a command on the connections of this store and returns the reply.
    ///
    /// Use this to keep data beside the counts with the same login, TLS and failover. In a cluster, the command goes to the
    /// node that has `key`, and all keys of the command must be in the slot of `key`. Elsewhere `key` has no effect. For
    /// replies of more than some kilobytes, build a second store: a decision on the same connection waits until they have
    /// arrived.
    ///
    /// Requests share the connections, so the command must neither block (`BLPOP`, `WAIT`) nor change the state of its
    /// connection (`SELECT`, `MULTI`, `SUBSCRIBE`, `HELLO`).
    ///
    /// # Errors
    ///
    /// Returns [`StoreErrorKind::Unreachable`] if no reply arrives: the command may have been carried out, and is not sent
    /// again. An error that the server returns is the [source](std::error::Error::source), and most are
    /// [`StoreErrorKind::Failed`]. There is no deadline for the reply: set a timeout around the future.
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
                let message = format!("the look at the servers has not ended within {timeout:?}");
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
        // The URL holds the password, and the connections hold the URL.
        f.debug_struct("RedisStore")
            .field("key_prefix", &self.0.server.keyspace.0)
            .finish_non_exhaustive()
    }
}

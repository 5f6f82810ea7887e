//! A hash per caller, and a stream with the digests of changed callers.

mod contract;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::timeout;

pub use self::contract::{Contract, TopUp};
use super::{
    error::{FleetError, FleetErrorKind},
    pause::between_polls,
    redis_rules::check_name,
    telemetry::ContractsTelemetry,
};
use tower_quota::{
    CallerQuotas, PartitionId, RedisStore, RedisStoreBuilder, Scope, StoreError, StoreErrorKind, ToPartitionKey,
    clock::Clock,
    redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value},
    tier::TierCache,
};

const WRITE: &str = include_str!("write.lua");

/// Timeout and attempts.
const WRITE_ONCE: (Duration, u32) = (Duration::from_secs(5), 1);

/// Short, because requests wait for an entry, but can proceed without one.
const READ: (Duration, u32) = (Duration::from_millis(300), 1);

/// On all connections, so that changes do not wait for several polls.
const READ_AGAIN: (Duration, u32) = (READ.0, CONNECTIONS + 1);

/// Covers the last 100 seconds at 1,000 changes per second.
const CHANGES: usize = 100_000;

/// Arrives within the timeout on slow networks, too.
const PAGE: usize = 1_000;

const CONNECTIONS: u32 = 2;

const TOP_UPS: usize = 100;

const CONTRACT: &str = "contract";
const TOP_UP: &str = "top-up:";

/// A table of contracts in Redis: individual quotas for callers.
///
/// All instances apply a change within two seconds; tables can have millions of entries. A
/// [`TierLayer`](tower_quota::tier::TierLayer) caches an entry until [`follow`](Self::follow) invalidates it. Quotas
/// apply to policies that [allow them](tower_quota::QuotaPolicy::with_caller_quotas), within their bounds. Clones share
/// the table's connections.
///
/// ```no_run
/// use std::convert::Infallible;
/// use tower_quota::{
///     CallerQuotas, PartitionKey, QuotaPolicy, RateLimitLayer, RedisStore, ResolvedTier, Tiers, ToPartitionKey, key,
///     tier::TierLayer,
/// };
/// use tower_quota_fleet::{Contract, Contracts, TopUp};
///
/// // Inserted into the request extensions by authentication.
/// #[derive(Clone)]
/// struct Customer(String);
///
/// impl ToPartitionKey for Customer {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("customer", &self.0)
///     }
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = RedisStore::builder("redis://127.0.0.1/");
/// let contracts = Contracts::new(redis.clone(), "api")?;
/// let minute = |quota| QuotaPolicy::per_minute("minute", quota).with_caller_quotas(1..=100_000);
/// let limits = RateLimitLayer::builder(redis.build()?)
///     .scope("api")
///     .key(key::extension::<Customer>())
///     .tiers(Tiers::resolved().tier("free", [minute(60)]).tier("premium", [minute(1_000)]))
///     .build()?;
///
/// let table = contracts.clone();
/// let tiers = TierLayer::by_extension(move |customer: Customer| {
///     let table = table.clone();
///     async move {
///         // The plan may come from a database, and the contract from Redis.
///         let plan = ResolvedTier::new("premium");
///         Ok::<_, Infallible>(Some(plan.with_quotas_or_last(table.quotas(&customer).await)))
///     }
/// })
/// .build()?;
/// let cache = tiers.cache().clone();
/// let follower = contracts.clone();
/// tokio::spawn(async move { follower.follow(&cache).await });
///
/// // In the program that manages contracts:
/// let sales = contracts.with_author("sales");
/// let customer = Customer("4711".to_owned());
/// let contract = Contract::new(CallerQuotas::new().quota("minute", 5_000)).because("offer 2026-117");
/// sales.set(&customer, &contract).await?;
/// sales.top_up(&customer, &TopUp::new("order 12", "minute", 500, 1_798_761_600)).await?;
/// # let _ = limits;
/// # Ok(())
/// # }
/// ```
///
/// # When Redis is unavailable
///
/// Reads fail after 300 ms; writes wait up to 5 s for each reply. With
/// [`with_quotas_or_last`](tower_quota::ResolvedTier::with_quotas_or_last), a caller keeps its last known quotas for
/// [10 minutes](tower_quota::tier::TierLayerBuilder::stale_for), and gets those of its tier afterwards or if it is not
/// cached. While instances know different quotas of a caller, it gets at most the largest.
#[derive(Clone)]
pub struct Contracts {
    table: Arc<Table>,
    author: String,
}

struct Table {
    store: RedisStore,
    prefix: String,
    scope: Scope,
    log: ContractsTelemetry,
}

impl Contracts {
    /// Creates a table with this name, with the settings and errors of [`RedisRules::new`](crate::RedisRules::new).
    pub fn new(servers: RedisStoreBuilder, name: impl Into<String>) -> Result<Self, FleetError> {
        let store = servers.connections(CONNECTIONS).build();
        let store = store.map_err(|error| FleetError::from_config(FleetErrorKind::Config, "", error))?;
        let name = name.into();
        check_name("contracts", &name)?;
        let table = Table {
            prefix: format!("contracts:{}{name}:", store.key_prefix()),
            store,
            // The scope of the digests in [`TierCache`].
            scope: Scope::new("tiers"),
            log: ContractsTelemetry::new(&name),
        };
        Ok(Self {
            table: Arc::new(table),
            author: String::new(),
        })
    }

    /// Sets the author of changes: at most 256 bytes without control characters. Default: empty.
    #[must_use]
    pub fn with_author(mut self, author: impl Into<String>) -> Self {
        self.author = author.into();
        self
    }

    /// Returns the individual quotas of a caller, or `None`. Fails like [`get`](Self::get).
    pub async fn quotas<K: ToPartitionKey + ?Sized>(&self, caller: &K) -> Result<Option<CallerQuotas>, FleetError> {
        let contract = self.get(caller).await?;
        Ok(contract.map(Contract::topped_up))
    }

    /// Returns the contract and top-ups of a caller, or `None`.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Unavailable`], or [`FleetErrorKind::Malformed`] for an entry of another program:
    /// [`remove`](Self::remove) it.
    pub async fn get<K: ToPartitionKey + ?Sized>(&self, caller: &K) -> Result<Option<Contract>, FleetError> {
        let key = self.key(self.digest(caller));
        let mut read = cmd("HGETALL");
        read.arg(&key);
        let fields: HashMap<String, Vec<u8>> = self.command(READ, &key, &read).await?;
        if fields.is_empty() {
            return Ok(None);
        }
        let (mut contract, mut top_ups) = (Contract::default(), Vec::new());
        for (field, json) in fields {
            let problem = |error: serde_json::Error| {
                FleetError::new(FleetErrorKind::Malformed, format!("contract: {field:?}: {error}"))
            };
            if field == CONTRACT {
                contract = serde_json::from_slice(&json).map_err(problem)?;
            } else if field.starts_with(TOP_UP) {
                top_ups.push(serde_json::from_slice(&json).map_err(problem)?);
            }
        }
        top_ups.sort_by(|one: &TopUp, other| one.id.cmp(&other.id));
        contract.top_ups = top_ups;
        Ok(Some(contract))
    }

    /// Replaces the contract of a caller. Top-ups stay.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Malformed`] if a text is too long, and [`FleetErrorKind::Invalid`] if the quotas
    /// contain [top-ups](CallerQuotas::top_up) or end after the year 9999. After [`FleetErrorKind::Unavailable`], the
    /// contract may be written, but still cached: set it again.
    pub async fn set<K: ToPartitionKey + ?Sized>(&self, caller: &K, contract: &Contract) -> Result<(), FleetError> {
        let contract = contract.signed(&self.author, now())?;
        self.write(caller, CONTRACT, &contract, false).await.map(drop)
    }

    /// Grants a top-up. Returns `false` if a top-up with this ID was granted before and has not expired.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Invalid`] if the top-up has no ID or no units, has expired or ends after the year
    /// 9999, or if the caller has 100, and [`FleetErrorKind::Malformed`] if a text is too long. After
    /// [`FleetErrorKind::Unavailable`], it may have been granted: repeat the call with the same ID.
    pub async fn top_up<K: ToPartitionKey + ?Sized>(&self, caller: &K, top_up: &TopUp) -> Result<bool, FleetError> {
        let top_up = top_up.signed(&self.author, now())?;
        let field = format!("{TOP_UP}{}", top_up.id);
        self.write(caller, &field, &top_up, true).await
    }

    /// Removes the contract and top-ups of a caller. Returns `false` if there were none.
    pub async fn remove<K: ToPartitionKey + ?Sized>(&self, caller: &K) -> Result<bool, FleetError> {
        let digest = self.digest(caller);
        let key = self.key(digest);
        let removed: u64 = self.command(WRITE_ONCE, &key, cmd("DEL").arg(&key)).await?;
        self.announce(digest).await?;
        Ok(removed > 0)
    }

    /// Invalidates changed callers in a tier cache about once per second, forever: spawn one task per cache.
    ///
    /// Clears the whole cache if changes may have been missed.
    pub async fn follow(&self, cache: &TierCache) {
        let mut position = None;
        loop {
            match self.poll(&mut position, cache).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => self.table.log.unread(Clock::system().now(), &error),
            }
            between_polls().await;
        }
    }

    /// Returns `true` if there are more changes.
    async fn poll(&self, position: &mut Option<String>, cache: &TierCache) -> Result<bool, FleetError> {
        let stream = self.stream();
        let Some(last) = position else {
            let mut newest = cmd("XREVRANGE");
            newest.arg(&stream).arg("+").arg("-").arg("COUNT").arg(1);
            let newest: Changes = self.command(READ_AGAIN, &stream, &newest).await?;
            // Cached entries may be older than this position.
            cache.forget_all();
            *position = Some(newest.into_iter().next().map_or(String::new(), |(id, _)| id));
            return Ok(false);
        };
        let mut range = cmd("XRANGE");
        let from = if last.is_empty() { "-" } else { &**last };
        range.arg(&stream).arg(from).arg("+").arg("COUNT").arg(PAGE);
        let mut changes: Changes = self.command(READ_AGAIN, &stream, &range).await?;
        let has_more = changes.len() == PAGE;
        if last.is_empty() && !changes.is_empty() {
            // Earlier changes may have been trimmed.
            cache.forget_all();
        } else if !last.is_empty() {
            if changes.first().is_none_or(|(id, _)| id != last) {
                // The last known change was trimmed, and other changes may have been trimmed, too.
                *position = None;
                return Ok(true);
            }
            changes.remove(0);
        }
        for (id, change) in changes {
            let digest = change.get(&b"id"[..]).and_then(|digest| str::from_utf8(digest).ok());
            match digest.map(str::parse::<PartitionId>) {
                Some(Ok(digest)) => cache.forget_digest(digest),
                _ => cache.forget_all(),
            }
            *last = id;
        }
        Ok(has_more)
    }

    async fn write<K: ToPartitionKey + ?Sized>(
        &self,
        caller: &K,
        field: &str,
        value: &impl Serialize,
        keeps: bool,
    ) -> Result<bool, FleetError> {
        let digest = self.digest(caller);
        let key = self.key(digest);
        let mut write = cmd("EVAL");
        write.arg(WRITE).arg(1).arg(&key);
        write.arg(field).arg(serde_json::to_string(value)?);
        write.arg(u8::from(keeps)).arg(TOP_UPS);
        let is_new = match self.command::<i64>(WRITE_ONCE, &key, &write).await? {
            -1 => {
                let message = format!("top-up: limit of {TOP_UPS} top-ups per caller reached");
                return Err(FleetError::new(FleetErrorKind::Invalid, message));
            }
            written => written == 1,
        };
        // Also announces a duplicate, because the call that wrote the top-up may have failed before its announcement.
        self.announce(digest).await?;
        Ok(is_new)
    }

    async fn announce(&self, digest: PartitionId) -> Result<(), FleetError> {
        let stream = self.stream();
        let mut add = cmd("XADD");
        add.arg(&stream).arg("MAXLEN").arg("~").arg(CHANGES).arg("*");
        add.arg("id").arg(digest.to_string());
        self.command::<String>(WRITE_ONCE, &stream, &add).await.map(drop)
    }

    /// Each attempt uses the next connection, because one may have gone silent.
    async fn command<T: FromRedisValue>(
        &self,
        (patience, attempts): (Duration, u32),
        key: &str,
        command: &Cmd,
    ) -> Result<T, FleetError> {
        for _ in 0..attempts {
            let reply = self.table.store.command(key, command.clone());
            if let Ok(reply) = timeout(patience, reply).await {
                return parse(reply?);
            }
        }
        let message = format!("no reply within {patience:?}");
        Err(StoreError::new(StoreErrorKind::TimedOut, message).into())
    }

    fn digest<K: ToPartitionKey + ?Sized>(&self, caller: &K) -> PartitionId {
        self.table.scope.partition(&caller.to_partition_key())
    }

    fn key(&self, digest: PartitionId) -> String {
        format!("{}{digest}", self.table.prefix)
    }

    fn stream(&self) -> String {
        format!("{}changes", self.table.prefix)
    }
}

type Changes = Vec<(String, HashMap<Vec<u8>, Vec<u8>>)>;

fn parse<T: FromRedisValue>(reply: Value) -> Result<T, FleetError> {
    from_redis_value(reply).map_err(|_| {
        let message = "contracts: unexpected reply; the data was not written by this package";
        FleetError::new(FleetErrorKind::Malformed, message)
    })
}

fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

impl fmt::Debug for Contracts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contracts")
            .field("prefix", &self.table.prefix)
            .field("author", &self.author)
            .finish_non_exhaustive()
    }
}

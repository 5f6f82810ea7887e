mod keys;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub(super) use self::keys::{RulesKeys, check_name};
use super::{
    controls::SwitchOrder,
    document::{RulesDocument, check_length},
    error::{FleetError, FleetErrorKind},
    report::InstanceReport,
    source::{RulesSource, SourceFuture, SourceState},
    version::RulesVersion,
};
use tower_quota::{
    RedisStore, RedisStoreBuilder, StoreError, StoreErrorKind,
    redis::{Cmd, Value, cmd, from_redis_value},
};

const FRESH_MILLIS: u64 = 30_000;

const KEPT_MILLIS: u64 = 60_000;

const REPORT: &str = include_str!("report.lua");

const MOST_INSTANCES: usize = 10_000;

/// A rule set in Redis, which instances follow and publishers write.
///
/// Clones share a connection, opened on first use, so that decisions never wait behind a document.
///
/// ```
/// use tower_quota::RedisStore;
/// use tower_quota_fleet::RedisRules;
///
/// let redis = RedisStore::builder("redis://127.0.0.1/");
/// let store = redis.clone().build()?;
/// let rules = RedisRules::new(redis, "api")?;
///
/// let error = RedisRules::new(RedisStore::builder("redis://127.0.0.1/"), "{api}").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"rule set "{api}": name must have 1 to 64 printable ASCII characters without spaces and braces"#,
/// );
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisRules(Arc<Inner>);

struct Inner {
    store: RedisStore,
    keys: RulesKeys,
    name: String,
}

impl RedisRules {
    /// Creates a rule set with this name on the servers of a store: a single server, a primary behind Sentinel, or a
    /// cluster.
    ///
    /// Only these settings apply: URLs (whose user may differ from the store's),
    /// [`connection_info_with`](RedisStoreBuilder::connection_info_with), `tls_config`,
    /// [`connect_with`](RedisStoreBuilder::connect_with), the timeout and the key prefix.
    ///
    /// Fails with [`FleetErrorKind::Config`] if the name or a setting is invalid.
    pub fn new(servers: RedisStoreBuilder, name: impl Into<String>) -> Result<Self, FleetError> {
        let store = servers.connections(1).build();
        let store = store.map_err(|error| FleetError::from_config(FleetErrorKind::Config, "", error))?;
        let name = name.into();
        let keys = RulesKeys::new(store.key_prefix(), &name)?;
        Ok(Self(Arc::new(Inner { store, keys, name })))
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the latest report of up to 10,000 instances that reported within 30 seconds, by name.
    ///
    /// Fails if the server does not answer, or its ACL forbids the command.
    pub async fn instances(&self) -> Result<Vec<InstanceReport>, StoreError> {
        let since = self.now().await?.saturating_sub(FRESH_MILLIS);
        let mut fresh = cmd("ZREVRANGEBYSCORE");
        fresh.arg(&self.keys().instances).arg("+inf").arg(since);
        fresh.arg("LIMIT").arg(0).arg(2 * MOST_INSTANCES);
        let Value::Array(members) = self.command(fresh).await? else {
            return Err(unexpected("the instances"));
        };
        let reports = members.into_iter().filter_map(bytes);
        let reports = reports.filter_map(|json| serde_json::from_slice::<InstanceReport>(&json).ok());
        let mut latest = BTreeMap::new();
        // Newest first. The earlier reports of an instance are deleted only after a minute.
        for report in reports {
            latest.entry(report.instance().to_owned()).or_insert(report);
        }
        Ok(latest.into_values().take(MOST_INSTANCES).collect())
    }

    pub(super) fn keys(&self) -> &RulesKeys {
        &self.0.keys
    }

    pub(super) async fn command(&self, command: Cmd) -> Result<Value, StoreError> {
        self.0.store.command(&self.keys().head, command).await
    }

    pub(super) async fn now(&self) -> Result<u64, StoreError> {
        let time = self.command(cmd("TIME")).await?;
        let [seconds, micros]: [u64; 2] = from_redis_value(time).map_err(|_| unexpected("the time"))?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }

    /// Read together, so that they match.
    pub(super) async fn values<const N: usize>(&self, keys: [&String; N]) -> Result<[Option<Vec<u8>>; N], StoreError> {
        let mut all = cmd("MGET");
        all.arg(&keys);
        let Value::Array(values) = self.command(all).await? else {
            return Err(unexpected("the state"));
        };
        let mut values = values.into_iter().map(bytes);
        Ok(keys.map(|_| values.next().flatten()))
    }

    async fn read_state(&self) -> Result<SourceState, StoreError> {
        let keys = self.keys();
        let [head, switch, access] = self.values([&keys.head, &keys.switch, &keys.access_head]).await?;
        let version = head.map(|head| version_of(&head).ok_or_else(|| unexpected("the head")));
        let state = SourceState {
            version: version.transpose().map_err(FleetError::unavailable),
            ..SourceState::new(None)
        };
        let malformed = || "access list: head is not a number and a digest".to_owned();
        let access = access.map(|access| version_of(&access).ok_or_else(malformed));
        let switch = switch.as_deref().map(SwitchOrder::parse);
        Ok(state.with_heads(switch.transpose(), access.transpose()))
    }

    pub(super) async fn read_access(&self) -> Result<Vec<u8>, StoreError> {
        self.read_bytes(&self.keys().access, "the access list").await
    }

    async fn read_bytes(&self, key: &str, what: &str) -> Result<Vec<u8>, StoreError> {
        let mut range = cmd("GETRANGE");
        // Reads a byte beyond the limit, to detect a longer value without another command.
        range.arg(key).arg(0).arg(RulesDocument::MAX_LENGTH);
        bytes(self.command(range).await?).ok_or_else(|| unexpected(what))
    }

    async fn write_report(&self, report: &InstanceReport) -> Result<(), StoreError> {
        let mut write = cmd("EVAL");
        write.arg(REPORT).arg(1).arg(&self.keys().instances);
        write
            .arg(serde_json::to_string(report).unwrap_or_default())
            .arg(KEPT_MILLIS);
        self.command(write).await.map(drop)
    }
}

impl RulesSource for RedisRules {
    fn name(&self) -> &str {
        self.name()
    }

    fn state(&self) -> SourceFuture<'_, SourceState> {
        Box::pin(async { self.read_state().await.map_err(FleetError::unavailable) })
    }

    fn access(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        Box::pin(async { self.read_access().await.map_err(FleetError::unavailable) })
    }

    fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        Box::pin(async {
            let document = self.read_bytes(&self.keys().document, "the document").await;
            let document = document.map_err(FleetError::unavailable)?;
            check_length(document.len())?;
            Ok(document)
        })
    }

    fn report<'a>(&'a self, report: &'a InstanceReport) -> SourceFuture<'a, ()> {
        Box::pin(async { self.write_report(report).await.map_err(FleetError::unavailable) })
    }
}

pub(super) fn version_of(head: &[u8]) -> Option<RulesVersion> {
    str::from_utf8(head).ok()?.parse().ok()
}

pub(super) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

fn unexpected(what: &str) -> StoreError {
    let message = format!("{what} of the rule set was not written by this crate");
    StoreError::new(StoreErrorKind::Failed, message)
}

impl fmt::Debug for RedisRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRules")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

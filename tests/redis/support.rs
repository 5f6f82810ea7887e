//! Stores, callers and readings that several of these modules need.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseResult, TestRunner},
};
use test_kit::{RedisServer, memory, shared_cluster};
use tokio::runtime::{Builder, Runtime};
use tower_quota::{
    Caller, Decision, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RedisStore,
    RedisStoreBuilder, Scope, Store,
    clock::{Clock, Timestamp},
};

/// Longer than anything in a test can take unless it hangs.
pub(super) const HANG: Duration = Duration::from_secs(60);

pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// In the middle of a window of every length that tests use.
pub(super) const START: Timestamp = Timestamp::from_micros(1_700_010_000_000_000);

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs the test with this many values, in one runtime.
pub(super) fn for_any<T: Debug>(cases: u32, values: impl Strategy<Value = T>, test: impl AsyncFn(T)) {
    try_for_any(cases, values, async |value| {
        test(value).await;
        Ok(())
    });
}

/// The same for a test that fails by `prop_assert`.
pub(super) fn try_for_any<T: Debug>(
    cases: u32,
    values: impl Strategy<Value = T>,
    test: impl AsyncFn(T) -> TestCaseResult,
) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let runtime = runtime();
    let result = TestRunner::new(config).run(&values, |value| runtime.block_on(test(value)));
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A store on the server of this process. Its calls are carried out in the order in which they are made.
pub(super) fn redis(clock: &Clock) -> RedisStore {
    let builder = crate::shared_store().clock(clock.clone());
    builder.connections(1).lease_time(DAY).build().unwrap()
}

/// A store in memory, and one on the server of this process.
pub(super) fn both_stores(clock: &Clock) -> [Arc<dyn Store>; 2] {
    [Arc::new(memory(clock)), Arc::new(redis(clock))]
}

/// A store on the cluster of this process.
pub(super) fn shared_cluster_store() -> RedisStoreBuilder {
    RedisStore::cluster_builder(shared_cluster().urls()).connection_timeout(HANG)
}

/// A scope that no other test uses.
pub(super) fn fresh_scope() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("scope {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A partition that no other test uses.
pub(super) fn somebody() -> PartitionId {
    user(&fresh_scope(), "somebody")
}

pub(super) fn user(scope: &str, name: impl AsRef<[u8]>) -> PartitionId {
    Scope::new(scope).partition(&PartitionKey::new("user", name))
}

pub(super) fn set(policies: impl IntoIterator<Item = QuotaPolicy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

pub(super) fn plan(policies: impl IntoIterator<Item = QuotaPolicy>, partition: PartitionId, cost: u64) -> Plan {
    Plan::new(set(policies), partition, cost)
}

/// The units that a decision leaves of each policy.
pub(super) fn remaining(decision: &Decision) -> Vec<u64> {
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

pub(super) async fn left(caller: &Caller) -> Vec<u64> {
    remaining(&caller.peek().await.unwrap().unwrap())
}

/// The units that a user has left in a layer whose key is the header `x-user-id`.
pub(super) async fn left_of(layer: &RateLimitLayer, user: &str) -> Vec<u64> {
    left(&layer.limiter().caller(&PartitionKey::new("x-user-id", user))).await
}

/// The number of times that the server has run each command, those inside of scripts among them.
pub(super) fn commands(server: &RedisServer) -> HashMap<String, usize> {
    let stats = server.command(&["INFO", "commandstats"]);
    let counts = stats.lines().filter_map(|line| {
        let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), figures.split(',').next()?.parse().unwrap()))
    });
    counts.collect()
}

/// The number of script calls that the server has run.
pub(super) fn scripts(server: &RedisServer) -> usize {
    let commands = commands(server);
    ["eval", "evalsha"].iter().filter_map(|name| commands.get(*name)).sum()
}

/// The milliseconds until a key expires.
pub(super) fn life(server: &RedisServer, key: &str) -> i64 {
    server.command(&["PTTL", key.trim()]).trim().parse().unwrap()
}

//! A store that is looked at before it is needed: what would stop it, and what may cost limits later.

use std::{
    future::ready,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use test_kit::{Mode, Proxy, RedisCluster, RedisServer, ReplyFault, Sentinels, shared_cluster};
use tower_quota::{Limiter, LimiterBuilder, QuotaPolicy, RedisStore, RedisStoreBuilder, StoreErrorKind};

use super::support::{HANG, commands, shared_cluster_store};

const MEGABYTES: &str = "100000000";

/// Its deadline is long, so that a busy machine is no warning.
fn limiter(store: RedisStoreBuilder) -> LimiterBuilder {
    let store = store.connection_timeout(HANG).build().unwrap();
    let limiter = Limiter::builder(store).scope("ready").deadline(HANG);
    limiter.policy(QuotaPolicy::per_hour("hour", 1))
}

/// The warnings, or the error.
async fn report(store: RedisStoreBuilder) -> Result<Vec<String>, (StoreErrorKind, String)> {
    let report = limiter(store).build().unwrap().ready(HANG).await;
    let warnings = report.map(|report| report.warnings().map(str::to_owned).collect());
    warnings.map_err(|error| (error.kind(), error.to_string()))
}

async fn error(store: RedisStoreBuilder) -> String {
    report(store).await.unwrap_err().1
}

/// The store of a user with the documented permissions, and these.
fn as_user(server: &RedisServer, more: &[&str]) -> RedisStoreBuilder {
    server.set_documented_user(more);
    RedisStore::builder(format!("redis://limits:password@127.0.0.1:{}/", server.port()))
}

fn is_keyless(server: &RedisServer) -> bool {
    server.command(&["DBSIZE"]).trim() == "0"
}

#[tokio::test]
async fn single_servers_sentinels_and_clusters_are_ready_and_keep_nothing_of_the_look() {
    let server = RedisServer::start();
    let sentinels = Sentinels::start();
    for store in [
        RedisStore::builder(server.url()),
        RedisStore::builder(server.url()).one_slot_per_call(true),
        RedisStore::sentinel_builder(sentinels.urls(), "limits"),
        shared_cluster_store(),
    ] {
        assert_eq!(report(store).await, Ok(vec![]));
    }
    assert!(is_keyless(&server));
    assert!(is_keyless(&sentinels.servers[sentinels.primary()]));
}

#[tokio::test]
async fn after_ready_the_first_decision_finds_its_script_loaded() {
    let server = RedisServer::start();
    let limiter = limiter(RedisStore::builder(server.url())).build().unwrap();
    limiter.ready(HANG).await.unwrap();
    assert_eq!(server.command(&["CONFIG", "RESETSTAT"]).trim(), "OK");
    assert!(limiter.check("alice").await.outcome().is_admitted());
    let calls = commands(&server);
    assert_eq!((calls["evalsha"], calls.get("eval")), (1, None));
}

#[tokio::test]
async fn each_node_of_a_cluster_is_looked_at() {
    let cluster = RedisCluster::start(3, 0);
    for (number, node) in cluster.nodes.iter().enumerate() {
        node.command(&["CONFIG", "SET", "maxmemory", MEGABYTES]);
        node.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        let report = report(RedisStore::cluster_builder(cluster.urls())).await.unwrap();
        assert_eq!(report.len(), number + 1);
    }
    assert!(cluster.nodes.iter().all(is_keyless));
}

#[tokio::test]
async fn a_denied_command_is_named() {
    let server = RedisServer::start();
    if !server.has_users() {
        return;
    }
    let documented = as_user(&server, &[]);
    let warnings = report(documented).await.unwrap();
    assert!(
        matches!(&*warnings, [warning] if warning.starts_with("INFO is not permitted")),
        "{warnings:?}"
    );
    assert_eq!(report(as_user(&server, &["+info"])).await, Ok(vec![]));

    let (_, rules) = include_str!("../../docs/PRODUCTION.md")
        .split_once("ACL SETUSER limits ")
        .unwrap();
    let rules = rules.split("```").next().unwrap().split_whitespace();
    let commands: Vec<_> = rules.filter_map(|rule| rule.strip_prefix('+')).collect();
    assert!(commands.len() > 10);
    for command in commands {
        let error = error(as_user(&server, &[&format!("-{command}")])).await;
        let expected = format!("the store's user lacks permission for {}", command.to_uppercase());
        assert!(error.ends_with(&expected), "{command}: {error}");
    }
    let error = error(as_user(&server, &["resetkeys", "~other:*"])).await;
    assert!(error.contains("lacks permission for GET, SET, SETRANGE"), "{error}");
    assert!(is_keyless(&server));
}

#[tokio::test]
async fn an_eviction_policy_that_loses_limits_is_a_warning() {
    let server = RedisServer::start();
    let with = |policy: &str, memory: &str| {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        server.command(&["CONFIG", "SET", "maxmemory", memory]);
        report(RedisStore::builder(server.url()))
    };
    for policy in ["noeviction", "volatile-ttl"] {
        assert_eq!(with(policy, MEGABYTES).await, Ok(vec![]));
    }
    assert_eq!(with("allkeys-lru", "0").await, Ok(vec![]));
    let report = with("allkeys-lru", MEGABYTES).await.unwrap();
    let warning = "maxmemory-policy is allkeys-lru: counts are evicted when memory is full, so callers get a full \
                   quota again; set noeviction, or volatile-ttl on a shared server";
    assert_eq!(report, [warning]);
}

#[tokio::test]
async fn a_replica_is_no_store_of_limits_even_if_it_takes_writes() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    for read_only in ["yes", "no"] {
        replica.command(&["CONFIG", "SET", "replica-read-only", read_only]);
        let error = error(RedisStore::builder(replica.url())).await;
        assert_eq!(error, "store failed: the server is a replica; connect to its primary");
    }
}

#[tokio::test]
async fn several_servers_behind_one_address_are_found_out() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let ports = servers.each_ref().map(RedisServer::port);
    let next = AtomicUsize::new(0);
    // As behind a balancer, each connection leads to another one of them.
    let store = RedisStore::builder(servers[0].url())
        .connections(2)
        .connection_info_with(move |to| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), ports[number % 2]);
            ready(Ok(to.set_addr(address)))
        });
    let error = error(store).await;
    let expected = "the address leads to several servers with separate counts";
    assert!(error.contains(expected), "{error}");
    for server in &servers {
        assert!(server.command(&["DBSIZE"]).trim().parse::<u32>().unwrap() < 4);
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_no_single_server() {
    let error = error(RedisStore::builder(&shared_cluster().urls()[0])).await;
    let expected = "store failed: the server is a node of a cluster; use `RedisStore::cluster`";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_server_that_is_away_or_hangs_is_an_error_in_time() {
    let server = RedisServer::start();
    let limiter = limiter(RedisStore::builder(server.url())).build().unwrap();
    assert!(limiter.ready(HANG).await.unwrap().decision_time().is_some());
    server.pause();
    let late = limiter.ready(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(late.kind(), StoreErrorKind::TimedOut);
    server.resume();
    server.kill();
    let (kind, _) = report(RedisStore::builder(server.url())).await.unwrap_err();
    assert_eq!(kind, StoreErrorKind::Unreachable);
}

#[tokio::test]
async fn a_cluster_of_which_slots_are_lost_is_not_ready() {
    let cluster = RedisCluster::start(3, 0);
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let lost: Vec<_> = (0..100).map(|slot: u16| slot.to_string()).collect();
    for node in &cluster.nodes {
        let lost: Vec<_> = lost.iter().map(|slot| &**slot).collect();
        node.command(&[&["CLUSTER", "DELSLOTS"], &*lost].concat());
    }
    let error = error(RedisStore::cluster_builder(cluster.urls())).await;
    let expected = "store unavailable: 100 of the 16384 cluster slots are not assigned to a node";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn decisions_that_take_longer_than_the_deadline_are_a_warning() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set_mode(Mode::Delay(Duration::from_millis(20)));
    let limiter = limiter(RedisStore::builder(proxy.url())).deadline(Duration::from_millis(10));
    let report = limiter.build().unwrap().ready(HANG).await.unwrap();
    let warning = report.warnings().next().unwrap();
    assert!(warning.contains("longer than the deadline of 10ms"), "{warning}");
}

/// One slot may remain held: the slot of a decision whose reply was lost with its connection. Its lease is not renewed.
#[tokio::test]
async fn a_look_that_is_cut_off_releases_the_slots_of_its_decisions() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let mut looks = Vec::new();
    for bytes in (0..8_000).step_by(64) {
        proxy.set_mode(Mode::CutAfter(bytes));
        let store = RedisStore::builder(proxy.url()).connections(1);
        let limiter = limiter(store.lease_time(Duration::from_secs(86_400))).build().unwrap();
        let looked = limiter.ready(HANG).await;
        looks.push(looked.is_ok());
        proxy.set_mode(Mode::Forward);
        let _ = limiter.flush(HANG).await;
        let keys = server.command(&["KEYS", "*slots*"]);
        for key in keys.lines().filter(|key| !key.is_empty()) {
            assert_eq!(server.command(&["ZCARD", key]), "1", "after {bytes} bytes");
        }
        server.command(&["FLUSHALL"]);
    }
    // The steps are shorter than the answers to eight decisions, so some looks were cut off between two of them.
    assert!(looks.contains(&false) && looks.ends_with(&[true]), "{looks:?}");
}

/// The first replies are those about the server, which are text to every call.
#[tokio::test]
async fn a_reply_that_is_lost_doubled_or_swapped_is_noticed() {
    let server = RedisServer::start();
    for fault in [ReplyFault::Drop, ReplyFault::Double, ReplyFault::Swap] {
        let proxy = Proxy::start(server.port()).await;
        let store = RedisStore::builder(proxy.url()).connections(1);
        let limiter = limiter(store).build().unwrap();
        limiter.ready(HANG).await.unwrap();
        proxy.disturb_replies(fault);
        let (one, other) = tokio::join!(limiter.ready(HANG), limiter.ready(HANG));
        assert!(!proxy.is_disturbing());
        let errors: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "{fault:?}");
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{fault:?}: {error}");
        }
        limiter.ready(HANG).await.unwrap();
    }
}

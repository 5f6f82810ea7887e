//! Rules in a Redis behind sentinels.

use std::time::Duration;

use test_kit::{RedisServer, Sentinels, eventually, load::until};
use tokio::time::timeout;
use tower_quota::{CallerQuotas, PartitionKey, RedisStore, redis::cmd};
use tower_quota_fleet::{Contract, Contracts, Publication, RulesPublisher};

use crate::{
    events::log,
    servers::{PRODUCTION, documented_user, rules_at},
    source::{follow, hour, layer, quota},
};

/// Sentinels promote no replica that was cut off for more than ten times this before the primary went down.
fn set_patience(servers: &Sentinels) {
    for sentinel in &servers.sentinels {
        let patience = ["SENTINEL", "SET", Sentinels::SERVICE, "down-after-milliseconds", "3000"];
        assert_eq!(sentinel.command(&patience), "OK");
    }
}

/// From now on the replica cannot follow.
fn cut_off_the_replica(server: &RedisServer) {
    assert_eq!(server.command(&["WAIT", "1", "5000"]), "1");
    server.set_user("default", &["-psync", "-sync", "-replconf"]);
    server.command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// The replica has not heard of the last publication when it becomes the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_what_the_new_primary_has_holds_although_a_publication_was_lost() {
    let (servers, layer) = (Sentinels::start(), layer());
    if !servers.servers[0].has_users() {
        return;
    }
    drop(log("rules=sentinel"));
    let redis = RedisStore::sentinel_builder(servers.urls(), Sentinels::SERVICE);
    let rules = rules_at(redis, "sentinel");
    let follower = follow(&layer, rules.clone());
    let publisher = RulesPublisher::new(rules.clone(), "alice");
    // A change is logged before the status shows it.
    let follows = async |quota_then, number| {
        until("the layer follows", async || {
            let version = follower.status().version();
            quota(&layer) == quota_then && version.is_some_and(|version| version.number() == number)
        })
        .await;
    };
    for quota in [10, 20] {
        publisher.publish(Publication::rules(hour(quota))).await.unwrap();
    }
    follows(20, 2).await;

    set_patience(&servers);
    let primary = servers.primary();
    let server = &servers.servers[primary];
    cut_off_the_replica(server);
    let lost = publisher.publish(Publication::rules(hour(30))).await.unwrap().version();
    follows(30, 3).await;
    server.kill();
    servers.wait_for_primary(1 - primary);

    follows(20, 2).await;
    assert_eq!(follower.status().rejected(), None);
    let event = "did a failover lose a publication? rules=sentinel version=2 ";
    let lines = log(event);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("before={lost}")), "{lines:?}");
    // The next one has a number above the one that was lost, which the instance reports.
    until("it is reported", async || {
        let reports = rules.instances().await.unwrap_or_default();
        reports.iter().any(|report| report.newest() == lost.number())
    })
    .await;
    let next = publisher.publish(Publication::rules(hour(40))).await.unwrap().version();
    assert_eq!(next.number(), lost.number() + 1);
    follows(40, 4).await;
    assert_eq!(follower.status().version(), Some(next));
}

/// Sentinel demotes the old primary about ten seconds after the failover, and never in this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_ordered_failover_no_contract_goes_to_the_old_primary() {
    let servers = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let [old, new] = &servers.servers;
    if !old.has_users() {
        return;
    }
    for sentinel in &servers.sentinels {
        sentinel.set_user("limits", &documented_user(PRODUCTION, "sentinels"));
    }
    let urls = servers.urls().into_iter();
    let urls = urls.map(|url| url.replace("redis://", "redis://limits:password@"));
    let redis = RedisStore::sentinel_builder(urls, Sentinels::SERVICE);
    let table = Contracts::new(redis, "ordered").unwrap();
    let contract = Contract::new(CallerQuotas::new().quota("minute", 7));
    let customer = |name: &str| PartitionKey::new("customer", name);
    table.set(&customer("before"), &contract).await.unwrap();
    assert_eq!(old.command(&["WAIT", "1", "5000"]), "1");
    old.set_user("default", &["-slaveof", "-replicaof"]);

    let failover = ["SENTINEL", "FAILOVER", Sentinels::SERVICE];
    assert_eq!(servers.sentinels[0].command(&failover), "OK");
    tokio::task::block_in_place(|| servers.wait_for_primary(1));
    let keys = new.command(&["DBSIZE"]);
    until("the store follows", async || {
        let _ = table.set(&customer("probe"), &contract).await;
        new.command(&["DBSIZE"]) != keys
    })
    .await;
    assert!(old.has_role("master"));

    let keys = old.command(&["DBSIZE"]);
    let customers: Vec<_> = (0..50).map(|number: u32| customer(&number.to_string())).collect();
    for customer in &customers {
        table.set(customer, &contract).await.unwrap();
    }
    assert_eq!(old.command(&["DBSIZE"]), keys);
    for customer in customers.iter().chain([&customer("before")]) {
        assert!(table.get(customer).await.unwrap().is_some());
    }
}

/// The kernel of a server that hangs accepts connections, so an attempt lasts until its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_to_a_primary_that_hangs_end_with_the_failover() {
    let servers = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let redis = RedisStore::sentinel_builder(servers.urls(), Sentinels::SERVICE);
    let store = redis.connection_timeout(Duration::from_secs(60)).build().unwrap();
    let answers = async || {
        let asked = timeout(Duration::from_millis(300), store.command("any", cmd("TIME"))).await;
        asked.is_ok_and(|answer| answer.is_ok())
    };
    until("the store answers", answers).await;
    for sentinel in &servers.sentinels {
        // Sentinels subscribe to the servers, and not to each other.
        let is_heard = || sentinel.command(&["CLIENT", "LIST"]).contains(" sub=1 ");
        tokio::task::block_in_place(|| eventually("the store listens", is_heard));
    }
    servers.servers[0].pause();
    while answers().await {}
    tokio::task::block_in_place(|| servers.wait_for_primary(1));
    until("the store follows", answers).await;
}

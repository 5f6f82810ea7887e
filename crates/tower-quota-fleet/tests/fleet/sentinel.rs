//! Rules in a Redis behind sentinels.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::time::Duration;

use test_kit::{RedisServer, Sentinels};
use tokio::time::{sleep, timeout};
use tower_quota::{RateLimitLayer, RedisStore};
use tower_quota_fleet::{Publication, RedisRules, RulesFollower, RulesPublisher};

use crate::{
    events::log,
    source::{hour, layer, quota},
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

/// Waits until an instance reports that it has seen this version.
async fn until_reported(rules: &RedisRules, number: u64) {
    let has_reported = async || {
        let reports = rules.instances().await.unwrap_or_default();
        reports.iter().any(|report| report.newest() == number)
    };
    let reported = async {
        while !has_reported().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), reported).await.unwrap();
}

/// Waits until the layer has this quota by this version. A change is logged before the status shows it.
async fn follows(follower: &RulesFollower, layer: &RateLimitLayer, quota_then: u64, number: u64) {
    let is_so = || {
        let version = follower.status().version();
        quota(layer) == quota_then && version.is_some_and(|version| version.number() == number)
    };
    let follows = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), follows).await.unwrap();
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
    let rules = RedisRules::new(redis, "sentinel").unwrap();
    let follower = RulesFollower::builder(layer.limiter().rules(), rules.clone())
        .start()
        .unwrap();
    let publisher = RulesPublisher::new(rules.clone(), "alice");
    let until = async |quota, number| follows(&follower, &layer, quota, number).await;
    for quota in [10, 20] {
        publisher.publish(Publication::rules(hour(quota))).await.unwrap();
    }
    until(20, 2).await;

    set_patience(&servers);
    let primary = servers.primary();
    let server = &servers.servers[primary];
    cut_off_the_replica(server);
    let lost = publisher.publish(Publication::rules(hour(30))).await.unwrap().version();
    until(30, 3).await;
    server.kill();
    servers.wait_for_primary(1 - primary);

    until(20, 2).await;
    assert_eq!(follower.status().rejected(), None);
    let event = "did a failover lose a publication? rules=sentinel version=2 ";
    let lines = log(event);
    assert!(
        lines.len() == 1 && lines[0].contains(&format!("before={lost}")),
        "{lines:?}"
    );
    // The next one has a number above the one that was lost, which the instance reports.
    until_reported(&rules, lost.number()).await;
    let next = publisher.publish(Publication::rules(hour(40))).await.unwrap().version();
    assert_eq!(next.number(), lost.number() + 1);
    until(40, 4).await;
    assert_eq!(follower.status().version(), Some(next));
}

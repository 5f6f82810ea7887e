//! Rules in a real Redis: one server and a cluster, outages, other programs, and users with few permissions.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use test_kit::{
    RedisServer,
    load::{HANG, until},
    shared_server,
};
use tokio::time::{sleep, timeout};
use tower_quota::{RedisStore, StoreErrorKind};
use tower_quota_fleet::{FleetErrorKind as Reason, RulesDocument, RulesSource, RulesVersion};

use crate::{
    servers::{GUIDE, add_user, documented_user, key, rules, rules_at},
    source::{follow, layer, quota, reported, send, version},
};

/// Publishes as another program would that knows the format.
fn publish(server: &RedisServer, name: &str, document: &RulesDocument) -> RulesVersion {
    let json = document.to_json().unwrap();
    let version = RulesVersion::of(document.version(), json.as_bytes());
    server.command(&["SET", &key(name, "document"), &json]);
    server.command(&["SET", &key(name, "head"), &version.to_string()]);
    version
}

#[tokio::test]
async fn of_the_reports_of_an_instance_the_latest_counts_even_within_a_millisecond() {
    let rules = rules("latest");
    let other = reported("web-2", json!({}));
    rules.report(&other).await.unwrap();
    // The last one has the bytes of the first, which Redis still has.
    for newest in (1..100).rev().chain([99]) {
        let report = reported("web-1", json!({"newest": newest}));
        rules.report(&report).await.unwrap();
        assert_eq!(rules.instances().await.unwrap(), [report, other.clone()]);
    }
}

/// After a failover to a server whose clock is behind.
#[tokio::test]
async fn a_report_from_the_time_to_come_does_not_hide_the_next_one() {
    let rules = rules("behind");
    let [before, after] = [1, 2].map(|newest| reported("web-1", json!({"newest": newest})));
    rules.report(&before).await.unwrap();
    let before = serde_json::to_string(&before).unwrap();
    shared_server().command(&["ZINCRBY", &key("behind", "instances"), "3600000", &before]);
    rules.report(&after).await.unwrap();
    assert_eq!(rules.instances().await.unwrap(), [after]);
}

#[tokio::test]
async fn the_reports_of_instances_that_are_gone_do_not_count_and_are_deleted_by_others() {
    let (server, layer) = (shared_server(), layer());
    let rules = rules("gone");
    let time = server.command(&["TIME"]);
    let now = time.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1_000;
    let reports = |age: u64, member: &str| {
        server.command(&["ZADD", &key("gone", "instances"), &(now - age).to_string(), member]);
    };
    reports(40_000, r#"{"instance": "old"}"#);
    reports(70_000, r#"{"instance": "older"}"#);
    reports(
        1_000,
        r#"{"instance": "newer", "version": "7 af1349b9f5f9a1a6a0404dea36dcc949", "new": {}}"#,
    );
    reports(1_000, "not JSON");
    let fresh = rules.instances().await.unwrap();
    assert!(fresh.iter().map(|report| report.instance()).eq(["newer"]), "{fresh:?}");
    let _follower = follow(&layer, rules);
    until("the oldest is deleted", async || {
        server.command(&["ZCARD", &key("gone", "instances")]) == "4"
    })
    .await;
}

#[tokio::test]
async fn the_last_good_rules_stay_while_redis_is_down_and_a_server_without_them_changes_nothing() {
    let (server, layer) = (RedisServer::start(), layer());
    publish(&server, "outage", &version(5));
    let follower = follow(&layer, rules_at(RedisStore::builder(server.url()), "outage"));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    for number in [6, 7] {
        server.kill();
        until("the failure shows", async || follower.status().failure().is_some()).await;
        assert_eq!(quota(&layer), number - 1);
        assert!(send(&layer, "alice").await.1.contains(&format!("q={}", number - 1)));
        // The server has lost all data, like a server without persistence.
        server.restart();
        until("it answers again", async || follower.status().failure().is_none()).await;
        assert_eq!(quota(&layer), number - 1);
        publish(&server, "outage", &version(number));
        until("the next version holds", async || quota(&layer) == number).await;
    }
    // A server that hangs is as good as none.
    server.pause();
    until("the failure shows", async || follower.status().failure().is_some()).await;
    assert_eq!(quota(&layer), 7);
    server.resume();
    until("it answers again", async || follower.status().failure().is_none()).await;
}

/// The number of times that the server ran this command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// The number of bytes that the server has sent.
fn bytes_sent(server: &RedisServer) -> usize {
    let stats = server.command(&["INFO", "stats"]);
    let mut lines = stats.lines();
    let sent = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    sent.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn what_other_programs_write_is_rejected_and_too_much_of_it_is_not_even_read() {
    let (server, layer) = (RedisServer::start(), layer());
    publish(&server, "foreign", &version(5));
    let follower = follow(&layer, rules_at(RedisStore::builder(server.url()), "foreign"));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    let (head, document) = (key("foreign", "head"), key("foreign", "document"));

    server.command(&["CONFIG", "RESETSTAT"]);
    server.command(&["SETRANGE", &document, "10485759", "x"]);
    server.command(&["SET", &head, &RulesVersion::of(6, b"").to_string()]);
    let rejected = || follower.status().rejected().map(|(_, error)| error.kind());
    until("it is too long", async || rejected() == Some(Reason::TooLong)).await;
    sleep(Duration::from_secs(2)).await;
    // The document was read once, and not completely.
    assert_eq!((calls(&server, "getrange"), calls(&server, "mget") >= 2), (1, true));
    assert!(bytes_sent(&server) < 2 * RulesDocument::MAX_LENGTH);

    for key in [&head, &document] {
        server.command(&["DEL", key]);
        server.command(&["RPUSH", key, "a list"]);
        if key == &document {
            server.command(&["SET", &head, &RulesVersion::of(6, b"").to_string()]);
        }
        // `MGET` shows a head of another type as none.
        until("it is of another type", async || {
            let status = follower.status();
            let failure = status.failure().unwrap_or_default();
            failure.contains("WRONGTYPE") || (key == &head && !status.lost().is_empty())
        })
        .await;
        server.command(&["DEL", key]);
        publish(&server, "foreign", &version(5));
        until("it is well again", async || follower.status().failure().is_none()).await;
    }
    assert_eq!(quota(&layer), 5);
}

#[tokio::test]
async fn the_permissions_of_the_guide_are_what_an_instance_uses_and_no_more() {
    let (layer, server) = (layer(), RedisServer::start());
    if !server.has_users() {
        return;
    }
    let permissions = documented_user(GUIDE, "instances");
    let url = add_user(&server, "instances", &permissions);
    server.command(&["CONFIG", "RESETSTAT"]);
    let instances = rules_at(RedisStore::builder(url), "api");
    let follower = follow(&layer, instances.clone());
    publish(&server, "api", &version(5));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    let published = publish(&server, "api", &version(6));
    let is_reported = || {
        let reports = server.command(&["ZRANGE", &key("api", "instances"), "0", "-1"]);
        reports.contains(&published.to_string())
    };
    until("the report is there", async || is_reported()).await;
    until("old ones are deleted", async || calls(&server, "zremrangebyscore") >= 2).await;
    let used = server.command(&["INFO", "commandstats"]);
    let used = used
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
    // Commands of the test, and of every connection.
    let own = [
        "acl", "auth", "client", "config", "hello", "info", "ping", "set", "zrange",
    ];
    let of_others = |command: &&str| !own.iter().any(|own| command.split('|').next() == Some(own));
    let used: BTreeSet<String> = used.filter(of_others).map(str::to_owned).collect();
    let given = permissions.iter().filter_map(|word| word.strip_prefix('+'));
    assert_eq!(used, given.map(str::to_owned).collect());
    assert_eq!(instances.instances().await.unwrap_err().kind(), StoreErrorKind::Failed);
}

//! Rules in a real Redis: one server and a cluster, outages, other programs, and users with few permissions.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{
    collections::BTreeSet,
    fs,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use test_kit::{RedisCluster, RedisServer, shared_cluster, shared_server};
use tokio::time::{Instant, sleep, timeout};
use tower_quota::{RateLimitLayer, RedisStore, RedisStoreBuilder, StoreErrorKind};
use tower_quota_fleet::{
    FleetErrorKind as Reason, InstanceReport, RedisRules, RulesDocument, RulesFollower, RulesSource, RulesVersion,
    SourceFuture, SourceState,
};

use crate::source::{layer, quota, reported, send, version};

/// Longer than an instance takes on a machine that does much else.
const HANG: Duration = Duration::from_secs(30);

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(HANG, wait)
        .await
        .unwrap_or_else(|_| panic!("still not so: {what}"));
}

/// The key of a rule set of the usual prefix.
fn key(name: &str, kind: &str) -> String {
    format!("rules:{{quota:{name}}}:{kind}")
}

/// Publishes as another program would that knows the format.
fn publish(server: &RedisServer, name: &str, document: &RulesDocument) -> RulesVersion {
    publish_bytes(server, name, document.version(), &document.to_json().unwrap())
}

fn publish_bytes(server: &RedisServer, name: &str, number: u64, document: &str) -> RulesVersion {
    let version = RulesVersion::of(number, document.as_bytes());
    server.command(&["SET", &key(name, "document"), document]);
    server.command(&["SET", &key(name, "head"), &version.to_string()]);
    version
}

fn rules(servers: RedisStoreBuilder, name: &str) -> RedisRules {
    RedisRules::new(servers, name).unwrap()
}

fn follow(layer: &RateLimitLayer, rules: RedisRules) -> RulesFollower {
    RulesFollower::builder(layer.limiter().rules(), rules).start().unwrap()
}

#[tokio::test]
async fn instances_follow_a_rule_set_in_redis_and_report_what_they_run() {
    let (server, layers) = (shared_server(), [layer(), layer(), layer()]);
    let rules = rules(RedisStore::builder(server.url()), "follow");
    assert!(rules.instances().await.unwrap().is_empty());
    let followers = layers.each_ref().map(|layer| {
        let builder = RulesFollower::builder(layer.limiter().rules(), rules.clone());
        builder.instance("web").start().unwrap()
    });
    for number in [5, 6, 4] {
        let published = publish(server, "follow", &version(number));
        until("all have it", || layers.iter().all(|layer| quota(layer) == number)).await;
        let is_said = async || {
            let instances = rules.instances().await.unwrap();
            assert!(instances.len() <= 3, "one each: {instances:?}");
            instances.len() == 3 && instances.iter().all(|report| report.version() == Some(published))
        };
        let start = Instant::now();
        while !is_said().await {
            assert!(start.elapsed() < HANG, "{:?}", rules.instances().await);
            sleep(Duration::from_millis(20)).await;
        }
    }
    let names: BTreeSet<_> = rules
        .instances()
        .await
        .unwrap()
        .iter()
        .map(|report| report.instance().to_owned())
        .collect();
    assert!(names.len() == 3 && names.iter().all(|name| name.starts_with("web#")));
    drop(followers);
}

/// Rules in Redis, of whose reports some are written but get no answer.
#[derive(Debug)]
struct Stalling {
    rules: RedisRules,
    stalls: Arc<AtomicBool>,
}

impl RulesSource for Stalling {
    fn state(&self) -> SourceFuture<'_, SourceState> {
        self.rules.state()
    }

    fn document(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        self.rules.document(version)
    }

    fn report<'a>(&'a self, report: &'a InstanceReport) -> SourceFuture<'a, ()> {
        Box::pin(async move {
            let reported = self.rules.report(report).await;
            match self.stalls.load(Ordering::SeqCst) {
                true => pending().await,
                false => reported,
            }
        })
    }
}

#[tokio::test]
async fn an_instance_whose_reports_got_no_answer_is_counted_once_after_the_next_change() {
    let (server, layer) = (shared_server(), layer());
    let (rules, stalls) = (
        rules(RedisStore::builder(server.url()), "stalling"),
        Arc::<AtomicBool>::default(),
    );
    let source = Stalling {
        rules: rules.clone(),
        stalls: Arc::clone(&stalls),
    };
    let _follower = RulesFollower::builder(layer.limiter().rules(), source).start().unwrap();
    for (number, is_stalling) in [(5, false), (6, true), (7, true), (8, false), (9, false)] {
        stalls.store(is_stalling, Ordering::SeqCst);
        let published = publish(server, "stalling", &version(number)).to_string();
        until("it is reported", || {
            let reports = server.command(&["ZRANGE", &key("stalling", "instances"), "0", "-1"]);
            reports.contains(&published)
        })
        .await;
        let instances = rules.instances().await.unwrap();
        assert_eq!(instances.len(), 1, "{instances:?}");
    }
}

#[tokio::test]
async fn of_the_reports_of_an_instance_the_latest_counts() {
    let rules = rules(RedisStore::builder(shared_server().url()), "latest");
    let reports = [1, 2].map(|newest| reported("web-1", json!({"newest": newest})));
    rules.report(&reported("web-2", json!({}))).await.unwrap();
    // The last one has the bytes of the first, which Redis still has.
    for report in [&reports[0], &reports[1], &reports[0]] {
        rules.report(report).await.unwrap();
        let instances = rules.instances().await.unwrap();
        assert_eq!(instances, [report.clone(), reported("web-2", json!({}))]);
    }
}

#[tokio::test]
async fn reports_of_one_millisecond_are_in_order() {
    let rules = rules(RedisStore::builder(shared_server().url()), "millisecond");
    for newest in (1..100).rev() {
        let report = reported("web-1", json!({"newest": newest}));
        rules.report(&report).await.unwrap();
        assert_eq!(rules.instances().await.unwrap(), [report]);
    }
}

/// After a failover to a server whose clock is behind.
#[tokio::test]
async fn a_report_from_the_time_to_come_does_not_hide_the_next_one() {
    let server = shared_server();
    let rules = rules(RedisStore::builder(server.url()), "behind");
    let [before, after] = [1, 2].map(|newest| reported("web-1", json!({"newest": newest})));
    rules.report(&before).await.unwrap();
    let before = serde_json::to_string(&before).unwrap();
    server.command(&["ZINCRBY", &key("behind", "instances"), "3600000", &before]);
    rules.report(&after).await.unwrap();
    assert_eq!(rules.instances().await.unwrap(), [after]);
}

#[tokio::test]
async fn the_reports_of_instances_that_are_gone_do_not_count_and_are_deleted_by_others() {
    let (server, layer) = (shared_server(), layer());
    let rules = rules(RedisStore::builder(server.url()), "gone");
    let [seconds, _]: [String; 2] = {
        let time = server.command(&["TIME"]);
        let words: Vec<_> = time.split_whitespace().map(str::to_owned).collect();
        words.try_into().unwrap_or_else(|words| panic!("{words:?}"))
    };
    let now = seconds.parse::<u64>().unwrap() * 1_000;
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
    assert_eq!(
        fresh.iter().map(|report| report.instance()).collect::<Vec<_>>(),
        ["newer"]
    );
    let _follower = follow(&layer, rules);
    until("the oldest is deleted", || {
        server.command(&["ZCARD", &key("gone", "instances")]) == "4"
    })
    .await;
}

#[tokio::test]
async fn a_cluster_has_all_keys_of_a_rule_set_in_one_slot() {
    let cluster: &RedisCluster = shared_cluster();
    let slots = ["head", "document", "instances"].map(|kind| cluster.slot(&key("cluster", kind)));
    assert!(slots.iter().all(|slot| *slot == slots[0]));
    let owner = &cluster.nodes[cluster.owner(slots[0])];
    publish(owner, "cluster", &version(5));
    let (layer, rules) = (layer(), rules(RedisStore::cluster_builder(cluster.urls()), "cluster"));
    let follower = follow(&layer, rules.clone());
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    assert_eq!(quota(&layer), 5);
    publish(owner, "cluster", &version(6));
    until("it has the next one", || quota(&layer) == 6).await;
    assert_eq!(rules.instances().await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_last_good_rules_stay_while_redis_is_down_and_a_server_without_them_changes_nothing() {
    let (server, layer) = (RedisServer::start(), layer());
    publish(&server, "outage", &version(5));
    let follower = follow(&layer, rules(RedisStore::builder(server.url()), "outage"));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    for number in [6, 7] {
        server.kill();
        until("the failure shows", || follower.status().failure().is_some()).await;
        assert_eq!(quota(&layer), number - 1);
        assert!(send(&layer, "alice").await.1.contains(&format!("q={}", number - 1)));
        // The server has lost all data, like a server without persistence.
        server.restart();
        until("it answers again", || follower.status().failure().is_none()).await;
        assert_eq!(quota(&layer), number - 1);
        publish(&server, "outage", &version(number));
        until("the next version holds", || quota(&layer) == number).await;
    }
    // A server that hangs is as good as none.
    server.pause();
    until("the failure shows", || follower.status().failure().is_some()).await;
    assert_eq!(quota(&layer), 7);
    server.resume();
    until("it answers again", || follower.status().failure().is_none()).await;
}

#[tokio::test]
async fn an_instance_that_starts_without_redis_has_its_own_rules_and_follows_later() {
    let (server, layer) = (RedisServer::start(), layer());
    server.kill();
    let follower = follow(&layer, rules(RedisStore::builder(server.url()), "late"));
    until("the failure shows", || follower.status().failure().is_some()).await;
    assert_eq!(quota(&layer), 1);
    server.restart();
    publish(&server, "late", &version(5));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    assert_eq!(quota(&layer), 5);
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
    let follower = follow(&layer, rules(RedisStore::builder(server.url()), "foreign"));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    let (head, document) = (key("foreign", "head"), key("foreign", "document"));

    server.command(&["CONFIG", "RESETSTAT"]);
    server.command(&["SETRANGE", &document, "10485759", "x"]);
    server.command(&["SET", &head, &RulesVersion::of(6, b"").to_string()]);
    let rejected = || follower.status().rejected().map(|(_, error)| error.kind());
    until("it is too long", || rejected() == Some(Reason::TooLong)).await;
    sleep(Duration::from_secs(2)).await;
    // The document was read once, and not completely.
    assert_eq!((calls(&server, "getrange"), calls(&server, "mget") >= 2), (1, true));
    assert!(bytes_sent(&server) < 2 * RulesDocument::MAX_LENGTH);

    for value in ["x", "6", "", "6 af1349b9f5f9a1a6a0404dea36dcc949\n"] {
        server.command(&["SET", &head, value]);
        until("it is no version", || {
            let failure = follower.status().failure().unwrap_or_default().to_owned();
            failure.contains("the head of the rule set was not written by this crate")
        })
        .await;
        publish(&server, "foreign", &version(5));
        until("it is well again", || follower.status().failure().is_none()).await;
    }
    for key in [&head, &document] {
        server.command(&["DEL", key]);
        server.command(&["RPUSH", key, "a list"]);
        if key == &document {
            server.command(&["SET", &head, &RulesVersion::of(6, b"").to_string()]);
        }
        // `MGET` shows a head of another type as none.
        until("it is of another type", || {
            let status = follower.status();
            let failure = status.failure().unwrap_or_default();
            failure.contains("WRONGTYPE") || (key == &head && !status.lost().is_empty())
        })
        .await;
        server.command(&["DEL", key]);
        publish(&server, "foreign", &version(5));
        until("it is well again", || follower.status().failure().is_none()).await;
    }
    assert_eq!(quota(&layer), 5);
}

/// The permissions that the guide gives to instances.
fn permissions() -> Vec<String> {
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fleet.md")).unwrap();
    let (_, rule) = guide.split_once("ACL SETUSER instances ").unwrap();
    let rule = rule.split("```").next().unwrap();
    rule.split_whitespace().map(str::to_owned).collect()
}

/// A server with a user who has the permissions of the guide, and the rule set `api` as a user of it sees it.
fn with_users() -> (RedisServer, impl Fn(&str) -> RedisRules) {
    let server = RedisServer::start();
    let permissions = permissions();
    let rule: Vec<&str> = permissions.iter().map(String::as_str).collect();
    if server.has_users() {
        server.set_user("instances", &rule);
        server.set_user("limits", &["on", ">password", "~quota:*", "+@all"]);
    }
    let url = server.url();
    let as_user = move |user: &str| {
        let url = url.replace("redis://", &format!("redis://{user}:password@"));
        rules(RedisStore::builder(url), "api")
    };
    (server, as_user)
}

#[tokio::test]
async fn the_permissions_of_the_guide_are_what_an_instance_uses_and_no_more() {
    let (layer, (server, as_user)) = (layer(), with_users());
    if !server.has_users() {
        return;
    }
    server.command(&["CONFIG", "RESETSTAT"]);
    let instances = as_user("instances");
    let follower = follow(&layer, instances.clone());
    publish(&server, "api", &version(5));
    timeout(HANG, follower.wait_for_rules()).await.unwrap();
    let published = publish(&server, "api", &version(6));
    let is_reported = || {
        let reports = server.command(&["ZRANGE", &key("api", "instances"), "0", "-1"]);
        reports.contains(&published.to_string())
    };
    until("the report is there", is_reported).await;
    until("old ones are deleted", || calls(&server, "zremrangebyscore") >= 2).await;
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
    let given = permissions();
    let given = given.iter().filter_map(|word| word.strip_prefix('+'));
    assert_eq!(used, given.map(str::to_owned).collect());
    assert_eq!(instances.instances().await.unwrap_err().kind(), StoreErrorKind::Failed);
}

#[tokio::test]
async fn neither_instances_nor_the_user_of_the_store_can_change_rules() {
    let (layer, (server, as_user)) = (layer(), with_users());
    if !server.has_users() {
        return;
    }
    let (head, document) = (key("api", "head"), key("api", "document"));
    let is_denied = async |user: &str, command: &[&str]| {
        let url = server.url().replace("redis://", &format!("redis://{user}:password@"));
        let client = ::redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let (name, arguments) = command.split_first().unwrap();
        let answer = ::redis::cmd(name).arg(arguments).query_async(&mut connection).await;
        let error = answer.map(|_: ::redis::Value| ()).err();
        // Within a script, servers of several versions word it in their own ways.
        let of_script = ["user executing the script can't run", "ACL failure in script"];
        error.is_some_and(|error| {
            let text = error.to_string();
            error.code() == Some("NOPERM") || of_script.iter().any(|words| text.contains(words))
        })
    };
    for user in ["instances", "limits"] {
        for key in [&head, &document] {
            for command in [
                &["SET", key, "x"][..],
                &["DEL", key],
                &["APPEND", key, "x"],
                &["EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", key],
            ] {
                assert!(is_denied(user, command).await, "{user} {command:?}");
            }
        }
    }
    assert!(is_denied("limits", &["MGET", &head]).await && !is_denied("instances", &["MGET", &head]).await);
    let follower = follow(&layer, as_user("limits"));
    let is_forbidden = || {
        follower
            .status()
            .failure()
            .is_some_and(|failure| failure.contains("NoPerm"))
    };
    until("it is forbidden", is_forbidden).await;
}

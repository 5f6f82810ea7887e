//! Instances that follow one rule set: an operator of any instance changes the rules of all instances.

use std::{env, fs};

use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use test_kit::{RedisServer, shared_server};
use tower_quota::{QuotaPolicy, RedisStore, Rules};
use tower_quota_fleet::{Publication, RedisRules, RulesDocument, RulesPublisher};

use crate::{Platform, TOKEN, eventually, log, rules, send};

impl Platform {
    /// Starts an instance of a fleet, which applies the rules of its file until the first publication.
    async fn in_fleet(server: &RedisServer, test: u8, set: &str) -> Self {
        let file = env::temp_dir().join(format!("tower-quota-fleet-{}-{test}.json", std::process::id()));
        fs::write(&file, rules(100)).unwrap();
        let mut platform = Self::of(server, test, file, Some(TOKEN), Some(set)).await;
        platform.is_own_file = true;
        platform
    }

    async fn change(&self, method: Method, path: &str, body: &str) -> StatusCode {
        self.admin(method, &format!("/admin/{path}"), body).await.status
    }

    /// Returns the state of the fleet from the operators' page of this instance.
    async fn fleet(&self) -> Value {
        let answer = self.admin(Method::GET, "/admin/fleet", "").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.json()
    }

    async fn runs(&self, number: u64) {
        let of = async || self.state().await["fleet"]["number"] == number;
        eventually(&format!("version {number} runs"), of).await;
    }

    /// Returns the daily quota of premium users.
    async fn quota(&self) -> Value {
        self.caller("user=premium-quota").await["policies"][0]["quota"].clone()
    }

    async fn is_blocked(&self, user: &str) -> bool {
        self.caller(&format!("user={user}")).await["is_blocked"] == true
    }
}

fn publisher(server: &RedisServer, set: &str) -> RulesPublisher {
    let rules = RedisRules::new(RedisStore::builder(server.url()), set).unwrap();
    RulesPublisher::new(rules, "a deployment")
}

#[tokio::test]
async fn a_change_on_one_instance_holds_on_all() {
    let one = Platform::in_fleet(shared_server(), 30, "platform-all").await;
    let other = Platform::in_fleet(shared_server(), 31, "platform-all").await;
    assert_eq!(one.fleet().await["published"], Value::Null);
    let warning =
        "WARN platform::platform: the file of rules holds only until the first version of the rule set is read";
    let is_warning = |line: &str| line.contains(warning) && line.contains(r#"set="platform-all""#);
    assert!(log().lines().any(is_warning), "{}", log());
    assert_eq!(one.change(Method::POST, "rules?by=alice", &rules(200)).await, 200);
    other.runs(1).await;
    assert_eq!(other.quota().await, 200);
    let fleet = other.fleet().await;
    assert_eq!(fleet["published"]["author"], "alice");
    assert!(fleet["published"]["time"].as_u64() > Some(1_700_000_000));

    assert_eq!(other.change(Method::PUT, "roll-out/0", &rules(300)).await, 200);
    one.runs(2).await;
    assert_eq!(one.state().await["fleet"]["percent"], 0);
    assert_eq!(one.quota().await, 200);
    // Applies the rules in rollout to all callers.
    assert_eq!(one.change(Method::POST, "roll-out", "").await, 200);
    other.runs(3).await;
    assert_eq!(other.quota().await, 300);
    assert_eq!(other.change(Method::POST, "roll-back", "").await, 200);
    one.runs(4).await;
    assert_eq!(one.state().await["fleet"]["percent"], 0);
    assert_eq!(one.change(Method::DELETE, "roll-out", "").await, 200);
    assert_eq!(one.change(Method::DELETE, "roll-out", "").await, StatusCode::CONFLICT);
    other.runs(5).await;
}

#[tokio::test]
async fn the_switch_and_blocks_reach_all_instances_before_any_rules_do() {
    let one = Platform::in_fleet(shared_server(), 44, "platform-controls").await;
    let other = Platform::in_fleet(shared_server(), 45, "platform-controls").await;
    let off = "switch/off?seconds=60&by=alice&because=incident";
    assert_eq!(one.change(Method::POST, off, "").await, 200);
    eventually("the other is off", async || other.state().await["is_on"] == false).await;
    let switch = other.fleet().await["controls"]["switch"].clone();
    assert_eq!(
        (&switch["author"], &switch["reason"]),
        (&json!("alice"), &json!("incident"))
    );
    assert_eq!(switch["is_off"], true);
    assert_eq!(other.change(Method::POST, "switch/on", "").await, 200);
    eventually("it is on", async || one.state().await["is_on"] == true).await;
    assert_eq!(one.change(Method::GET, "document", "").await, 404);

    let mallory = r#"{"user": "mallory", "seconds": 600}"#;
    assert_eq!(one.change(Method::POST, "block", mallory).await, 200);
    eventually("mallory is blocked", async || other.is_blocked("mallory").await).await;
    assert_eq!(other.get("/", "mallory").await.status, StatusCode::FORBIDDEN);
    let client = json!({"user": "mallory"});
    assert_eq!(other.fleet().await["controls"]["access"][0]["client"], client);
    let changes = other.fleet().await["changes"].clone();
    let text = changes[0]["text"].as_str().unwrap();
    assert!(text.starts_with("access list: + block user"), "{changes}");
    assert_eq!(other.change(Method::DELETE, "block", &client.to_string()).await, 200);
    eventually("mallory is served", async || !one.is_blocked("mallory").await).await;
    let status = other.change(Method::DELETE, "block", &client.to_string()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_locks_everybody_out_needs_another_confirmation() {
    let one = Platform::in_fleet(shared_server(), 42, "platform-drastic").await;
    one.change(Method::POST, "rules", &rules(200)).await;
    one.runs(1).await;
    let everybody = r#"{"network": "0.0.0.0/0", "seconds": 1}"#;
    for (path, body) in [
        ("rules", &*rules(0)),
        ("block", everybody),
        ("switch/off?seconds=90000", ""),
    ] {
        let status = one.change(Method::POST, path, body).await;
        assert_eq!(status, StatusCode::PRECONDITION_REQUIRED, "{path}");
    }
    assert_eq!(one.fleet().await["published"]["number"], 1);
    assert_eq!(one.change(Method::POST, "rules?confirmed=true", &rules(0)).await, 200);
    one.runs(2).await;
}

#[tokio::test]
async fn after_a_flush_the_document_of_an_instance_can_be_fetched() {
    let server = RedisServer::start();
    let one = Platform::in_fleet(&server, 43, "platform-flushed").await;
    one.change(Method::POST, "rules", &rules(200)).await;
    one.runs(1).await;
    server.command(&["FLUSHALL"]);
    let lost = async || one.state().await["fleet"]["lost"].clone();
    let missing = json!(["rules: missing, previously 1"]);
    eventually("it says what is lost", async || lost().await == missing).await;
    let fleet = one.fleet().await;
    assert_eq!(fleet["published"], Value::Null);
    assert_eq!(fleet["instances"][0]["has_lost"], true);
    let document = one.admin(Method::GET, "/admin/document", "").await;
    let document = RulesDocument::parse(document.body.as_bytes()).unwrap();
    let restored = Publication::restore(document);
    let restored = publisher(&server, "platform-flushed").publish(restored).await;
    assert_eq!(restored.unwrap().version().number(), 2);
    eventually("nothing is lost", async || lost().await == json!([])).await;
}

#[tokio::test]
async fn the_switch_of_an_instance_overrides_that_of_all() {
    let one = Platform::in_fleet(shared_server(), 32, "platform-switch").await;
    let other = Platform::in_fleet(shared_server(), 33, "platform-switch").await;
    one.change(Method::POST, "rules", &rules(100)).await;
    assert_eq!(one.change(Method::POST, "switch/off", "").await, 200);
    let is_on = async |platform: &Platform| platform.state().await["is_on"] == true;
    eventually("both are off", async || !is_on(&one).await && !is_on(&other).await).await;

    assert_eq!(one.change(Method::POST, "own-switch/on", "").await, 204);
    assert!(is_on(&one).await && !is_on(&other).await);
    let is_overridden = async || one.state().await["fleet"]["is_overridden"] == true;
    eventually("one says that it overrides the fleet", is_overridden).await;
    eventually("all see it", async || {
        let fleet = other.fleet().await;
        let instances = fleet["instances"].as_array().unwrap();
        instances.len() == 2 && instances.iter().any(|instance| instance["is_overridden"] == true)
    })
    .await;

    assert_eq!(one.change(Method::POST, "own-switch/fleet", "").await, 204);
    assert!(!is_on(&one).await);
    assert_eq!(other.change(Method::POST, "switch/on", "").await, 200);
    eventually("both are on", async || is_on(&one).await && is_on(&other).await).await;
    assert_eq!(one.change(Method::POST, "own-switch/sideways", "").await, 404);
    assert_eq!(one.change(Method::POST, "switch/sideways", "").await, 404);
}

#[tokio::test]
async fn a_change_of_rules_that_have_changed_meanwhile_is_not_published() {
    let platform = Platform::in_fleet(shared_server(), 34, "platform-conflict").await;
    let change = async |query: &str, seen: &str, body: &str| {
        let request = platform.request(Method::POST, &format!("/admin/rules?{query}"));
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let request = request.header("if-match", format!("\"{seen}\""));
        send(&platform.app, request.body(body.to_owned().into()).unwrap()).await
    };
    let published = async || platform.fleet().await["published"].clone();
    assert_eq!(change("by=alice", "none", &rules(100)).await.status, 200);
    let first = published().await["version"].as_str().unwrap().to_owned();
    assert_eq!(change("by=bob", &first, &rules(200)).await.status, 200);
    for outdated in [&*first, "none", "2", ""] {
        let answer = change("by=alice", outdated, &rules(300)).await;
        let message = "the rules have changed meanwhile, version 2 by \"bob\" holds; look at them again\n";
        assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);
        assert_eq!(answer.body, message);
    }

    let second = published().await["version"].as_str().unwrap().to_owned();
    let month = rules(200).replace(
        r#""name":"month","quota":500,"window_seconds":86400"#,
        r#""name":"month","quota":500,"window_seconds":3600,"algorithm":"fixed_window""#,
    );
    let preview = change("preview=true", &second, &month).await;
    let shown = preview.json();
    assert_eq!(shown["before"], *second);
    assert_eq!(shown["count_resets"].as_array().unwrap().len(), 1, "{shown}");
    let answer = change("", &second, &month).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    answer.assert_contains("counts would be lost: tier \"premium\"");
    // Neither the preview nor the rejected change was published.
    assert_eq!(published().await["number"], 2);
    assert_eq!(change("restart_counts=true", &second, &month).await.status, 200);
    assert_eq!(published().await["author"], "the operators' page");
}

#[tokio::test]
async fn a_document_that_an_instance_rejects_is_shown_with_the_reason() {
    let server = shared_server();
    let platform = Platform::in_fleet(server, 35, "platform-rejected").await;
    platform.change(Method::POST, "rules", &rules(200)).await;
    platform.runs(1).await;
    let reason = "unknown key \"planet\"";

    // The page does not publish rules that its own instance cannot apply,
    let by_planet = rules(5).replace(r#""key":"address""#, r#""key":"planet""#);
    let answer = platform.admin(Method::POST, "/admin/rules", &by_planet).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    answer.assert_contains(reason);
    assert_eq!(platform.fleet().await["published"]["number"], 1);

    // but other publishers can.
    let day = QuotaPolicy::per_day("day", 7).keyed_by("planet");
    let by_planet = Rules::new().tier("free", [day]).unlimited("premium").unlimited("admin");
    let change = Publication::rules(by_planet).allow_count_reset();
    publisher(server, "platform-rejected").publish(change).await.unwrap();
    let rejected = async || platform.state().await["fleet"]["rejected"].clone();
    eventually("version 2 is rejected", async || rejected().await["number"] == 2).await;
    let message = rejected().await["message"].as_str().unwrap().to_owned();
    assert!(message.contains(reason), "{message}");
    assert_eq!(platform.quota().await, 200);
    eventually("the report says so", async || {
        let instance = &platform.fleet().await["instances"][0];
        (&instance["number"], &instance["rejects"]) == (&json!(1), &json!(2))
    })
    .await;
    // Each instance is counted under the policies that it runs.
    let policies = platform.fleet().await["policies"].clone();
    let of_premium = |row: &&Value| row["tier"] == "premium" && row["policy"] == "day";
    let rows: Vec<_> = policies.as_array().unwrap().iter().filter(of_premium).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["quota"], &rows[0]["instances"]), (&json!(200), &json!(1)));

    // In an incident, an operator can disable all limits even if the instance rejects the current rules.
    assert_eq!(platform.change(Method::POST, "switch/off", "").await, 200);
    eventually("the limits are off", async || platform.state().await["is_on"] == false).await;
    assert_eq!(platform.change(Method::POST, "switch/on", "").await, 200);
    eventually("the limits are on", async || platform.state().await["is_on"] == true).await;
    let mallory = r#"{"user": "mallory"}"#;
    assert_eq!(platform.change(Method::POST, "block", mallory).await, 200);
    eventually("mallory is blocked", async || platform.is_blocked("mallory").await).await;
    assert_eq!(platform.get("/", "mallory").await.status, StatusCode::FORBIDDEN);
    let shown = platform.fleet().await["controls"]["access"].clone();
    assert_eq!(
        shown,
        json!([{"client": {"user": "mallory"}, "seconds": null, "access": "block"}])
    );
    assert_eq!(platform.quota().await, 200);

    assert_eq!(platform.change(Method::POST, "roll-back/1", "").await, 200);
    eventually("nothing is rejected", async || rejected().await == Value::Null).await;
}

#[tokio::test]
async fn tried_rules_that_an_instance_rejects_are_not_for_all_by_its_page() {
    let server = shared_server();
    let platform = Platform::in_fleet(server, 37, "platform-tried").await;
    platform.change(Method::POST, "rules", &rules(200)).await;
    let day = QuotaPolicy::per_day("day", 7).keyed_by("planet");
    let by_planet = Rules::new().tier("free", [day]).unlimited("premium").unlimited("admin");
    let change = Publication::rules(by_planet).rollout_percent(10).allow_count_reset();
    publisher(server, "platform-tried").publish(change).await.unwrap();

    for (method, path) in [
        (Method::POST, "roll-out?restart_counts=true"),
        (Method::PUT, "roll-out/20"),
    ] {
        let answer = platform.admin(method, &format!("/admin/{path}"), "").await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        answer.assert_contains("unknown key \"planet\"");
    }
    assert_eq!(platform.fleet().await["published"]["number"], 2);
    // The rollout can still be ended.
    let status = platform
        .change(Method::DELETE, "roll-out?restart_counts=true", "")
        .await;
    assert_eq!(status, 200);
    platform.runs(3).await;
    assert_eq!(platform.quota().await, 200);
}

/// A rollback that only ends a rollout does not change the rules.
#[tokio::test]
async fn a_roll_back_ends_a_trial_and_keeps_the_rules() {
    let platform = Platform::in_fleet(shared_server(), 38, "platform-roll-back").await;
    platform.change(Method::POST, "rules", &rules(200)).await;
    platform.change(Method::PUT, "roll-out/100", &rules(300)).await;
    platform.runs(2).await;
    assert_eq!(platform.quota().await, 300);
    assert_eq!(platform.change(Method::POST, "roll-back?by=alice", "").await, 200);
    platform.runs(3).await;
    assert_eq!(platform.quota().await, 200);
    let published = platform.fleet().await["published"].clone();
    assert_eq!(
        (&published["author"], &published["percent"]),
        (&json!("alice"), &Value::Null)
    );
}

#[tokio::test]
async fn without_redis_the_page_says_what_it_does_not_know_and_the_own_switch_works() {
    let server = RedisServer::start();
    let platform = Platform::in_fleet(&server, 36, "platform-away").await;
    platform.change(Method::POST, "rules", &rules(200)).await;
    platform.runs(1).await;

    server.kill();
    let failure = async || platform.state().await["fleet"]["failure"].clone();
    eventually("the instance says why", async || failure().await.is_string()).await;
    assert_eq!(platform.state().await["fleet"]["number"], 1);
    for (method, path, body) in [
        (Method::GET, "fleet", ""),
        (Method::POST, "switch/off", ""),
        (Method::POST, "block", r#"{"user": "mallory"}"#),
        (Method::POST, "roll-back", ""),
    ] {
        let status = platform.change(method, path, body).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    assert_eq!(platform.change(Method::POST, "own-switch/off", "").await, 204);
    assert_eq!(platform.state().await["is_on"], false);
    assert_eq!(platform.get("/", "premium-away").await.left(), Vec::new());
    platform
        .admin(Method::GET, "/admin/rules", "")
        .await
        .assert_contains("200");

    let mallory = r#"{"user": "mallory"}"#;
    assert_eq!(platform.change(Method::POST, "own-block", mallory).await, 204);
    assert_eq!(platform.get("/", "mallory").await.status, StatusCode::FORBIDDEN);
    let blocks = platform.state().await["blocks"].clone();
    assert_eq!(blocks, json!([{"client": {"user": "mallory"}, "seconds": null}]));
    assert_eq!(platform.change(Method::DELETE, "own-block", mallory).await, 204);
    assert_eq!(platform.change(Method::DELETE, "own-block", mallory).await, 404);
    assert_eq!(platform.get("/", "mallory").await.status, StatusCode::OK);
}

/// Each request replaces the access list while other requests replace it, too.
#[tokio::test]
async fn blocks_of_several_operators_at_once_all_hold() {
    let one = Platform::in_fleet(shared_server(), 41, "platform-at-once").await;
    one.change(Method::POST, "rules", &rules(100)).await;
    let users: Vec<_> = (0..10).map(|number| format!("mallory-{number}")).collect();
    let block = async |user| {
        one.change(Method::POST, "block", &json!({ "user": user }).to_string())
            .await
    };
    let statuses = join_all(users.iter().map(block)).await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
    let fleet = one.fleet().await;
    assert_eq!(fleet["published"]["number"], 1);
    let entries = fleet["controls"]["access"].as_array().unwrap().iter();
    let mut blocked: Vec<_> = entries.map(|entry| entry["client"]["user"].as_str().unwrap()).collect();
    blocked.sort_unstable();
    assert_eq!(blocked, users);
}

#[tokio::test]
async fn a_block_of_an_instance_is_beside_those_of_the_fleet() {
    let one = Platform::in_fleet(shared_server(), 39, "platform-own-block").await;
    let other = Platform::in_fleet(shared_server(), 40, "platform-own-block").await;
    one.change(Method::POST, "rules", &rules(100)).await;
    let mallory = r#"{"user": "mallory", "seconds": 600}"#;
    assert_eq!(one.change(Method::POST, "own-block", mallory).await, 204);
    assert!(one.is_blocked("mallory").await && !other.is_blocked("mallory").await);
    assert_eq!(other.get("/", "mallory").await.status, StatusCode::OK);

    assert_eq!(other.change(Method::POST, "block", mallory).await, 200);
    eventually("the fleet blocks, too", async || other.is_blocked("mallory").await).await;
    let number = other.fleet().await["controls"]["access_number"].clone();
    let has_list = async || one.state().await["fleet"]["access_number"] == number;
    eventually("it has the list", has_list).await;
    let status = one.change(Method::DELETE, "own-block", r#"{"user": "mallory"}"#).await;
    assert_eq!(status, 204);
    assert!(one.is_blocked("mallory").await);
}

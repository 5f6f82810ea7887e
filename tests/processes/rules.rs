//! Several processes follow one set of rules while it changes all the time, and Redis is killed.

#![allow(
    clippy::disallowed_methods,
    reason = "servers and processes do not follow virtual time"
)]

use std::{
    collections::BTreeSet,
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use http::StatusCode;
use test_kit::{Answered, RedisServer, request};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_quota::{QuotaPolicy, RateLimitLayer, RedisStore, Rules, key};
use tower_quota_fleet::{
    FleetErrorKind, Publication, RedisRules, RulesDocument, RulesFollower, RulesPublisher, RulesVersion,
};

use crate::together;

const PROCESSES: usize = 4;
const TASKS: usize = 8;

/// Longer than it takes until every process has seen what it waits for, unless something hangs.
const HANG: Duration = Duration::from_secs(60);

/// The variable that makes a process a child, with the URL from its parent.
const URL: &str = "TOWER_QUOTA_TEST_RULES";

/// The numbers of the rules after which Redis is killed.
const KILLS: [u64; 2] = [16, 36];

/// A quota that no caller exhausts. The number of the rules is added to it.
const AMPLE: u64 = 1_000_000_000;

/// Runs as a process that a test has started, if it is one.
pub(crate) fn child() -> bool {
    env::var(URL).is_ok_and(|url| {
        instance(&url);
        true
    })
}

pub(crate) fn run() {
    rules_that_change_all_the_time_and_a_redis_that_is_killed_fail_no_request();
}

/// Both policies carry the number of the rules, so that a mixture would show.
fn rules(number: u64) -> Rules {
    Rules::new()
        .policy(QuotaPolicy::per_day("day", AMPLE + number))
        .policy(QuotaPolicy::per_hour("hour", AMPLE + number))
}

/// Rules with even numbers are published. Odd numbers are written by another program, and are not rules.
fn rules_that_change_all_the_time_and_a_redis_that_is_killed_fail_no_request() {
    let server = Arc::new(RedisServer::start());
    let is_over = Arc::new(AtomicBool::new(false));
    let (published, ready) = (Arc::new(AtomicU64::new(0)), Arc::clone(&server));
    let writing = {
        let (is_over, published) = (Arc::clone(&is_over), Arc::clone(&published));
        thread::spawn(move || write(&ready, &is_over, &published))
    };
    while published.load(SeqCst) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let seen: Vec<String> = together(PROCESSES, URL, &server.url());
    is_over.store(true, SeqCst);
    writing.join().unwrap();
    let last = published.load(SeqCst);
    // The numbers of the rules by which a process has counted requests.
    for versions in &seen {
        let mut numbers = versions.split(' ').map(|number| number.parse::<u64>().unwrap());
        assert!(numbers.all(|number| number % 2 == 0 && number <= last), "{versions}");
    }
    crate::passed("rules_that_change_all_the_time_and_a_redis_that_is_killed_fail_no_request");
}

/// Publishes ten times a second, and kills Redis twice. An empty one comes back each time: the versions begin at 1 again.
#[tokio::main(flavor = "current_thread")]
async fn write(server: &RedisServer, is_over: &AtomicBool, published: &AtomicU64) {
    let servers = RedisStore::builder(server.url());
    let publisher = RulesPublisher::new(RedisRules::new(servers, "api").unwrap(), "test");
    let mut number = 0;
    while !is_over.load(SeqCst) {
        number += 2;
        let publication = Publication::rules(rules(number)).force();
        // The publication may take effect even if the call fails.
        published.store(number, SeqCst);
        match publisher.publish(publication).await {
            Ok(_) if number % 20 == 0 => write_garbage(server, number + 1),
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), FleetErrorKind::Unavailable, "{error}"),
        }
        if KILLS.contains(&number) {
            // Under load: an instance has charged a request.
            while server.command(&["KEYS", "quota:*"]).is_empty() && !is_over.load(SeqCst) {
                sleep(Duration::from_millis(10)).await;
            }
            server.kill();
            sleep(Duration::from_millis(500)).await;
            server.restart();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A document with a good digest whose policies have the same name twice.
fn write_garbage(server: &RedisServer, number: u64) {
    let policy = QuotaPolicy::per_day("day", AMPLE + number);
    let twice = Rules::new().policy(policy.clone()).policy(policy);
    let json = RulesDocument::new(number, twice).to_json().unwrap();
    let head = RulesVersion::of(number, json.as_bytes()).to_string();
    let keys = ["document", "head"].map(|kind| format!("rules:{{quota:api}}:{kind}"));
    server.command(&["MSET", &keys[0], &json, &keys[1], &head]);
}

#[tokio::main]
async fn instance(url: &str) {
    let servers = RedisStore::builder(url);
    let layer = RateLimitLayer::builder(servers.clone().build().unwrap())
        .scope("rules")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("day", AMPLE))
        .decision_in_response()
        .build()
        .unwrap();
    let source = RedisRules::new(servers, "api").unwrap();
    let follower = RulesFollower::builder(layer.limiter().rules(), source).start().unwrap();
    follower.wait_for_rules().await;
    crate::wait_for_the_others();
    let versions = Arc::new(Mutex::new(BTreeSet::new()));
    let (requests, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for task in 0..TASKS {
        let (layer, versions, requests) = (layer.clone(), Arc::clone(&versions), Arc::clone(&requests));
        tasks.spawn(async move {
            loop {
                let number = send(&layer, &format!("user {task}")).await;
                versions.lock().unwrap().extend(number);
                requests.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    // A request that has failed ends its task.
    tokio::select! {
        seen = timeout(HANG, until_enough_is_seen(&versions, &requests)) => seen.expect("the instance follows"),
        ended = tasks.join_next() => panic!("a request has failed: {ended:?}"),
    }
    let versions: Vec<_> = versions.lock().unwrap().iter().map(u64::to_string).collect();
    println!("{}", versions.join(" "));
}

/// Returns when there was load under several rules, the last of them published after Redis was killed for the last time.
async fn until_enough_is_seen(versions: &Mutex<BTreeSet<u64>>, requests: &AtomicU64) {
    let is_enough = || {
        let versions = versions.lock().unwrap();
        versions.len() >= 4 && versions.last() > Some(&KILLS[1]) && requests.load(SeqCst) > 100
    };
    while !is_enough() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// The number of the rules by which a request was counted; none if Redis was unavailable.
async fn send(layer: &RateLimitLayer, user: &str) -> Option<u64> {
    let response = test_kit::send(layer, request(user)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let decision = response.decision();
    let quotas: Vec<u64> = decision
        .allowances()
        .map(|allowance| allowance.policy().quota())
        .collect();
    match &*quotas {
        [] => None,
        [day, hour] => {
            assert_eq!(day, hour, "rules that no version ever had");
            Some(day - AMPLE)
        }
        other => panic!("rules of the program after the first version: {other:?}"),
    }
}

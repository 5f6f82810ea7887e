//! Decisions that share a call of the script: each has the answer that it would have got alone.

#![allow(clippy::disallowed_methods, reason = "a real server is waited for in real time")]

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use proptest::{
    prelude::*,
    sample::subsequence,
    test_runner::{Config, TestRunner},
};
use test_kit::RedisServer;
use tower_quota::{
    Algorithm, Decision, MemoryStore, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore,
    Scope, Store, StoreErrorKind,
    clock::{Clock, Timestamp},
};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn partition(run: &str, user: usize) -> PartitionId {
    Scope::new(run).partition(&PartitionKey::new("user", user.to_be_bytes()))
}

fn scope() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static RUN: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), RUN.fetch_add(1, Ordering::Relaxed))
}

/// Policies of every kind that can share a call.
fn policies() -> Vec<QuotaPolicy> {
    vec![
        QuotaPolicy::per_second("bucket", 5),
        QuotaPolicy::per_minute("odd bucket", 7),
        QuotaPolicy::per_minute("window", 9).with_algorithm(Algorithm::FixedWindow),
        QuotaPolicy::per_minute("counter", 8).with_algorithm(Algorithm::SlidingWindowCounter),
        QuotaPolicy::per_minute("log", 6).with_algorithm(Algorithm::SlidingWindowLog),
        QuotaPolicy::per_minute("tried", 3).shadow(),
    ]
}

/// The units left of a policy, its reset, and the time to wait.
type Left = (u64, Option<Duration>, Option<Duration>);

/// The numbers that a decision shows.
fn told(decision: &Decision) -> (Outcome, Vec<Left>) {
    let allowances = decision.allowances();
    let numbers = allowances.map(|allowance| {
        (
            allowance.remaining(),
            allowance.effective_window(),
            allowance.retry_after(),
        )
    });
    (decision.outcome(), numbers.collect())
}

/// The place of its policies among three sets, and a caller.
type Part = (usize, usize);

/// Requests of one moment, each with the partitions of its plan and its cost; then a pause.
type Moment = (Vec<(Vec<Part>, u64)>, u64);

/// L2, L8
#[test]
fn requests_that_share_a_call_get_the_answers_that_they_would_get_one_after_the_other() {
    let set = || subsequence(policies(), 1..=4);
    // Callers share partitions, and some plans have one twice.
    let parts = proptest::collection::vec((0..3_usize, 0..4_usize), 1..=3);
    let request = (parts, 0..=4_u64);
    let moment = (proptest::collection::vec(request, 1..80), 0..5_000_000_u64);
    let buckets = || subsequence(policies()[..1].to_vec(), 1);
    let set = move || prop_oneof![set(), buckets()];
    let runs = ([set(), set(), set()], proptest::collection::vec(moment, 1..8));
    let config = Config {
        cases: 150,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&runs, |(sets, moments)| runtime().block_on(assert_same(sets, moments)))
        .unwrap();
}

async fn assert_same(sets: [Vec<QuotaPolicy>; 3], moments: Vec<Moment>) -> Result<(), TestCaseError> {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let memory = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    // With one connection, calls are carried out in the order in which they are made.
    let redis = crate::shared_store()
        .clock(clock.clone())
        .connections(1)
        .lease_time(Duration::from_secs(86_400))
        .build()
        .unwrap();
    let sets = sets.map(|policies| PolicySet::new(policies).unwrap());
    let scope = scope();
    // A call whose script the server does not have is sent again, after the calls that followed it.
    let nobody = || partition(&scope, usize::MAX);
    let buckets = PolicySet::new([policies().swap_remove(0)]).unwrap();
    for set in sets.iter().chain([&buckets]) {
        redis.decide(Plan::new(set.clone(), nobody(), 1)).await.unwrap();
    }
    for (requests, pause) in moments {
        let plans = requests.iter().map(|(parts, cost)| {
            let mut parts = parts
                .iter()
                .map(|(set, user)| (sets[*set].clone(), partition(&scope, *user)));
            let (set, user) = parts.next().unwrap();
            parts.fold(Plan::new(set, user, *cost), |plan, (set, user)| plan.and(set, user))
        });
        let plans: Vec<Plan> = plans.collect();
        let expected = join_all(plans.iter().map(|plan| memory.decide(plan.clone()))).await;
        let answers = join_all(plans.into_iter().map(|plan| redis.decide(plan))).await;
        for (number, (answer, expected)) in answers.into_iter().zip(expected).enumerate() {
            prop_assert_eq!(told(&answer.unwrap()), told(&expected.unwrap()), "request {}", number);
        }
        clock.advance(Duration::from_micros(pause));
    }
    Ok(())
}

fn bucket(quota: u64) -> PolicySet {
    PolicySet::new([QuotaPolicy::per_day("daily", quota)]).unwrap()
}

/// Sends `requests` concurrent requests, each of a different caller. Returns how many are admitted.
async fn allowed(store: &RedisStore, scope: &str, requests: usize) -> usize {
    let policies = bucket(1);
    let plans = (0..requests).map(|user| Plan::new(policies.clone(), partition(scope, user), 1));
    let answers = join_all(plans.map(|plan| store.decide(plan))).await;
    let outcomes = answers.into_iter().map(|answer| answer.unwrap().outcome());
    outcomes.filter(|outcome| *outcome == Outcome::Allowed).count()
}

fn calls_of_scripts(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<u64> {
        let numbers = line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1;
        numbers.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// L8
#[tokio::test]
async fn many_at_once_share_calls_and_few_or_those_that_may_not_do_not() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    assert_eq!(allowed(&store, &scope(), 1).await, 1);

    let before = calls_of_scripts(&server);
    assert_eq!(allowed(&store, &scope(), 1_000).await, 1_000);
    let shared = calls_of_scripts(&server) - before;
    assert!(shared < 100, "{shared} calls");

    let before = calls_of_scripts(&server);
    assert_eq!(allowed(&store, &scope(), 4).await, 4);
    assert_eq!(calls_of_scripts(&server) - before, 4);

    let alone = RedisStore::builder(server.url()).decisions_per_call(1).build().unwrap();
    let before = calls_of_scripts(&server);
    assert_eq!(allowed(&alone, &scope(), 1_000).await, 1_000);
    assert_eq!(calls_of_scripts(&server) - before, 1_000);
}

/// L8: for example user and address. All plans share one address, whose quota is exhausted first.
#[tokio::test]
async fn plans_of_several_partitions_share_calls_and_charge_all_or_nothing() {
    let (server, scope) = (RedisServer::start(), scope());
    let store = RedisStore::new(server.url()).unwrap();
    let plan = |user| {
        let own = Plan::new(bucket(1), partition(&scope, user), 1);
        own.and(bucket(300), partition("address", 0))
    };
    assert_eq!(store.decide(plan(0)).await.unwrap().outcome(), Outcome::Allowed);
    let before = calls_of_scripts(&server);
    let answers = join_all((1..=1_000).map(|user| store.decide(plan(user)))).await;
    let shared = calls_of_scripts(&server) - before;
    assert!(shared < 100, "{shared} calls");
    let is_allowed = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().outcome() == Outcome::Allowed);
    assert_eq!(is_allowed.clone().filter(|is_allowed| *is_allowed).count(), 299);
    // A rejected request is not charged.
    for (user, is_allowed) in (1..).zip(is_allowed) {
        let left = store.peek(plan(user)).await.unwrap();
        assert_eq!(left.allowances().next().unwrap().remaining(), u64::from(!is_allowed));
    }
}

/// L9
#[tokio::test]
async fn a_server_that_forgets_the_script_costs_nobody_a_decision() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    for _ in 0..20 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(allowed(&store, &scope(), 200).await, 200);
    }
}

#[tokio::test]
async fn requests_that_are_cancelled_are_charged_and_leave_the_others_their_answers() {
    let (server, scope) = (RedisServer::start(), scope());
    let store = RedisStore::new(server.url()).unwrap();
    assert_eq!(allowed(&store, &format!("{scope}-before"), 1).await, 1);
    let policies = bucket(400);
    let ask = || store.decide(Plan::new(policies.clone(), partition(&scope, 0), 1));

    let mut answered = 0;
    for round in 0..20 {
        let mut requests: Vec<_> = (0..100).map(|_| ask()).collect();
        // After one poll, all requests are in flight. Then every other one is cancelled.
        let _ = futures_util::poll!(&mut join_all(&mut requests));
        let kept = requests
            .into_iter()
            .enumerate()
            .filter(|(number, _)| (number + round) % 2 == 0);
        for answer in join_all(kept.map(|(_, request)| request)).await {
            let allowed = answer.unwrap().outcome() == Outcome::Allowed;
            answered += usize::from(allowed);
        }
    }
    // Half of the quota, and the units of the few requests that were dropped alone, before they were written.
    assert!((200..=240).contains(&answered), "{answered}");
    let left = store.peek(Plan::new(policies, partition(&scope, 0), 1)).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 0);
}

/// The server rejects commands on the state of one caller. The others are rejected together with that caller once, and
/// not again.
#[tokio::test]
async fn a_caller_whose_decisions_the_server_rejects_harms_the_others_for_one_call_only() {
    let (server, scope) = (RedisServer::start(), scope());
    if !server.has_users() {
        return;
    }
    let store = RedisStore::new(server.url()).unwrap();
    let policies = bucket(100_000);
    let plan = |user| Plan::new(policies.clone(), partition(&scope, user), 1);
    store.decide(plan(0)).await.unwrap();
    let key = server.command(&["KEYS", "*"]);
    let rules = [
        "on",
        "nopass",
        &format!("~{}", key.trim()),
        "-@all",
        "+eval",
        "+evalsha",
        "+time",
        "+get",
        "+set",
    ];
    server.set_user("only-one", &rules);
    let url = format!("redis://only-one:any@127.0.0.1:{}/", server.port());
    let store = RedisStore::new(url).unwrap();

    let everybody = || join_all((0..200).map(|number| store.decide(plan(number % 2))));
    for answer in everybody().await {
        if let Err(error) = answer {
            assert_eq!(error.kind(), StoreErrorKind::Failed, "{error}");
        }
    }
    for (number, answer) in everybody().await.into_iter().enumerate() {
        assert_eq!(answer.is_ok(), number % 2 == 0, "{answer:?}");
    }
}

#[tokio::test]
async fn when_the_server_is_gone_all_that_wait_are_told() {
    let (server, scope) = (RedisServer::start(), scope());
    let store = RedisStore::new(server.url()).unwrap();
    assert_eq!(allowed(&store, &scope, 1).await, 1);
    server.pause();
    let policies = bucket(1);
    let requests = (1..200).map(|user| store.decide(Plan::new(policies.clone(), partition(&scope, user), 1)));
    let mut requests: Vec<_> = requests.collect();
    let _ = futures_util::poll!(select_all(&mut requests));
    server.kill();
    for answer in join_all(requests).await {
        let kind = answer.unwrap_err().kind();
        assert_eq!(kind, StoreErrorKind::Unreachable);
    }
}

/// A store outlives the runtime in which it was first used.
#[test]
fn sharing_goes_on_in_the_next_runtime() {
    let (server, scope) = (RedisServer::start(), scope());
    let store = RedisStore::new(server.url()).unwrap();
    for run in 0..3 {
        let scope = format!("{scope}-{run}");
        // Connections end with their runtime, and the first requests in the next one find that out.
        let again = async {
            while store
                .decide(Plan::new(bucket(1), partition(&scope, 0), 0))
                .await
                .is_err()
            {}
            allowed(&store, &scope, 300).await
        };
        assert_eq!(runtime().block_on(again), 300);
    }
}

/// Found by counting tasks before and after faults.
#[tokio::test]
async fn the_task_that_shares_calls_ends_when_there_is_nothing_to_share_and_comes_back() {
    let (server, scope) = (RedisServer::start(), scope());
    let store = RedisStore::new(server.url()).unwrap();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let until_only_connections_are_left = async || {
        let ended = async {
            while alive() > 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    };
    assert_eq!(allowed(&store, &format!("{scope}-before"), 1).await, 1);
    until_only_connections_are_left().await;
    for round in 0..2 {
        assert_eq!(allowed(&store, &format!("{scope}-{round}"), 300).await, 300);
        assert!(alive() > 2);
        until_only_connections_are_left().await;
    }
}

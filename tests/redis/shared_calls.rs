//! Decisions that share a call of the script: each has the answer that it would have got alone.

#![allow(clippy::disallowed_methods, reason = "a real server is waited for in real time")]

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use proptest::{collection::vec, prelude::*, sample::subsequence};
use test_kit::{RedisServer, clock, load::until, memory};
use tower_quota::{Algorithm, Decision, Outcome, Plan, QuotaPolicy, RedisStore, Store, StoreErrorKind};

use super::support::{fresh_scope, plan, redis, remaining, runtime, scripts, set, somebody, try_for_any, user};

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
    let numbers = decision
        .allowances()
        .map(|it| (it.remaining(), it.effective_window(), it.retry_after()));
    (decision.outcome(), numbers.collect())
}

/// The place of its policies among three sets, and a caller.
type Part = (usize, usize);

/// Requests of one moment, each with the partitions of its plan and its cost; then a pause.
type Moment = (Vec<(Vec<Part>, u64)>, u64);

/// L2, L8
#[test]
fn requests_that_share_a_call_get_the_answers_that_they_would_get_one_after_the_other() {
    // Callers share partitions, and some plans have one twice.
    let request = (vec((0..3_usize, 0..4_usize), 1..=3), 0..=4_u64);
    let moment = (vec(request, 1..80), 0..5_000_000_u64);
    let buckets = || subsequence(policies()[..1].to_vec(), 1);
    let set = || prop_oneof![subsequence(policies(), 1..=4), buckets()];
    let runs = ([set(), set(), set()], vec(moment, 1..8));
    try_for_any(150, runs, async |(sets, moments)| assert_same(sets, moments).await);
}

async fn assert_same(sets: [Vec<QuotaPolicy>; 3], moments: Vec<Moment>) -> Result<(), TestCaseError> {
    let clock = clock();
    let (memory, redis, scope) = (memory(&clock), redis(&clock), fresh_scope());
    // A call whose script the server does not have is sent again, after the calls that followed it.
    for policies in sets.iter().chain([&policies()[..1].to_vec()]) {
        redis.decide(plan(policies.clone(), somebody(), 1)).await.unwrap();
    }
    let sets = sets.map(set);
    for (requests, pause) in moments {
        let plans = requests.iter().map(|(parts, cost)| {
            let part = |(set, number): &Part| (sets[*set].clone(), user(&scope, number.to_be_bytes()));
            let (first, rest) = parts.split_first().unwrap();
            let (set, user) = part(first);
            let add = |plan: Plan, (set, user)| plan.and(set, user);
            rest.iter().map(part).fold(Plan::new(set, user, *cost), add)
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

/// The plan of a request of a user with this quota.
fn of(quota: u64, scope: &str, number: usize) -> Plan {
    plan(
        [QuotaPolicy::per_day("daily", quota)],
        user(scope, number.to_be_bytes()),
        1,
    )
}

/// Sends `requests` concurrent requests, each of a different caller. Returns how many are admitted.
async fn allowed(store: &RedisStore, requests: usize) -> usize {
    let scope = fresh_scope();
    let answers = join_all((0..requests).map(|user| store.decide(of(1, &scope, user)))).await;
    let outcomes = answers.into_iter().map(|answer| answer.unwrap().outcome());
    outcomes.filter(|outcome| *outcome == Outcome::Allowed).count()
}

/// A server with a store that it knows.
async fn server() -> (RedisServer, RedisStore) {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    assert_eq!(allowed(&store, 1).await, 1);
    (server, store)
}

/// L8
#[tokio::test]
async fn many_at_once_share_calls_and_few_or_those_that_may_not_do_not() {
    let (server, store) = server().await;
    let alone = RedisStore::builder(server.url()).decisions_per_call(1).build().unwrap();
    for (store, requests, calls) in [
        (&store, 1_000, 1..100),
        (&store, 4, 4..5),
        (&alone, 1_000, 1_000..1_001),
    ] {
        let before = scripts(&server);
        assert_eq!(allowed(store, requests).await, requests);
        let made = scripts(&server) - before;
        assert!(calls.contains(&made), "{made} calls for {requests}");
    }
}

/// L8: for example user and address. All plans share one address, whose quota is exhausted first.
#[tokio::test]
async fn plans_of_several_partitions_share_calls_and_charge_all_or_nothing() {
    let (server, store) = server().await;
    let scope = fresh_scope();
    let plan = |number| of(1, &scope, number).join(of(300, "address", 0));
    let before = scripts(&server);
    let answers = join_all((0..1_000).map(|number| store.decide(plan(number)))).await;
    let shared = scripts(&server) - before;
    assert!(shared < 100, "{shared} calls");
    let is_allowed = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().outcome() == Outcome::Allowed);
    assert_eq!(is_allowed.clone().filter(|is_allowed| *is_allowed).count(), 300);
    // A rejected request is not charged.
    for (number, is_allowed) in is_allowed.enumerate() {
        let left = store.peek(plan(number)).await.unwrap();
        assert_eq!(remaining(&left)[0], u64::from(!is_allowed));
    }
}

/// L9
#[tokio::test]
async fn a_server_that_forgets_the_script_costs_nobody_a_decision() {
    let (server, store) = server().await;
    for _ in 0..20 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(allowed(&store, 200).await, 200);
    }
}

#[tokio::test]
async fn requests_that_are_cancelled_are_charged_and_leave_the_others_their_answers() {
    let (_server, store) = server().await;
    let ask = || store.decide(of(400, "cancelled", 0));

    let mut answered = 0;
    for round in 0..20 {
        let mut requests: Vec<_> = (0..100).map(|_| ask()).collect();
        // After one poll, all requests are in flight. Then every other one is cancelled.
        let _ = futures_util::poll!(&mut join_all(&mut requests));
        let kept = requests.into_iter().skip(round % 2).step_by(2);
        for answer in join_all(kept).await {
            answered += usize::from(answer.unwrap().outcome() == Outcome::Allowed);
        }
    }
    // Half of the quota, and the units of the few requests that were dropped alone, before they were written.
    assert!((200..=240).contains(&answered), "{answered}");
    assert_eq!(remaining(&store.peek(of(400, "cancelled", 0)).await.unwrap()), [0]);
}

/// The server rejects commands on the state of one caller. The others are rejected together with that caller once, and
/// not again.
#[tokio::test]
async fn a_caller_whose_decisions_the_server_rejects_harms_the_others_for_one_call_only() {
    let server = RedisServer::start();
    if !server.has_users() {
        return;
    }
    let store = RedisStore::new(server.url()).unwrap();
    let plan = |number| of(100_000, "harmed", number);
    store.decide(plan(0)).await.unwrap();
    let key = format!("~{}", server.command(&["KEYS", "*"]).trim());
    let commands = ["-@all", "+eval", "+evalsha", "+time", "+get", "+set"];
    server.set_user("only-one", &[&["on", "nopass", &key], &commands[..]].concat());
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
    let (server, store) = server().await;
    server.pause();
    let mut requests: Vec<_> = (0..200).map(|number| store.decide(of(1, "gone", number))).collect();
    let _ = futures_util::poll!(select_all(&mut requests));
    server.kill();
    for answer in join_all(requests).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unreachable);
    }
}

/// A store outlives the runtime in which it was first used.
#[test]
fn sharing_goes_on_in_the_next_runtime() {
    let (_server, store) = runtime().block_on(server());
    for _ in 0..3 {
        // Connections end with their runtime, and the first requests in the next one find that out.
        let again = async {
            while store.decide(of(1, "again", 0)).await.is_err() {}
            allowed(&store, 300).await
        };
        assert_eq!(runtime().block_on(again), 300);
    }
}

/// Found by counting tasks before and after faults.
#[tokio::test]
async fn the_task_that_shares_calls_ends_when_there_is_nothing_to_share_and_comes_back() {
    let (_server, store) = server().await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..3 {
        until("only connections are left", async || alive() <= 2).await;
        assert_eq!(allowed(&store, 300).await, 300);
        assert!(alive() > 2);
    }
}

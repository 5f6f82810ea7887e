//! The tools for tests of limits do what they promise.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body_util::Full;
use test_kit::{Answered, request};
use tower::service_fn;
use tower_layer::Layer;
use tower_quota::{
    AbnormalUsage, ActualCost, Algorithm, Direction, Exemption, FailureMode, Limiter, MemoryStore, Outcome,
    PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Scope, Settlement, Store,
    StoreErrorKind, key,
    test_util::{Answer, ScriptedStore, assert_outcome, assert_rejected_by, check_store, decision, remaining},
};

fn builder(store: &ScriptedStore) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(Limiter::builder(store.clone()).clock(store.clock().clone()))
        .scope("test")
        .key(key::header("x-user-id"))
}

async fn send(layer: &RateLimitLayer) -> Response<Bytes> {
    test_kit::send(layer, request("alice")).await
}

fn plan(policy: QuotaPolicy) -> Plan {
    let partition = Scope::new("test").partition(&PartitionKey::new("user", "alice"));
    Plan::new(PolicySet::new([policy]).unwrap(), partition, 1)
}

const MINUTE: QuotaPolicy = QuotaPolicy::per_minute("minute", 3);

#[tokio::test]
async fn answers_come_in_the_order_in_which_they_were_told_and_then_the_store_counts() {
    let store = ScriptedStore::new();
    let layer = builder(&store).policy(MINUTE).build().unwrap();
    store.answer_next(1, Answer::Rejected);
    store.answer_next(2, Answer::Allowed);
    store.answer_next(0, Answer::Hanging);
    store.answer_next(1, Answer::Failed(StoreErrorKind::Failed));
    let mut outcomes = Vec::new();
    for _ in 0..8 {
        outcomes.push(decision(&send(&layer).await).outcome());
    }
    use Outcome::{Allowed, FailedOpen, Rejected};
    // Scripted answers charge nothing: three requests are counted, and the fourth exceeds the quota.
    let scripted = [Rejected, Allowed, Allowed, FailedOpen];
    assert_eq!(outcomes, [scripted, [Allowed, Allowed, Allowed, Rejected]].concat());
    assert_eq!(store.calls(), 8);
}

#[tokio::test]
async fn an_answer_for_all_ends_the_script_and_clones_share_it() {
    let store = ScriptedStore::new();
    let layer = builder(&store).policy(MINUTE).build().unwrap();
    store.answer_next(100, Answer::Allowed);
    store.clone().answer(Answer::Rejected);
    for _ in 0..10 {
        assert_outcome(&send(&layer).await, Outcome::Rejected);
    }
    assert_eq!(store.clone().calls(), 10);
}

#[tokio::test]
async fn a_rejection_that_was_told_is_honest_for_every_algorithm() {
    let of = |algorithm| QuotaPolicy::per_minute("policy", 60).with_algorithm(algorithm);
    let policies = [
        (of(Algorithm::TokenBucket), 1),
        (of(Algorithm::StrictTokenBucket).with_burst_capacity(1), 1),
        (of(Algorithm::LeakyBucketMeter), 1),
        (of(Algorithm::LeakyBucketQueue { max_waiting: 9 }), 1),
        (of(Algorithm::FixedWindow), 60),
        // 59 of 60 are left over once a sixtieth of the next window has passed.
        (of(Algorithm::SlidingWindowCounter), 61),
        (of(Algorithm::SlidingWindowLog), 60),
        (QuotaPolicy::concurrent("policy", 60), 1),
        (of(Algorithm::TokenBucket).with_content_bytes(Direction::Response), 1),
    ];
    for (policy, wait) in policies {
        let store = ScriptedStore::new();
        let layer = builder(&store).policy(policy.clone()).build().unwrap();
        store.answer_next(1, Answer::Rejected);
        let rejected = send(&layer).await;
        assert_rejected_by(&rejected, "policy");
        let told = (remaining(&rejected, "policy"), decision(&rejected).retry_after());
        assert_eq!(told, (0, Some(Duration::from_secs(wait))), "{policy:?}");
        assert_eq!(
            (rejected.code(), rejected.field("retry-after")),
            (429, &*wait.to_string())
        );
    }
}

/// Otherwise, refunding a charge that was never made would refund an actual charge.
#[tokio::test]
async fn what_becomes_of_a_charge_that_was_told_is_forgotten() {
    let store = ScriptedStore::new();
    store.decide(plan(MINUTE)).await.unwrap();
    store.answer_next(1, Answer::Allowed);
    let told = store.decide(plan(MINUTE)).await.unwrap();
    store.settle(Settlement::new(&told, 0)).await.unwrap();
    let left = async || {
        let read = store.peek(plan(MINUTE)).await.unwrap();
        read.allowances().next().unwrap().remaining()
    };
    assert_eq!((left().await, store.settlements()), (2, 1));

    let counted = store.decide(plan(MINUTE)).await.unwrap();
    store.settle(Settlement::new(&counted, 0)).await.unwrap();
    assert_eq!((left().await, store.settlements()), (2, 2));
}

#[tokio::test]
async fn a_store_that_is_away_changes_no_charge_either() {
    let store = ScriptedStore::new();
    let charged = store.decide(plan(MINUTE)).await.unwrap();
    let other = store.decide(plan(MINUTE)).await.unwrap();
    store.answer(Answer::Failed(StoreErrorKind::Unavailable));
    let kinds = [
        store.decide(plan(MINUTE)).await.unwrap_err().kind(),
        store.settle(Settlement::new(&charged, 0)).await.unwrap_err().kind(),
        store.reset(plan(MINUTE)).await.unwrap_err().kind(),
    ];
    assert_eq!(kinds, [StoreErrorKind::Unavailable; 3]);
    store.answer(Answer::Hanging);
    assert!(store.decide(plan(MINUTE)).now_or_never().is_none());
    assert!(store.settle(Settlement::new(&other, 0)).now_or_never().is_none());
    assert!(store.reset(plan(MINUTE)).now_or_never().is_none());

    store.answer(Answer::Counted);
    let left = store.peek(plan(MINUTE)).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 1);
    store.reset(plan(MINUTE)).await.unwrap();
    let left = store.peek(plan(MINUTE)).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 3);
}

#[tokio::test]
async fn settlements_of_the_layer_are_seen() {
    let store = ScriptedStore::new();
    let layer = builder(&store).policy(MINUTE).build().unwrap();
    let handler = async |_: Request<String>| {
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(ActualCost(3));
        Ok::<_, Infallible>(response)
    };
    let response = test_kit::call(layer.layer(service_fn(handler)), request("alice")).await;
    assert_eq!((store.settlements(), remaining(&response, "minute")), (1, 0));
    assert_outcome(&send(&layer).await, Outcome::Rejected);
}

#[tokio::test]
async fn the_clock_of_the_store_moves_the_circuit_breaker_too_if_it_is_given_to_the_layer() {
    let store = ScriptedStore::new();
    let builder = builder(&store).policy(MINUTE).failure_mode(FailureMode::Closed);
    let layer = builder.build().unwrap();
    store.answer(Answer::Failed(StoreErrorKind::Unreachable));
    for _ in 0..10 {
        assert_outcome(&send(&layer).await, Outcome::FailedClosed);
    }
    assert_eq!(store.calls(), 5);
    store.answer(Answer::Counted);
    assert_outcome(&send(&layer).await, Outcome::FailedClosed);
    store.clock().advance(Duration::from_millis(100));
    assert_outcome(&send(&layer).await, Outcome::Allowed);
}

#[test]
fn a_store_may_have_the_clock_of_another() {
    let first = ScriptedStore::new();
    let second = ScriptedStore::with_clock(first.clock().clone());
    first.clock().advance(Duration::from_secs(5));
    assert_eq!(second.clock().now(), first.clock().now());
}

/// The message of the panic that an assertion ends in.
fn panic_of(assertion: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(assertion)).unwrap_err();
    *panic.downcast().unwrap()
}

type Assertion = fn(&Response<Bytes>);

/// The message of the panic that an assertion about a response ends in.
async fn message(answer: Answer, assertion: Assertion) -> String {
    let store = ScriptedStore::new();
    let day = QuotaPolicy::per_day("day", 24);
    let layer = builder(&store).policy(MINUTE).policy(day).build().unwrap();
    store.answer(answer);
    let response = send(&layer).await;
    panic_of(|| assertion(&response))
}

#[tokio::test]
async fn assertions_that_fail_tell_the_whole_decision() {
    let allowed = "status 200 OK, Allowed; \"minute\": 2 left; \"day\": 23 left";
    let rejected = "status 429 Too Many Requests, Rejected; \"minute\": 0 left, rejects for 20s; \
                   \"day\": 0 left, rejects for 3600s";
    let failed = "status 200 OK, FailedOpen";
    let outage = Answer::Failed(StoreErrorKind::Unreachable);
    let cases: [(Answer, Assertion, &str, &str); 5] = [
        (
            Answer::Rejected,
            |it| assert_outcome(it, Outcome::Allowed),
            "the outcome is not Allowed",
            rejected,
        ),
        (
            Answer::Allowed,
            |it| assert_outcome(it, Outcome::Rejected),
            "the outcome is not Rejected",
            allowed,
        ),
        (
            outage,
            |it| assert_rejected_by(it, "day"),
            "the outcome is not Rejected",
            failed,
        ),
        (
            Answer::Rejected,
            |it| assert_rejected_by(it, "hour"),
            "the decision has no policy \"hour\"",
            rejected,
        ),
        (
            outage,
            |it| assert_eq!(remaining(it, "day"), 0),
            "the decision has no policy \"day\"",
            failed,
        ),
    ];
    for (answer, assertion, mistake, seen) in cases {
        assert_eq!(message(answer, assertion).await, format!("{mistake}; {seen}"));
    }
}

#[tokio::test]
async fn a_policy_that_has_not_rejected_and_a_cost_that_never_fits_are_told() {
    let store = ScriptedStore::new();
    let builder = builder(&store).cost_by(|_| 5).policy(MINUTE);
    let layer = builder.policy(QuotaPolicy::per_day("day", 24)).build().unwrap();
    let response = send(&layer).await;
    assert_rejected_by(&response, "minute");
    assert_eq!(
        panic_of(|| assert_rejected_by(&response, "day")),
        "the policy \"day\" did not reject the request; status 429 Too Many Requests, Rejected; \
         \"minute\": 3 left, can never admit a cost of 5; \"day\": 24 left"
    );
}

#[test]
#[should_panic(expected = "the response with status 200 OK carries no decision: \
                           check that the request passed a `RateLimitLayer` and that the response was created in ")]
fn a_response_that_has_passed_no_layer_is_told_from_one_that_was_rejected() {
    assert_outcome(&Response::new(()), Outcome::Allowed);
}

/// Without scripted answers, any store can be used.
#[tokio::test]
async fn assertions_serve_with_every_store() {
    let builder = test_kit::limits(MemoryStore::new()).policy(QuotaPolicy::per_day("day", 1));
    let layer = builder.build().unwrap();
    assert_outcome(&send(&layer).await, Outcome::Allowed);
    assert_rejected_by(&send(&layer).await, "day");
}

/// An assertion that takes one for the other hides an outage, or a layer that counts no request.
#[tokio::test]
async fn only_what_was_counted_is_allowed_and_only_a_quota_that_is_used_up_rejects() {
    let store = ScriptedStore::new();
    let day = QuotaPolicy::per_day("day", 24);
    let builder = || builder(&store).policy(day.clone());
    let exempt = builder().exempt(Exemption::method(Method::GET)).build().unwrap();
    let abnormal = builder().abnormal_usage(|_| Some(AbnormalUsage::new()));
    let abnormal = abnormal.build().unwrap();
    let open = builder().build().unwrap();
    let closed = builder().failure_mode(FailureMode::Closed).build().unwrap();
    store.answer(Answer::Failed(StoreErrorKind::Unreachable));
    for (layer, outcome) in [
        (exempt, Outcome::Unlimited),
        (abnormal, Outcome::Abnormal),
        (open, Outcome::FailedOpen),
        (closed, Outcome::FailedClosed),
    ] {
        let response = send(&layer).await;
        assert_outcome(&response, outcome);
        panic_of(|| assert_outcome(&response, Outcome::Allowed));
        panic_of(|| assert_outcome(&response, Outcome::Rejected));
        panic_of(|| assert_rejected_by(&response, "day"));
    }
}

#[path = "../../examples/own_store.rs"]
#[allow(dead_code, reason = "the example is a program")]
pub(crate) mod own_store;

#[tokio::test]
async fn a_store_on_a_key_value_map_passes_the_suite_with_all_algorithms() {
    check_store(own_store::OwnStore::new).await;
}

#[path = "../../examples/sqlite/src/main.rs"]
#[allow(dead_code, reason = "the example is a program")]
mod sqlite;

#[tokio::test]
async fn a_store_in_sqlite_passes_the_suite_with_all_algorithms() {
    check_store(|clock| sqlite::SqliteStore::new(rusqlite::Connection::open_in_memory().unwrap(), clock).unwrap())
        .await;
}

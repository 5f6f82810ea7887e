//! Rejections that are remembered: what clients see of them, and when they are forgotten.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::Full;
use test_kit::{Answered, TestStore, Timing, clock, cost, costing, memory, request, send};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Algorithm, CallerQuotas, ConfigErrorKind, Decision, LegacyReset, Limiter, LimiterBuilder, MemoryStore, Outcome,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ResponseFields, Rules, Store, StoreErrorKind, ToPartitionKey,
    clock::{Clock, Timestamp},
    key,
};

/// A memory store whose decisions are deferred, like a server's.
fn remote(clock: &Clock) -> TestStore {
    TestStore::new(memory(clock), Timing::Later)
}

fn builder(store: impl Store, clock: &Clock) -> RateLimitLayerBuilder {
    builder_of(Limiter::builder(store), clock)
}

/// A layer with one policy on a remote store.
fn limited(policy: QuotaPolicy) -> (Clock, TestStore, RateLimitLayer) {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock).policy(policy).build().unwrap();
    (clock, store, layer)
}

fn request_of(user: u64) -> Request<String> {
    request(&user.to_string())
}

fn builder_of(limiter: LimiterBuilder, clock: &Clock) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter.clock(clock.clone()))
        .decision_in_response()
        .scope("rejections")
        .key(key::from_fn(|request| Some(user(&request.headers).to_partition_key())))
        .cost_by(cost)
}

fn user(headers: &HeaderMap) -> &str {
    headers["x-user-id"].to_str().unwrap()
}

fn is_cached(response: &Response<Bytes>) -> bool {
    response.decision().is_cached()
}

/// D5, X43: smaller requests may use what remains, so no client need wait for it.
#[tokio::test]
async fn a_cached_rejection_of_a_cost_that_never_passes_shows_what_remains() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowLog,
    ] {
        let (_, _, layer) = limited(QuotaPolicy::per_hour("hour", 3_000).with_algorithm(algorithm));
        send(&layer, costing(1_000)).await;
        let (rejected, cached) = (send(&layer, costing(3_001)).await, send(&layer, costing(3_001)).await);
        assert!(!is_cached(&rejected) && is_cached(&cached));
        let shown = ["ratelimit", "retry-after"];
        assert!(rejected.field("ratelimit").contains(";r=2000;"), "{rejected:?}");
        assert_eq!(cached.fields(shown), [rejected.field("ratelimit"), ""]);
    }
}

fn names(decision: &Decision) -> Vec<&str> {
    decision
        .allowances()
        .map(|allowance| allowance.policy().name())
        .collect()
}

/// Uses up a quota of one, after which the next request is rejected from memory; longer than a hold later.
async fn exhaust(layer: &RateLimitLayer, clock: &Clock) {
    assert_eq!(send(layer, request("alice")).await.status(), StatusCode::OK);
    assert!(is_cached(&send(layer, request("alice")).await));
    clock.advance(Duration::from_millis(30));
}

/// All that a layer can write.
fn dialects() -> [ResponseFields; 8] {
    [
        ResponseFields::draft11(),
        ResponseFields::draft11().with_draft06_limit().tightest_only(),
        ResponseFields::in_between(),
        ResponseFields::draft06(),
        ResponseFields::draft07(),
        ResponseFields::legacy(LegacyReset::DeltaSeconds),
        ResponseFields::legacy(LegacyReset::UnixTime),
        ResponseFields::none(),
    ]
}

/// C2, D4: field by field and byte by byte, also half a second later.
#[tokio::test]
async fn a_remembered_rejection_looks_like_the_one_that_the_store_would_give() {
    let mut grpc = request("alice");
    let content_type = "application/grpc".parse().unwrap();
    grpc.headers_mut().insert(header::CONTENT_TYPE, content_type);
    for fields in dialects() {
        for request in [request("alice"), grpc.clone()] {
            let clock = clock();
            let store = remote(&clock);
            let layer = |partitions| {
                let builder = builder_of(Limiter::builder(store.clone()).rejection_cache(partitions), &clock);
                let policy = QuotaPolicy::per_minute("minute", 20).show_partition_key();
                builder.policy(policy).response_fields(fields.clone()).build().unwrap()
            };
            let (remembering, asking) = (layer(16), layer(0));
            for _ in 0..20 {
                assert!(send(&remembering, request.clone()).await.outcome().is_admitted());
            }
            for wait in [1, 499_999, 300_000] {
                clock.advance(Duration::from_micros(wait));
                let own = send(&remembering, request.clone()).await;
                let said = send(&asking, request.clone()).await;
                assert!(is_cached(&own) && !is_cached(&said));
                let seen = |response: &Response<Bytes>| format!("{:?} {:?}", response.headers(), response.body());
                assert_eq!((own.status(), seen(&own)), (said.status(), seen(&said)));
                assert_eq!(own.decision().retry_after(), said.decision().retry_after());
                assert_eq!(own.outcome(), Outcome::Rejected);
            }
            // Twenty admitted requests, and three of the layer without a cache.
            assert_eq!(store.calls(), 23);
        }
    }
}

/// A21, C2: what is not known is not shown, and what is configured is.
#[tokio::test]
async fn only_the_policies_that_are_known_to_reject_are_shown_and_the_policy_field_stays_as_it_was() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store, &clock)
        .policy(QuotaPolicy::per_day("day", 5_000).show_partition_key())
        .policy(QuotaPolicy::new("burst", 2, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_hour("quiet", 2).hidden())
        .build()
        .unwrap();
    let passed = send(&layer, request("alice")).await;
    send(&layer, request("alice")).await;
    let rejected = send(&layer, request("alice")).await;
    assert!(is_cached(&rejected));
    assert_eq!(names(rejected.decision()), ["burst", "quiet"]);
    assert_eq!(
        rejected.fields(["ratelimit", "retry-after"]),
        [r#""burst";r=0;t=5"#, "1800"]
    );
    assert_eq!(rejected.field("ratelimit-policy"), passed.field("ratelimit-policy"));
    let problem = String::from_utf8(rejected.body().to_vec()).unwrap();
    assert!(problem.contains(r#""violated-policies":["burst"]"#), "{problem}");
}

#[tokio::test]
async fn what_a_store_decides_at_once_is_not_remembered() {
    let clock = clock();
    let store = TestStore::new(memory(&clock), Timing::AtOnce);
    let minute = QuotaPolicy::per_minute("minute", 1);
    let layer = builder(store, &clock).policy(minute).build().unwrap();
    for _ in 0..5 {
        assert!(!is_cached(&send(&layer, request("alice")).await));
    }
}

#[test]
fn a_cache_beyond_its_bound_is_rejected() {
    let layer = |partitions| {
        let limiter = Limiter::builder(MemoryStore::new()).rejection_cache(partitions);
        let minute = QuotaPolicy::per_minute("minute", 1);
        builder_of(limiter, &clock()).policy(minute).build()
    };
    assert!([0, 1, 1 << 20].into_iter().all(|partitions| layer(partitions).is_ok()));
    let error = layer((1 << 20) + 1).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::RejectionCache);
    assert_eq!(error.to_string(), "rejection cache 1048577 is outside 0..=1048576");
}

/// D12: a cached rejection is valid only for the numbers of the rules and the callers to whom they apply.
#[tokio::test]
async fn new_rules_and_grants_count_at_once() {
    let minute = |quota| QuotaPolicy::per_minute("minute", quota);
    let (clock, _, layer) = limited(minute(1));
    let replace = |policy| layer.limiter().rules().replace(Rules::new().policy(policy)).unwrap();
    exhaust(&layer, &clock).await;
    assert!(is_cached(&send(&layer, request("alice")).await));
    replace(minute(2).with_caller_quotas(1..=9));
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
    assert!(is_cached(&send(&layer, request("alice")).await));
    let topped_up = || {
        let end = Timestamp::from_micros(u64::MAX);
        let mut request = request("alice");
        let top_up = CallerQuotas::new().top_up("minute", 1, end);
        request.extensions_mut().insert(top_up);
        request
    };
    assert_eq!(send(&layer, topped_up()).await.status(), StatusCode::OK);
    assert!(is_cached(&send(&layer, topped_up()).await));
    replace(minute(1).shadow());
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_reset_and_a_refund_are_seen_at_once() {
    let clock = clock();
    let layer = builder(remote(&clock), &clock)
        .policy(QuotaPolicy::per_hour("hour", 1))
        .actual_cost(|response| response.headers.contains_key("x-free").then_some(0))
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    assert!(is_cached(&send(&layer, request("alice")).await));
    layer.limiter().caller("alice").reset().await.unwrap();
    clock.advance(Duration::from_micros(1));

    // While this request is in flight, another one is rejected.
    let (answer, answered) = tokio::sync::oneshot::channel::<()>();
    let answered = Arc::new(std::sync::Mutex::new(Some(answered)));
    let service = layer.layer(service_fn(move |_: Request<String>| {
        let answered = answered.lock().unwrap().take().unwrap();
        async move {
            answered.await.unwrap();
            let free = Response::builder().header("x-free", "yes");
            Ok::<_, Infallible>(free.body(Full::<Bytes>::default()).unwrap())
        }
    }));
    let first = tokio::spawn(service.oneshot(request("alice")));
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    assert!(is_cached(&send(&layer, request("alice")).await));
    answer.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
    clock.advance(Duration::from_micros(1));
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
}

/// The seconds until a rejected caller is admitted.
fn wait(rejected: &Decision) -> u64 {
    assert_eq!(rejected.outcome(), Outcome::Rejected);
    rejected.retry_after().unwrap().as_secs()
}

/// Ten units of a limit of one overdraw it by one.
#[tokio::test]
async fn a_late_charge_ends_cached_rejections_and_costs_one_call() {
    let clock = clock();
    let store = remote(&clock);
    let limiter = Limiter::builder(store.clone()).scope("slow").clock(clock.clone());
    let limiter = limiter.policy(QuotaPolicy::new("slow", 1, Duration::from_secs(100)));
    let alice = limiter.build().unwrap().caller("alice");
    let permit = alice.hold().await.unwrap();
    assert_eq!(wait(&alice.check().await), 100);
    assert_eq!(store.calls(), 1, "the charge has shown that the next one is rejected");
    permit.settle(10);
    clock.advance(Duration::from_micros(1));
    for _ in 0..10 {
        assert_eq!(wait(&alice.check().await), 199);
    }
    assert_eq!(store.calls(), 2);
    clock.advance(Duration::from_secs(100));
    assert_eq!(wait(&alice.check().await), 99);
    clock.advance(Duration::from_secs(100));
    assert_eq!(alice.check().await.outcome(), Outcome::Allowed);
}

/// L9: a rejection does not become wrong because the store is unavailable.
#[tokio::test]
async fn while_the_circuit_is_open_rejections_are_remembered_for_their_second_and_then_the_failure_mode_decides() {
    let (clock, store, layer) = limited(QuotaPolicy::per_hour("hour", 1));
    exhaust(&layer, &clock).await;
    store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    for user in 0..10 {
        assert_eq!(send(&layer, request_of(user)).await.outcome(), Outcome::FailedOpen);
    }
    let calls = store.calls();
    assert!(is_cached(&send(&layer, request("alice")).await));
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&layer, request("alice")).await.outcome(), Outcome::FailedOpen);
    assert!(store.calls() <= calls + 1);
}

/// A layer that fails open, and whose store alice has exhausted.
async fn exhausted() -> (Clock, TestStore, RateLimitLayer) {
    let (clock, store, layer) = limited(QuotaPolicy::per_second("second", 2));
    send(&layer, request("alice")).await;
    exhaust(&layer, &clock).await;
    (clock, store, layer)
}

/// Found by the checker of histories of the outage tests.
#[tokio::test]
async fn a_request_that_an_open_circuit_keeps_from_the_store_rejects_no_other_request() {
    let (clock, store, layer) = exhausted().await;
    store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    for user in 0..10 {
        send(&layer, request_of(user)).await;
    }
    // One unit has been restored, and no call charges it.
    clock.advance(Duration::from_millis(600));
    send(&layer, request_of(0)).await;
    let calls = store.calls();
    for _ in 0..3 {
        assert_eq!(send(&layer, request("alice")).await.outcome(), Outcome::FailedOpen);
    }
    assert_eq!(store.calls(), calls, "the circuit is open");
}

/// From the second request on, the fallback for a full store decides, and admits two.
#[tokio::test]
async fn a_request_that_a_node_or_a_full_store_does_not_charge_rejects_no_other_request() {
    let full = [Outcome::FailedOpen, Outcome::Allowed, Outcome::Allowed];
    for (kind, outcomes) in [
        (StoreErrorKind::CircuitOpen, [Outcome::FailedOpen; 3]),
        (StoreErrorKind::OutOfMemory, full),
    ] {
        let (clock, store, layer) = exhausted().await;
        store.set(Timing::FailingLater(kind));
        clock.advance(Duration::from_millis(600));
        for outcome in outcomes {
            assert_eq!(send(&layer, request("alice")).await.outcome(), outcome, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn what_a_fallback_has_decided_is_not_remembered() {
    let clock = clock();
    let (store, fallback) = (remote(&clock), remote(&clock));
    store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    let layer = builder_of(Limiter::builder(store.clone()).fallback(fallback.clone()), &clock)
        .policy(QuotaPolicy::per_hour("hour", 1))
        .build()
        .unwrap();
    for number in 0..4 {
        let response = send(&layer, request("alice")).await;
        assert_eq!(response.status().is_success(), number == 0);
        assert!(!is_cached(&response));
    }
    assert_eq!(fallback.calls(), 4);
}

/// L27: nothing is taken from the user when all is used up, and it is the shared limit that is shown.
#[tokio::test]
async fn of_several_partitions_the_one_that_rejects_is_cached_for_all_who_share_it() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .named_key("all", key::from_fn(|_| Some(tower_quota::PartitionKey::new("all", ""))))
        .policy(QuotaPolicy::per_hour("user", 5))
        .policy(QuotaPolicy::per_hour("all", 2).keyed_by("all"))
        .build()
        .unwrap();
    for user in 0..2 {
        assert_eq!(send(&layer, request_of(user)).await.status(), StatusCode::OK);
    }
    for user in 0..100 {
        let rejected = send(&layer, request_of(user)).await;
        assert_eq!(rejected.headers()["ratelimit"], r#""all";r=0;t=1800"#);
        assert_eq!(names(rejected.decision()), ["all"]);
    }
    assert_eq!(store.calls(), 2);
}

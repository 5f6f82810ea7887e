//! Rejections that are remembered: what clients see of them, and when they are forgotten.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use test_kit::{Answered, TestStore, Timing, clock, cost, costing, memory, request, send};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn, util::MapRequest};
use tower_quota::{
    Algorithm, Caller, CallerQuotas, Capacity, ConfigErrorKind, Decision, Direction, FailureMode, LegacyReset, Limiter,
    LimiterBuilder, MemoryStore, Outcome, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ResponseFields, Rules,
    Store, StoreErrorKind, ToPartitionKey,
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
    let clock = clock();
    let store = remote(&clock);
    let policies = [
        QuotaPolicy::per_hour("bucket", 3_000),
        QuotaPolicy::per_hour("window", 3_000).with_algorithm(Algorithm::FixedWindow),
        QuotaPolicy::per_hour("log", 3_000).with_algorithm(Algorithm::SlidingWindowLog),
    ];
    for policy in policies {
        let layer = builder(store.clone(), &clock).policy(policy).build().unwrap();
        send(&layer, costing(1_000)).await;
        let field = |response: &Response<Bytes>| response.headers()["ratelimit"].to_str().unwrap().to_owned();
        let rejected = send(&layer, costing(3_001)).await;
        assert!(
            !is_cached(&rejected) && field(&rejected).contains(";r=2000;"),
            "{rejected:?}"
        );
        let cached = send(&layer, costing(3_001)).await;
        assert!(is_cached(&cached));
        assert_eq!(field(&cached), field(&rejected));
        assert!(!cached.headers().contains_key(header::RETRY_AFTER));
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

/// A refund by the handle of a request, which is settled when the body has ended, and is final before.
#[tokio::test]
async fn tokens_that_a_handler_gives_back_are_there_for_the_next_request_at_once() {
    let clock = clock();
    let tokens = QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens");
    let layer = RateLimitLayerBuilder::from(Limiter::builder(remote(&clock)).clock(clock.clone()))
        .scope("rejections")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("requests", 100))
        .policy(tokens)
        .unit_cost("tokens", |_| 800)
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |request: Request<String>| {
        crate::permit_of(&request).set("tokens", 10);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("answer")))
    }));
    for _ in 0..5 {
        clock.advance(Duration::from_millis(1));
        let open = service.clone().oneshot(request("alice")).await.unwrap();
        assert_eq!(open.status(), StatusCode::OK);
        for _ in 0..3 {
            let rejected = send(&layer, request("alice")).await;
            assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(is_cached(&rejected));
        }
        // The next request comes a moment later, long before a rejection is forgotten by itself.
        open.into_body().collect().await.unwrap();
    }
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
                let (own, said) = (
                    send(&remembering, request.clone()).await,
                    send(&asking, request.clone()).await,
                );
                assert!(is_cached(&own) && !is_cached(&said));
                assert_eq!(
                    (own.status(), own.headers(), own.body()),
                    (said.status(), said.headers(), said.body())
                );
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
    assert_eq!(rejected.headers()["ratelimit"], r#""burst";r=0;t=5"#);
    assert_eq!(
        rejected.headers()["ratelimit-policy"],
        passed.headers()["ratelimit-policy"]
    );
    assert_eq!(rejected.headers()["retry-after"], "1800");
    let problem = String::from_utf8(rejected.body().to_vec()).unwrap();
    assert!(problem.contains(r#""violated-policies":["burst"]"#), "{problem}");
}

/// An address with ten a minute, around a user with two: a client that ignores 429 exhausts both.
#[tokio::test]
async fn of_nested_layers_that_are_exhausted_the_store_hears_twice_a_second_and_the_caller_gets_its_whole_quota() {
    let clock = clock();
    let store = remote(&clock);
    let [addresses, users] = [("addresses", 10), ("users", 2)].map(|(scope, quota)| {
        let builder = builder(store.clone(), &clock).scope(scope);
        builder.policy(QuotaPolicy::per_minute(scope, quota)).build().unwrap()
    });
    let counters = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let [authenticated, served] = counters.clone();
    let count = |counter: Arc<AtomicUsize>| {
        move |request: Request<String>| {
            counter.fetch_add(1, Ordering::SeqCst);
            request
        }
    };
    let handler = async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()));
    let limited = users.layer(MapRequest::new(service_fn(handler), count(served)));
    let service = addresses.layer(MapRequest::new(limited, count(authenticated)));
    let counted = || [&counters[0], &counters[1]].map(|counter| counter.load(Ordering::SeqCst));
    let calls = || store.calls() + store.settlements();
    let a_second = async || {
        for _ in 0..100 {
            service.clone().oneshot(request("alice")).await.unwrap();
            clock.advance(Duration::from_millis(10));
        }
    };
    a_second().await;
    assert_eq!(counted(), [10, 2]);
    let exhausted = calls();
    for second in 1..120 {
        let before = (calls(), counted()[0]);
        a_second().await;
        // A request admitted by the address limit also calls the store for the user.
        let (calls, authenticated) = (calls() - before.0, counted()[0] - before.1);
        assert!(calls <= 2 + authenticated, "second {second}: {calls} calls");
    }
    assert!(calls() - exhausted <= 2 * 119);
    // A burst each, then one every 6 s and one every 30 s.
    assert_eq!(counted(), [10 + 19, 2 + 3]);
}

/// Waiting does not help, so the response contains no time to retry.
#[tokio::test]
async fn a_cost_that_never_passes_is_cached_without_a_time_to_retry_and_a_smaller_one_asks() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .policy(QuotaPolicy::per_minute("minute", 10))
        .build()
        .unwrap();
    let said = send(&layer, costing(11)).await;
    assert_eq!(said.headers()["ratelimit"], r#""minute";r=10;t=60"#);
    clock.advance(Duration::from_millis(30));
    let own = send(&layer, costing(12)).await;
    assert!(is_cached(&own));
    assert_eq!(own.headers()["ratelimit"], said.headers()["ratelimit"]);
    assert!(!own.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(own.body(), said.body());
    assert_eq!(store.calls(), 1);
    assert_eq!(send(&layer, costing(10)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_smaller_cost_that_could_pass_asks_the_store() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .policy(QuotaPolicy::per_minute("minute", 10))
        .build()
        .unwrap();
    assert_eq!(send(&layer, costing(6)).await.status(), StatusCode::OK);
    for cost in [5, 6, 10] {
        assert!(is_cached(&send(&layer, costing(cost)).await), "{cost}");
    }
    assert_eq!(send(&layer, costing(4)).await.status(), StatusCode::OK);
    assert_eq!(store.calls(), 2);
}

/// L27
#[tokio::test]
async fn what_is_rejected_from_memory_charges_nothing_and_needs_no_settlement() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .policy(QuotaPolicy::concurrent("at once", 3))
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    let settlements = store.settlements();
    for _ in 0..100 {
        assert!(is_cached(&send(&layer, request("alice")).await));
    }
    assert_eq!(store.settlements(), settlements);
    let left = layer.limiter().caller("alice").peek().await.unwrap().unwrap();
    let left: Vec<u64> = left.allowances().map(|allowance| allowance.remaining()).collect();
    assert_eq!(left, [0, 3]);
}

#[tokio::test(start_paused = true)]
async fn slots_queues_and_shadows_are_never_remembered() {
    let queue = Algorithm::LeakyBucketQueue { max_waiting: 1 };
    let clock = clock();
    for policies in [
        vec![QuotaPolicy::concurrent("at once", 1)],
        vec![QuotaPolicy::per_hour("queue", 1).with_algorithm(queue)],
        vec![
            QuotaPolicy::per_hour("shadow", 1).shadow(),
            QuotaPolicy::concurrent("at once", 1),
        ],
    ] {
        let store = remote(&clock);
        let layer = policies
            .into_iter()
            .fold(builder(store.clone(), &clock), RateLimitLayerBuilder::policy);
        let layer = layer.build().unwrap();
        let handler = async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("held")));
        let service = layer.layer(service_fn(handler));
        // Their bodies hold the slots, and two requests fill the queue.
        let _held = [
            service.clone().oneshot(request("alice")).await.unwrap(),
            service.oneshot(request("alice")).await.unwrap(),
        ];
        for _ in 0..5 {
            let rejected = send(&layer, request("alice")).await;
            assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(!is_cached(&rejected));
        }
        assert_eq!(store.calls(), 7);
    }
}

#[tokio::test]
async fn what_a_store_decides_at_once_is_not_remembered() {
    let clock = clock();
    let store = memory(&clock);
    let layer = builder(store, &clock)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .build()
        .unwrap();
    for _ in 0..5 {
        assert!(!is_cached(&send(&layer, request("alice")).await));
    }
}

#[tokio::test]
async fn without_the_cache_every_rejection_asks_the_store() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder_of(Limiter::builder(store.clone()).rejection_cache(0), &clock)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .build()
        .unwrap();
    for _ in 0..10 {
        assert!(!is_cached(&send(&layer, request("alice")).await));
    }
    assert_eq!(store.calls(), 10);
}

#[test]
fn a_cache_beyond_its_bound_is_rejected() {
    let layer = |partitions| {
        let limiter = Limiter::builder(MemoryStore::new()).rejection_cache(partitions);
        builder_of(limiter, &clock())
            .policy(QuotaPolicy::per_minute("minute", 1))
            .build()
    };
    assert!([0, 1, 1 << 20].into_iter().all(|partitions| layer(partitions).is_ok()));
    let error = layer((1 << 20) + 1).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::RejectionCache);
    assert_eq!(error.to_string(), "rejection cache 1048577 is outside 0..=1048576");
}

#[tokio::test]
async fn requests_that_cost_nothing_pass_by() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    let calls = store.calls();
    assert_eq!(send(&layer, costing(0)).await.status(), StatusCode::OK);
    assert_eq!(store.calls(), calls + 1);
}

/// D12: a cached rejection is valid only for the numbers of the rules and the callers to whom they apply.
#[tokio::test]
async fn new_rules_and_grants_count_at_once() {
    let clock = clock();
    let layer = builder(remote(&clock), &clock)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    assert!(is_cached(&send(&layer, request("alice")).await));
    layer
        .limiter()
        .rules()
        .replace(Rules::new().policy(QuotaPolicy::per_minute("minute", 2).with_caller_quotas(1..=9)))
        .unwrap();
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
    layer
        .limiter()
        .rules()
        .replace(Rules::new().policy(QuotaPolicy::per_minute("minute", 1).shadow()))
        .unwrap();
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn less_capacity_has_rejections_of_its_own() {
    let clock = clock();
    let is_reduced = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_reduced);
    let layer = builder(remote(&clock), &clock)
        .policy(QuotaPolicy::per_minute("minute", 2))
        .capacity(move |_| match asked.load(Ordering::SeqCst) {
            true => Capacity::reduced_to(50).unwrap(),
            false => Capacity::full(),
        })
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    let rejected = send(&layer, request("alice")).await;
    assert!(is_cached(&rejected) && rejected.decision().is_capacity_reduced());
    assert_eq!(rejected.headers()["ratelimit-policy"], r#""minute";q=1;w=60"#);
    is_reduced.store(false, Ordering::SeqCst);
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
            let free = Response::builder()
                .header("x-free", "yes")
                .body(Full::<Bytes>::default());
            Ok::<_, Infallible>(free.unwrap())
        }
    }));
    let first = tokio::spawn(service.oneshot(request("alice")));
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert!(is_cached(&send(&layer, request("alice")).await));
    answer.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
    clock.advance(Duration::from_micros(1));
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
}

/// A caller of a limiter with one unit per 100 s.
fn slow(store: &TestStore, clock: &Clock) -> Caller {
    let limiter = Limiter::builder(store.clone()).scope("slow").clock(clock.clone());
    let limiter = limiter.policy(QuotaPolicy::new("slow", 1, Duration::from_secs(100)));
    limiter.build().unwrap().caller("alice")
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
    let alice = slow(&store, &clock);
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

#[tokio::test]
async fn an_answer_from_before_a_late_charge_is_not_cached_after_it() {
    let clock = clock();
    let store = remote(&clock);
    let alice = slow(&store, &clock);
    let permit = alice.hold().await.unwrap();
    // Longer than anything is cached.
    clock.advance(Duration::from_secs(2));
    let told = Arc::new(Semaphore::new(0));
    store.set(Timing::Told(Arc::clone(&told)));
    let check = alice.clone();
    let in_flight = tokio::spawn(async move { check.check().await });
    while store.told() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_millis(1));
    permit.settle(10);
    clock.advance(Duration::from_millis(1));
    told.add_permits(1);
    assert_eq!(wait(&in_flight.await.unwrap()), 98);
    store.set(Timing::Later);
    for _ in 0..10 {
        assert_eq!(wait(&alice.check().await), 199);
    }
    assert_eq!(store.calls(), 3);
}

/// The bytes of a body of unknown length are charged when it has ended.
#[tokio::test]
async fn the_bytes_of_a_body_end_cached_rejections() {
    let clock = clock();
    let store = remote(&clock);
    let bytes = QuotaPolicy::new("bytes", 1_000, Duration::from_secs(1_000)).with_content_bytes(Direction::Response);
    let layer = builder(store.clone(), &clock).policy(bytes).build().unwrap();
    let long = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(crate::Stream::of(3)))
    }));
    let open = long.oneshot(request("alice")).await.unwrap();
    let whole = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![0; 999])))
    }));
    assert_eq!(test_kit::call(whole, request("alice")).await.status(), StatusCode::OK);
    clock.advance(Duration::from_micros(1));
    let shown = async || send(&layer, request("alice")).await;
    // One byte of the open response is charged.
    assert_eq!(wait(shown().await.decision()), 0);
    assert!(is_cached(&shown().await));
    open.into_body().collect().await.unwrap();
    clock.advance(Duration::from_micros(1));
    assert_eq!(wait(shown().await.decision()), 1_000);
    assert!(is_cached(&shown().await));
    assert_eq!(wait(shown().await.decision()), 1_000);
}

/// Units restored by another instance are visible after at most one second.
#[tokio::test]
async fn what_others_give_back_is_seen_after_a_second() {
    let clock = clock();
    let store = remote(&clock);
    let layer = || {
        builder(store.clone(), &clock)
            .policy(QuotaPolicy::per_hour("hour", 1))
            .build()
            .unwrap()
    };
    let (own, other) = (layer(), layer());
    exhaust(&own, &clock).await;
    other.limiter().caller("alice").reset().await.unwrap();
    assert!(is_cached(&send(&own, request("alice")).await));
    clock.advance(Duration::from_millis(970));
    assert_eq!(send(&own, request("alice")).await.status(), StatusCode::OK);
}

/// L9: a rejection does not become wrong because the store is unavailable.
#[tokio::test]
async fn while_the_circuit_is_open_rejections_are_remembered_for_their_second_and_then_the_failure_mode_decides() {
    let clock = clock();
    let store = remote(&clock);
    let layer = builder(store.clone(), &clock)
        .policy(QuotaPolicy::per_hour("hour", 1))
        .failure_mode(FailureMode::Open)
        .build()
        .unwrap();
    exhaust(&layer, &clock).await;
    store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    for user in 0..10 {
        let mut request = request("alice");
        request.headers_mut().insert("x-user-id", user.into());
        assert_eq!(send(&layer, request).await.outcome(), Outcome::FailedOpen);
    }
    let calls = store.calls();
    assert!(is_cached(&send(&layer, request("alice")).await));
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&layer, request("alice")).await.outcome(), Outcome::FailedOpen);
    assert!(store.calls() <= calls + 1);
}

/// A layer that fails open, and whose store alice has exhausted.
async fn exhausted(store: &TestStore, clock: &Clock) -> RateLimitLayer {
    let layer = builder(store.clone(), clock)
        .policy(QuotaPolicy::per_second("second", 2))
        .failure_mode(FailureMode::Open)
        .build()
        .unwrap();
    send(&layer, request("alice")).await;
    exhaust(&layer, clock).await;
    layer
}

/// Found by the checker of histories of the outage tests.
#[tokio::test]
async fn a_request_that_an_open_circuit_keeps_from_the_store_rejects_no_other_request() {
    let clock = clock();
    let store = remote(&clock);
    let layer = exhausted(&store, &clock).await;
    store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    let other = |user: u64| {
        let mut request = request("alice");
        request.headers_mut().insert("x-user-id", user.into());
        request
    };
    for user in 0..10 {
        send(&layer, other(user)).await;
    }
    // One unit has been restored, and no call charges it.
    clock.advance(Duration::from_millis(600));
    send(&layer, other(0)).await;
    let calls = store.calls();
    for _ in 0..3 {
        assert_eq!(send(&layer, request("alice")).await.outcome(), Outcome::FailedOpen);
    }
    assert_eq!(store.calls(), calls, "the circuit is open");
}

#[tokio::test]
async fn a_request_that_the_circuit_of_a_node_keeps_from_it_rejects_no_other_request() {
    let clock = clock();
    let store = remote(&clock);
    let layer = exhausted(&store, &clock).await;
    store.set(Timing::FailingLater(StoreErrorKind::CircuitOpen));
    clock.advance(Duration::from_millis(600));
    for _ in 0..3 {
        assert_eq!(send(&layer, request("alice")).await.outcome(), Outcome::FailedOpen);
    }
}

/// From the second request on, the fallback for a full store decides, and admits two.
#[tokio::test]
async fn a_request_for_which_the_store_has_no_memory_rejects_no_other_request() {
    let clock = clock();
    let store = remote(&clock);
    let layer = exhausted(&store, &clock).await;
    store.set(Timing::FailingLater(StoreErrorKind::OutOfMemory));
    clock.advance(Duration::from_millis(600));
    for outcome in [Outcome::FailedOpen, Outcome::Allowed, Outcome::Allowed] {
        assert_eq!(send(&layer, request("alice")).await.outcome(), outcome);
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
    let of = |user: u64| {
        let mut request = request("alice");
        request.headers_mut().insert("x-user-id", user.into());
        request
    };
    for user in 0..2 {
        assert_eq!(send(&layer, of(user)).await.status(), StatusCode::OK);
    }
    for user in 0..100 {
        let rejected = send(&layer, of(user)).await;
        assert_eq!(rejected.headers()["ratelimit"], r#""all";r=0;t=1800"#);
        assert_eq!(names(rejected.decision()), ["all"]);
    }
    assert_eq!(store.calls(), 2);
}

//! Requests that wait for their turn in a leaky bucket.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::{Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_layer::Layer;
use tower_quota::{Algorithm, Decision};
use tower_test::mock;

use super::*;

/// Two requests a second, two may wait.
const QUEUE: QuotaPolicy =
    QuotaPolicy::per_second("queue", 2).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 2 });
const HOUR: QuotaPolicy = QuotaPolicy::per_hour("hour", 100);

type Mock = mock::Mock<Request<TextBody>, Response<TextBody>>;

/// The paused clock advances automatically when all tasks are idle, so a future that never completes times out
/// immediately.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let in_time = tokio::time::timeout(Duration::from_secs(1), future).await;
    in_time.expect("it never comes")
}

/// L20, X18
#[tokio::test(start_paused = true)]
async fn requests_leave_at_a_constant_rate_and_find_no_place_when_the_queue_is_full() {
    let scene = Scene::new([QUEUE]);
    let (layer, start) = (scene.layer(), Instant::now());
    let calls = (0..5).map(|_| {
        let called = service_fn(move |request| async move {
            let (left, response) = (start.elapsed(), hello(request).await.unwrap());
            Ok::<_, Infallible>((left, response).1)
        });
        let service = layer.layer(called);
        async move {
            let response = service.oneshot(request()).await.unwrap();
            let delay = response.extensions().get::<Decision>().unwrap().delay();
            (
                response.status().as_u16(),
                delay.as_millis(),
                start.elapsed().as_millis(),
            )
        }
    });
    let all = join_all(calls).await;
    assert_eq!(
        all,
        [
            (200, 0, 0),
            (200, 500, 500),
            (200, 1_000, 1_000),
            (429, 0, 0),
            (429, 0, 0)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_meter_rejects_what_comes_too_early_instead_of_keeping_it() {
    let meter = QuotaPolicy::per_second("meter", 2).with_algorithm(Algorithm::LeakyBucketMeter);
    let scene = Scene::new([meter]);
    let layer = scene.layer();
    let call = || async { layer.layer(service_fn(hello)).oneshot(request()).await.unwrap() };
    assert_eq!(call().await.status(), StatusCode::OK);
    let early = call().await;
    assert_eq!(early.status(), StatusCode::TOO_MANY_REQUESTS);
    let decision = early.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
    scene.clock.advance(Duration::from_millis(500));
    assert_eq!(call().await.status(), StatusCode::OK);
}

/// The service's only permit is free while a request is queued, and is acquired again when the request is admitted.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_holds_no_service_that_is_ready() {
    let scene = Scene::new([QUEUE]);
    scene.take(1).await;
    let (mock, mut handle) = mock::pair::<Request<TextBody>, Response<TextBody>>();
    let limited: ConcurrencyLimit<Mock> = ConcurrencyLimit::new(mock, 1);
    let mut service = scene.layer().layer(limited.clone());
    service.ready().await.unwrap();
    let mut queued = task::spawn(service.call(request()));
    assert_pending!(queued.poll());

    // Another request takes the place, and still has it when the turn comes.
    let mut other = task::spawn(limited.oneshot(request()));
    assert_pending!(other.poll());
    let (_, respond) = soon(handle.next_request()).await.unwrap();
    tokio::time::advance(Duration::from_millis(501)).await;
    assert_pending!(queued.poll());
    respond.send_response(Response::default());
    assert!(assert_ready!(other.poll()).is_ok());

    assert!(queued.is_woken());
    assert_pending!(queued.poll());
    let (_, respond) = soon(handle.next_request()).await.unwrap();
    respond.send_response(Response::default());
    assert_eq!(assert_ready!(queued.poll()).unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_it_waits_stays_charged_and_frees_its_slot() {
    let scene = Scene::new([QUEUE, HOUR, QuotaPolicy::concurrent("slots", 5)]);
    scene.take(1).await;
    let before = scene.left().await;
    let called = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&called);
    let service = scene.layer().layer(service_fn(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        hello(request)
    }));
    let mut queued = task::spawn(service.oneshot(request()));
    assert_pending!(queued.poll());
    assert_eq!(scene.left().await, [before[0] - 1, before[1] - 1, before[2] - 1]);
    drop(queued);
    assert_eq!(scene.left().await, [before[0] - 1, before[1] - 1, before[2]]);
    assert_eq!(called.load(Ordering::SeqCst), 0);
}

/// Otherwise a client could empty the queue in front of others, again and again, for nothing.
#[tokio::test(start_paused = true)]
async fn no_place_in_the_queue_comes_back_when_its_request_is_cancelled() {
    let scene = Scene::new([QUEUE, HOUR]);
    scene.take(1).await;
    let layer = scene.layer();
    let queued = || {
        let mut queued = task::spawn(layer.layer(service_fn(hello)).oneshot(request()));
        assert_pending!(queued.poll());
        queued
    };
    let (first, second) = (queued(), queued());
    assert_eq!(scene.left().await, [0, 97]);
    drop(first);
    assert_eq!(scene.left().await, [0, 97], "another request waits behind it");
    drop(second);
    assert_eq!(scene.left().await, [0, 97], "it was the last one");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_before_it_is_called_costs_nothing() {
    let scene = Scene::new([QUEUE, HOUR]);
    scene.take(1).await;
    let before = scene.left().await;
    let (mut service, mut handle) = mock::spawn_layer::<Request<TextBody>, Response<TextBody>, _>(scene.layer());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    let mut queued = task::spawn(service.call(request()));
    assert_pending!(queued.poll());
    handle.send_error("gone");
    tokio::time::advance(Duration::from_millis(501)).await;
    assert_eq!(assert_ready!(queued.poll()).unwrap_err().to_string(), "gone");
    assert_eq!(scene.left().await, before);
}

/// D5
#[tokio::test(start_paused = true)]
async fn a_place_that_was_used_is_not_shown_as_left_when_the_request_has_cost_less() {
    let meter = QuotaPolicy::per_minute("meter", 1).with_algorithm(Algorithm::LeakyBucketMeter);
    for policy in [meter, QUEUE] {
        let scene = Scene::new([policy]);
        let layer = scene.builder().actual_cost(|_| Some(0)).build().unwrap();
        let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
        let shown = response
            .extensions()
            .get::<Decision>()
            .unwrap()
            .allowances()
            .next()
            .unwrap()
            .remaining();
        assert_eq!([shown], *scene.left().await);
    }
}

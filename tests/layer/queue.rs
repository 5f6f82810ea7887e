//! Requests that wait for their turn in a leaky bucket.

use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::Algorithm;

use super::*;

/// Two requests a second, two may wait.
const QUEUE: QuotaPolicy =
    QuotaPolicy::per_second("queue", 2).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 2 });

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
            let times = [response.decision().delay(), start.elapsed()];
            (response.code(), times.map(|time| time.as_millis()))
        }
    });
    let (all, rejected) = (join_all(calls).await, (429, [0, 0]));
    assert_eq!(all[..3], [(200, [0, 0]), (200, [500, 500]), (200, [1_000, 1_000])]);
    assert_eq!(all[3..], [rejected; 2]);
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
    assert_eq!(early.decision().retry_after(), Some(Duration::from_millis(500)));
    scene.clock.advance(Duration::from_millis(500));
    assert_eq!(call().await.status(), StatusCode::OK);
}

/// D5
#[tokio::test(start_paused = true)]
async fn a_place_that_was_used_is_not_shown_as_left_when_the_request_has_cost_less() {
    let meter = QuotaPolicy::per_minute("meter", 1).with_algorithm(Algorithm::LeakyBucketMeter);
    for policy in [meter, QUEUE] {
        let scene = Scene::new([policy]);
        let layer = scene.builder().actual_cost(|_| Some(0)).build().unwrap();
        let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
        let shown = response.decision().allowances().next().unwrap().remaining();
        assert_eq!([shown], *scene.left().await);
    }
}

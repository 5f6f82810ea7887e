//! The cost of a request, before and after it was served.

use std::future::ready;

use http::StatusCode;
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{ActualCost, Algorithm, Decision};

use super::*;

const HOUR: QuotaPolicy = QuotaPolicy::per_hour("hour", 100);

/// J17
#[tokio::test]
async fn each_request_costs_what_the_layer_says() {
    let scene = Scene::new([HOUR]);
    let layer = scene.builder().cost(7).build().unwrap();
    let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
    assert_eq!(ratelimit(&response), r#""hour";r=93;t=3348"#);

    let by_path = scene.builder().cost_by(|request| request.uri.path().len() as u64);
    let mut service = by_path.build().unwrap().layer(service_fn(hello));
    let mut request = request();
    *request.uri_mut() = "/abc".parse().unwrap();
    service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(scene.left().await, [89]);
}

/// A11
#[tokio::test]
async fn a_request_that_costs_nothing_shows_what_is_left_and_takes_nothing_in_any_unit() {
    let bytes = QuotaPolicy::per_hour("bytes", 100).with_content_bytes(tower_quota::Direction::Both);
    let scene = Scene::new([HOUR, bytes, QuotaPolicy::concurrent("slots", 2)]);
    let layer = scene.builder().cost(0).build().unwrap();
    let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
    assert_eq!(
        ratelimit(&response),
        r#""hour";r=100;t=3600, "bytes";r=100;t=3600, "slots";r=2"#
    );
    assert_eq!(scene.left().await, [100, 100, 2]);
}

/// A recipe counts only what has failed that way.
#[tokio::test]
async fn a_request_that_costs_nothing_is_charged_its_actual_cost_whatever_else_is_counted() {
    let bytes = QuotaPolicy::per_hour("bytes", 100).with_content_bytes(tower_quota::Direction::Both);
    let slots = QuotaPolicy::concurrent("slots", 2);
    for policies in [vec![HOUR], vec![HOUR, bytes], vec![HOUR, slots]] {
        let others: Vec<u64> = policies[1..].iter().map(QuotaPolicy::quota).collect();
        let scene = Scene::new(policies);
        let layer = scene.builder().cost(0).actual_cost(|_| Some(3)).build().unwrap();
        let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
        assert_eq!(response.decision().allowances().next().unwrap().remaining(), 97);
        drop(response);
        assert_eq!(scene.left().await, [vec![97], others].concat());
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_rejected_for_good_however_large_it_is() {
    for cost in [101, u64::MAX] {
        let scene = Scene::new([HOUR]);
        let layer = scene.builder().cost_by(move |_| cost).build().unwrap();
        let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!response.headers().contains_key("retry-after"));
        assert_eq!(scene.left().await, [100]);
    }
}

/// D17: refunds on errors.
#[tokio::test]
async fn the_response_decides_what_the_request_has_cost() {
    let scene = Scene::new([HOUR]);
    let is_free = |response: &http::response::Parts| response.status.is_server_error();
    let builder = scene
        .builder()
        .cost(5)
        .actual_cost(move |response| is_free(response).then_some(0));
    let layer = builder.build().unwrap();
    for (status, left) in [(200, 95), (500, 95), (404, 90)] {
        let service = service_fn(move |_: Request<TextBody>| {
            let response = Response::builder().status(status).body(TextBody::default());
            ready(Ok::<_, Infallible>(response.unwrap()))
        });
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        assert_eq!(scene.left().await, [left], "{status}");
        // The response contains the charged amount.
        let shown = response.decision().allowances().next().unwrap().remaining();
        assert_eq!(shown, left, "{status}");
    }
}

/// For example, a GraphQL query: the handler knows the cost better than the closure.
#[tokio::test]
async fn a_handler_says_what_its_work_has_cost_and_later_requests_pay_it_off() {
    let scene = Scene::new([HOUR]);
    let layer = scene.builder().actual_cost(|_| Some(3)).build().unwrap();
    let costs = |cost| {
        layer.layer(service_fn(move |_: Request<TextBody>| {
            let mut response = Response::new(TextBody::default());
            response.extensions_mut().insert(ActualCost(cost));
            ready(Ok::<_, Infallible>(response))
        }))
    };
    let response = costs(150).oneshot(request()).await.unwrap();
    assert_eq!((response.code(), ratelimit(&response)), (200, r#""hour";r=0;t=1836"#));
    let rejected = costs(1).oneshot(request()).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    // Fifty units of debt plus the requested unit, at 36 seconds each.
    assert_eq!(rejected.headers()["retry-after"], "1836");

    // Regardless of the cost, the debt is at most one capacity.
    scene.clock.advance(Duration::from_secs(1_836));
    costs(u64::MAX).oneshot(request()).await.unwrap();
    scene.clock.advance(Duration::from_secs(3_600 + 36));
    assert_eq!(scene.left().await, [1]);
}

/// For every algorithm and every cost, the reported state equals the stored state.
#[tokio::test]
async fn what_a_client_is_told_of_an_enormous_cost_is_what_the_store_says_afterwards() {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::LeakyBucketMeter,
        Algorithm::LeakyBucketQueue { max_waiting: 9 },
    ];
    let costs = [150, 300_000_000, 1 << 53, u64::MAX];
    for (algorithm, cost) in costs
        .into_iter()
        .flat_map(|cost| algorithms.map(|algorithm| (algorithm, cost)))
    {
        let scene = Scene::new([QuotaPolicy::per_day("day", 100).with_algorithm(algorithm)]);
        let layer = scene.builder().actual_cost(move |_| Some(cost)).build().unwrap();
        let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
        let told = response.extensions().get::<Decision>().unwrap();
        let kept = scene.store.decide(plan(&scene.policies, 1)).await.unwrap();
        let numbers = |decision: &Decision| {
            let day = decision.allowances().next().unwrap();
            (day.remaining(), day.effective_window())
        };
        assert_eq!(numbers(told), numbers(&kept), "{algorithm:?}, {cost}");
    }
}

#[tokio::test]
async fn what_was_charged_a_window_ago_does_not_come_back() {
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 100).with_algorithm(Algorithm::FixedWindow)]);
    let layer = scene.builder().cost(5).actual_cost(|_| Some(0)).build().unwrap();
    let clock = scene.clock.clone();
    let slow = service_fn(move |_: Request<TextBody>| {
        clock.advance(Duration::from_secs(3_600));
        async { Ok::<_, Infallible>(Response::new(TextBody::default())) }
    });
    layer.layer(slow).oneshot(request()).await.unwrap();
    scene.take(3).await;
    assert_eq!(scene.left().await, [97]);
}

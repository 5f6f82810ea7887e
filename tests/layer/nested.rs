//! Layers around each other: what an inner layer rejects stays charged in the outer one, or a client that the inner one
//! rejects would never exhaust it.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{StatusCode, response::Parts};
use http_body_util::BodyExt;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::MapRequestLayer};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Decision, Direction, Outcome, RateLimitBody, Rejection,
    content::{RequestContentBody, RequestContentLayer},
};

use super::*;

const HOUR: QuotaPolicy = QuotaPolicy::per_hour("hour", 100);
const TOKENS: QuotaPolicy = QuotaPolicy::per_hour("tokens", 10_000).with_unit("tokens");

/// A layer that rejects every request.
fn closed() -> RateLimitLayer {
    Scene::new([QuotaPolicy::per_hour("inner", 0)]).layer()
}

/// A layer with these policies whose requests have an estimate of 1,000 tokens.
fn estimated(scene: &Scene) -> RateLimitLayer {
    scene.builder().unit_cost("tokens", |_| 1_000).build().unwrap()
}

/// The response to a request that the inner of two layers rejects.
async fn rejected(outer: RateLimitLayer) -> Response<RateLimitBody<RateLimitBody<TextBody>>> {
    let layers = ServiceBuilder::new().layer(outer).layer(closed());
    let response = layers.service(service_fn(hello)).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    response
}

fn is_rejected(response: &Parts) -> bool {
    let decision: Option<&Decision> = response.extensions.get();
    decision.is_some_and(|decision| !decision.outcome().is_admitted())
}

/// I1: the set-up of the guide, address → authentication → user.
#[tokio::test]
async fn authentication_runs_no_more_often_than_the_limit_around_it_allows() {
    let addresses = Scene::new([QuotaPolicy::per_minute("address", 10)]);
    let users = Scene::new([QuotaPolicy::per_minute("user", 2)]);
    let (authenticated, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (authentications, requests) = (Arc::clone(&authenticated), Arc::clone(&served));
    let mut service = ServiceBuilder::new()
        .layer(addresses.layer())
        .layer(MapRequestLayer::new(move |request: Request<TextBody>| {
            authentications.fetch_add(1, Ordering::SeqCst);
            request
        }))
        .layer(users.layer())
        .service(service_fn(move |request| {
            requests.fetch_add(1, Ordering::SeqCst);
            hello(request)
        }));
    let mut shown = Vec::new();
    for _ in 0..200 {
        let response = service.ready().await.unwrap().call(request()).await.unwrap();
        shown.push(ratelimit(&response).to_owned());
    }
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    assert_eq!((count(&authenticated), count(&served)), (10, 2));
    // The response reports both limits.
    assert_eq!(shown[2], r#""user";r=0;t=30, "address";r=7;t=42"#);
    assert_eq!(shown[199], r#""address";r=0;t=6"#);
}

#[tokio::test]
async fn an_inner_rejection_keeps_the_charge_of_requests_and_releases_the_slot() {
    let outer = Scene::new([HOUR, QuotaPolicy::concurrent("slots", 2)]);
    for left in (95..100).rev() {
        let response = rejected(outer.layer()).await;
        assert_eq!(response.outcome(), Outcome::Rejected);
        drop(response);
        assert_eq!(outer.left().await, [left, 2]);
    }
}

/// A shadow counts as the policy that it will be.
#[tokio::test]
async fn an_inner_rejection_stays_charged_in_each_layer_around_it_and_in_shadows() {
    let (outermost, outer) = (Scene::new([HOUR]), Scene::new([HOUR.shadow()]));
    let layers = ServiceBuilder::new()
        .layer(outermost.layer())
        .layer(outer.layer())
        .layer(closed());
    layers.service(service_fn(hello)).oneshot(request()).await.unwrap();
    assert_eq!((outermost.left().await, outer.left().await), (vec![99], vec![99]));
}

/// The body of the rejection was sent, and of the request's body nothing was read.
#[tokio::test]
async fn of_an_inner_rejection_the_bytes_count_that_were_transferred() {
    let bytes = |name, direction| QuotaPolicy::per_hour(name, 10_000).with_content_bytes(direction);
    let policies = [bytes("in", Direction::Request), bytes("out", Direction::Response)];
    for frames in [0, 1] {
        let outer = Scene::new(policies.clone());
        let inner = closed();
        let service = RequestContentLayer::new().layer(outer.layer().layer(service_fn(
            move |mut request: Request<RequestContentBody<Stream>>| {
                let inner = inner.clone();
                async move {
                    for _ in 0..frames {
                        request.body_mut().frame().await.unwrap().unwrap();
                    }
                    let hello = service_fn(async |_| Ok::<_, Infallible>(Response::new(TextBody::default())));
                    inner.layer(hello).oneshot(request).await
                }
            },
        )));
        let request = Request::post("/").header("content-length", 5_000).body(Stream::of(5));
        let response = service.oneshot(request.unwrap()).await.unwrap();
        let sent = response.into_body().collect().await.unwrap().to_bytes().len() as u64;
        assert!(sent > 100, "{sent}");
        // Each request counts for at least one byte.
        let read = (frames * 1_000).max(1);
        assert_eq!(outer.left().await, [10_000 - read, 10_000 - sent]);
    }
}

#[tokio::test]
async fn an_inner_rejection_refunds_an_estimate_without_a_report_before_the_response() {
    let outer = Scene::new([HOUR, TOKENS]);
    let response = rejected(estimated(&outer)).await;
    assert!(ratelimit(&response).contains(r#""tokens";r=10000;"#));
    assert_eq!(outer.left().await, [99, 10_000]);
    drop(response);
    assert_eq!(outer.left().await, [99, 10_000]);
}

/// Reported by a layer between the two, for example one that computes an embedding by which the inner layer chooses.
#[tokio::test]
async fn an_inner_rejection_keeps_the_units_that_were_reported() {
    let outer = Scene::new([HOUR, TOKENS, QuotaPolicy::per_hour("rows", 100).with_unit("rows")]);
    let layer = outer.builder().unit_cost("tokens", |_| 1_000).unit_cost("rows", |_| 10);
    let layers = ServiceBuilder::new()
        .layer(layer.build().unwrap())
        .layer(MapRequestLayer::new(|request: Request<TextBody>| {
            assert!(permit_of(&request).add("tokens", 40));
            request
        }))
        .layer(closed());
    let response = layers.service(service_fn(hello)).oneshot(request()).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(outer.left().await, [99, 9_960, 100]);
}

/// For example, by a task that outlives the rejection.
#[tokio::test]
async fn a_report_after_an_inner_rejection_is_charged() {
    let outer = Scene::new([HOUR, TOKENS]);
    let permit = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&permit);
    let layers = ServiceBuilder::new()
        .layer(estimated(&outer))
        .layer(MapRequestLayer::new(move |request: Request<TextBody>| {
            *keep.lock().unwrap() = request.extensions().get::<WeakPermit>().cloned();
            request
        }))
        .layer(closed());
    let response = layers.service(service_fn(hello)).oneshot(request()).await.unwrap();
    let permit = permit.lock().unwrap().take().unwrap();
    assert!(permit.upgrade().unwrap().add("tokens", 40));
    drop(response);
    assert_eq!(outer.left().await, [99, 9_960]);
}

/// D17
#[tokio::test]
async fn the_actual_cost_is_computed_from_an_inner_rejection_too_and_sees_that_it_is_one() {
    type ActualCostOf = fn(&Parts) -> Option<u64>;
    let cases: [(ActualCostOf, u64); 4] = [
        // The rule of the guide for logins: what has not succeeded stays charged.
        (|response| response.status.is_success().then_some(0), 95),
        (|response| is_rejected(response).then_some(0), 100),
        (|response| is_rejected(response).then_some(2), 98),
        (|response| (!is_rejected(response)).then_some(0), 95),
    ];
    for (actual_cost, left) in cases {
        // With slots the charge stays open until the body has ended.
        for policies in [vec![HOUR], vec![HOUR, QuotaPolicy::concurrent("slots", 2)]] {
            let outer = Scene::new(policies);
            let layer = outer.builder().cost(5).actual_cost(actual_cost).build().unwrap();
            let response = rejected(layer).await;
            assert!(ratelimit(&response).contains(&format!(r#""hour";r={left};"#)));
            drop(response);
            assert_eq!(outer.left().await[0], left);
        }
    }
}

/// The inner layer knows that no work was done, and reports this.
#[tokio::test]
async fn a_rejection_that_says_its_actual_cost_costs_that_in_the_outer_layer() {
    let outer = Scene::new([HOUR]);
    let inner = Scene::new([QuotaPolicy::per_hour("inner", 0)]);
    let inner = inner.builder().respond_with(|_: &Rejection<'_>| {
        let mut response = Response::new(Bytes::new());
        response.extensions_mut().insert(ActualCost(0));
        response
    });
    let service = outer.layer().layer(inner.build().unwrap().layer(service_fn(hello)));
    service.oneshot(request()).await.unwrap();
    assert_eq!(outer.left().await, [100]);
}

/// A layer that exposes a decision has not necessarily rejected the request.
#[tokio::test]
async fn an_inner_layer_that_shows_what_it_has_allowed_waives_no_estimate() {
    let outer = Scene::new([HOUR, TOKENS]);
    let inner = Scene::new([QuotaPolicy::per_hour("inner", 1)]).layer();
    let handler = service_fn(|_: Request<TextBody>| ready(Ok::<_, Infallible>(Response::new(TextBody::default()))));
    let service = estimated(&outer).layer(inner.layer(handler));
    drop(service.oneshot(request()).await.unwrap());
    assert_eq!(outer.left().await, [99, 9_000]);
}

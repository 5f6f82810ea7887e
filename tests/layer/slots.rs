//! Limits of concurrent requests: a slot is held exactly as long as the request is in progress.

use std::future::pending;

use http::StatusCode;
use http_body_util::BodyExt;
use tokio_test::{assert_pending, task};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::RateLimitBody;

use super::*;

fn scene() -> Scene {
    Scene::new([QuotaPolicy::concurrent("slots", 2), QuotaPolicy::per_hour("hour", 100)])
}

async fn streamed(_: Request<TextBody>) -> Result<Response<Stream>, Infallible> {
    Ok(Response::new(Stream::of(2)))
}

async fn respond(scene: &Scene) -> Response<RateLimitBody<Stream>> {
    let service = scene.layer().layer(service_fn(streamed));
    service.oneshot(request()).await.unwrap()
}

/// A13, D14, A14, B5
#[tokio::test]
async fn only_so_many_requests_are_in_progress_at_a_time() {
    let scene = scene();
    let (first, second) = (respond(&scene).await, respond(&scene).await);
    assert_eq!(ratelimit(&second), r#""slots";r=0, "hour";r=98;t=3528"#);
    assert_eq!(
        second.headers()["ratelimit-policy"],
        r#""slots";q=2;qu="concurrent-requests", "hour";q=100;w=3600"#
    );
    let rejected = respond(&scene).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], "1");
    assert_eq!(scene.left().await, [0, 98], "a rejection takes from no policy");
    drop(first);
    assert_eq!(respond(&scene).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_slot_is_free_when_the_body_has_ended_also_before_it_is_dropped() {
    let scene = scene();
    let mut body = respond(&scene).await.into_body();
    for _ in 0..2 {
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(scene.left().await[0], 1);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(scene.left().await[0], 2);
    drop(body);
    assert_eq!(scene.left().await[0], 2);
}

/// Servers do not poll a body again after it reports its end.
#[tokio::test]
async fn a_slot_is_free_with_the_last_frame_of_a_body_that_knows_it_to_be_the_last() {
    let scene = scene();
    let response = scene.layer().layer(service_fn(hello)).oneshot(request()).await.unwrap();
    let mut body = response.into_body();
    assert_eq!(scene.left().await[0], 1);
    assert!(body.frame().await.unwrap().is_ok());
    assert_eq!(scene.left().await[0], 2);
    drop(body);
    assert_eq!(scene.left().await[0], 2);
}

#[tokio::test]
async fn a_slot_is_free_when_the_body_fails_however_long_it_is_kept() {
    let scene = scene();
    let service = service_fn(async |_: Request<TextBody>| Ok::<_, Infallible>(Response::new(Broken::default())));
    let response = scene.layer().layer(service).oneshot(request()).await.unwrap();
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert_eq!(scene.left().await[0], 1);
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "broken");
    assert_eq!(scene.left().await[0], 2);
}

#[tokio::test]
async fn a_slot_is_free_when_the_body_is_dropped_before_its_end() {
    let scene = scene();
    let mut body = respond(&scene).await.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    drop(body);
    assert_eq!(scene.left().await[0], 2);
}

#[tokio::test]
async fn a_slot_is_free_when_there_is_no_body_to_wait_for() {
    let scene = scene();
    let empty = service_fn(async |_: Request<TextBody>| Ok::<_, Infallible>(Response::new(TextBody::default())));
    let response = scene.layer().layer(empty).oneshot(request()).await.unwrap();
    assert_eq!(scene.left().await[0], 2);
    drop(response);
    assert_eq!(scene.left().await[0], 2);
}

#[tokio::test]
async fn a_slot_is_free_when_the_request_is_given_up() {
    let scene = scene();
    let hanging = service_fn(|_: Request<TextBody>| pending::<Result<Response<TextBody>, Infallible>>());
    let mut call = task::spawn(scene.layer().layer(hanging).oneshot(request()));
    assert_pending!(call.poll());
    assert_eq!(scene.left().await, [1, 99]);
    drop(call);
    // The service was called: what it has done is charged.
    assert_eq!(scene.left().await, [2, 99]);
}

/// After an upgrade, the body ends immediately, but the connection continues. A job may begin with any response.
#[tokio::test]
async fn an_upgraded_connection_or_a_job_can_hold_its_slot() {
    for status in [101, 202] {
        let scene = scene();
        let (sender, receiver) = std::sync::mpsc::channel::<Permit>();
        let service = service_fn(move |request: Request<TextBody>| {
            sender.send(permit_of(&request)).unwrap();
            async move { Ok::<_, Infallible>(Response::builder().status(status).body(TextBody::default()).unwrap()) }
        });
        drop(scene.layer().layer(service).oneshot(request()).await.unwrap());
        let held = receiver.recv().unwrap();
        assert_eq!(scene.left().await[0], 1, "{status}");
        drop(held);
        assert_eq!(scene.left().await[0], 2, "{status}");
    }
}

#[tokio::test]
async fn a_slot_that_nobody_holds_after_the_request_cannot_be_taken_any_more() {
    let scene = scene();
    let (sender, receiver) = std::sync::mpsc::channel::<WeakPermit>();
    let service = service_fn(move |request: Request<TextBody>| {
        let permit = request.extensions().get::<WeakPermit>().cloned();
        sender.send(permit.unwrap()).unwrap();
        hello(request)
    });
    drop(scene.layer().layer(service).oneshot(request()).await.unwrap());
    assert!(receiver.recv().unwrap().upgrade().is_none());
    assert_eq!(scene.left().await[0], 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_holds_its_slot_while_it_waits_for_its_turn() {
    let queue = tower_quota::Algorithm::LeakyBucketQueue { max_waiting: 5 };
    let scene = Scene::new([
        QuotaPolicy::concurrent("slots", 2),
        QuotaPolicy::per_second("queue", 1).with_algorithm(queue),
    ]);
    scene.take(0).await;
    let layer = scene.layer();
    let first = layer.layer(service_fn(streamed)).oneshot(request()).await.unwrap();
    let mut waiting = task::spawn(layer.layer(service_fn(streamed)).oneshot(request()));
    assert_pending!(waiting.poll());
    assert_eq!(scene.left().await[0], 0);
    let rejected = layer.layer(service_fn(streamed)).oneshot(request()).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(first);
    let second = waiting.await.unwrap();
    assert_eq!(scene.left().await[0], 1);
    drop(second);
    assert_eq!(scene.left().await[0], 2);
}

/// A request that is answered from within by another one, which takes over what is attached to it.
#[tokio::test]
async fn a_request_that_goes_round_in_circles_collects_no_slots() {
    let scene = scene();
    let mut extensions = http::Extensions::new();
    for _ in 0..3 {
        let (sender, receiver) = std::sync::mpsc::channel();
        let service = service_fn(move |request: Request<TextBody>| {
            sender.send(request.extensions().clone()).unwrap();
            hello(request)
        });
        let mut request = request();
        *request.extensions_mut() = extensions;
        drop(scene.layer().layer(service).oneshot(request).await.unwrap());
        extensions = receiver.recv().unwrap();
        let permit = extensions.get::<WeakPermit>().unwrap();
        assert_eq!(format!("{permit:?}"), "WeakPermit(1)");
    }
}

//! The Tower contract: the service that was polled ready is the one that is called, clones are independent, and
//! requests and responses pass through unchanged.

use std::task::Poll;

use http::Request;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::limit::ConcurrencyLimit;
use tower_layer::Layer;
use tower_quota::{
    ResolvedTier,
    tier::{ResolveTier, ResponseFuture, TierCache, TierLayer},
};
use tower_test::mock;

use super::support::{MILLISECOND, Mood, Scene, UserId, settle};

type Mock = mock::Mock<Request<&'static str>, &'static str>;
type Handle = mock::Handle<Request<&'static str>, &'static str>;
type Service = mock::Spawn<ResolveTier<Mock>>;
type Call = task::Spawn<ResponseFuture<Mock, &'static str>>;
type Arrived = (Request<&'static str>, mock::SendResponse<&'static str>);

/// With a source that answers while the request waits for it, and a user who is known already.
async fn scenes() -> [(Scene, Service, Handle); 2] {
    let slow = Scene::new();
    slow.source.mood(Mood::AnswersAfter(10 * MILLISECOND));
    let known = Scene::new();
    for scene in [&slow, &known] {
        scene.source.set(1, "premium");
    }
    known.request(1).await;
    [slow, known].map(|scene| {
        let (service, handle) = mock::spawn_layer(scene.layer.clone());
        (scene, service, handle)
    })
}

fn request() -> Request<&'static str> {
    let request = Request::post("/path").header("x-field", "value").extension(UserId(1));
    // An outer layer has inserted a tier, which the layer replaces.
    let request = request.extension(ResolvedTier::new("other"));
    request.body("question").unwrap()
}

fn call(service: &mut Service) -> Call {
    assert_ready_ok!(service.poll_ready());
    task::spawn(service.call(request()))
}

/// Lets the request come to the inner service, which may then answer it.
async fn arrive(scene: &Scene, call: &mut Call, handle: &mut Handle) -> Arrived {
    assert_pending!(call.poll());
    scene.time.pass(10 * MILLISECOND).await;
    assert_pending!(call.poll());
    assert_ready!(handle.poll_request()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_the_inner_service_is() {
    for (_, mut service, mut handle) in scenes().await {
        handle.allow(0);
        assert_pending!(service.poll_ready());
        handle.allow(1);
        assert!(service.is_woken());
        assert_ready_ok!(service.poll_ready());
        handle.send_error("broken");
        let mut clone = mock::Spawn::new(service.get_ref().clone());
        assert_eq!(assert_ready!(clone.poll_ready()).unwrap_err().to_string(), "broken");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_reaches_the_service_that_was_ready_unchanged_but_for_its_tier() {
    for (scene, mut service, mut handle) in scenes().await {
        handle.allow(1);
        let mut response = call(&mut service);
        let (request, answer) = arrive(&scene, &mut response, &mut handle).await;
        assert_eq!(request.extensions().get::<ResolvedTier>().unwrap().as_str(), "premium");
        assert_eq!(request.extensions().get::<UserId>(), Some(&UserId(1)));
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/path"));
        assert_eq!(request.headers()["x-field"], "value");
        assert_eq!(request.into_body(), "question");
        answer.send_response("answer");
        assert_eq!(assert_ready_ok!(response.poll()), "answer");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_is_passed_on_unchanged() {
    for (scene, mut service, mut handle) in scenes().await {
        handle.allow(1);
        let mut response = call(&mut service);
        let (_, answer) = arrive(&scene, &mut response, &mut handle).await;
        answer.send_error("handler failed");
        let error = assert_ready!(response.poll()).unwrap_err();
        assert_eq!(error.to_string(), "handler failed");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_call_the_service_has_to_become_ready_again() {
    for (_, mut service, mut handle) in scenes().await {
        handle.allow(1);
        let _response = call(&mut service);
        handle.allow(0);
        assert_pending!(service.poll_ready());
    }
}

/// Two requests at a time over one connection: each takes the place that its own readiness has taken.
#[tokio::test(start_paused = true)]
async fn a_place_that_readiness_took_is_used_by_its_request_and_given_back_when_that_is_dropped() {
    for (scene, _, _) in scenes().await {
        let (inner, mut handle) = mock::pair::<Request<&'static str>, &'static str>();
        let mut service = mock::Spawn::new(scene.layer.layer(ConcurrencyLimit::new(inner, 1)));
        handle.allow(2);
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call(request()));
        assert_pending!(response.poll());
        assert_pending!(service.poll_ready());
        drop(response);
        assert!(service.is_woken());
        assert_ready_ok!(service.poll_ready());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_before_its_tier_is_known_never_reaches_the_inner_service() {
    let [(scene, mut service, mut handle), _] = scenes().await;
    handle.allow(1);
    let mut response = call(&mut service);
    assert_pending!(response.poll());
    drop(response);
    scene.time.pass(10 * MILLISECOND).await;
    assert_pending!(handle.poll_request());
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_is_woken_by_the_answer() {
    let [(scene, mut service, mut handle), _] = scenes().await;
    handle.allow(1);
    let mut response = call(&mut service);
    assert_pending!(response.poll());
    settle().await;
    assert!(!response.is_woken());
    scene.time.pass(10 * MILLISECOND).await;
    assert!(response.is_woken());
    assert!(matches!(response.poll(), Poll::Pending));
    assert_ready!(handle.poll_request()).unwrap();
}

#[test]
fn layer_service_and_future_can_be_sent_and_named() {
    fn sendable<T: Send + Sync>() {}
    fn movable<T: Send>() {}
    sendable::<TierLayer>();
    sendable::<TierCache>();
    sendable::<ResolveTier<Mock>>();
    movable::<ResponseFuture<Mock, &'static str>>();
}

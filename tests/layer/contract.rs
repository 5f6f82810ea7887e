//! The Tower contract: the service that was polled ready is the one that is called, clones are independent, and a
//! dropped future leaves nothing behind.
//!
//! `tower_test::mock` panics when a service is called that was not ready.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use test_kit::{Answered, TestStore, Timing};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::limit::ConcurrencyLimit;
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, Direction, MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, Scope, Settlement, Store, StoreErrorKind, key,
};
use tower_test::mock;

type Body = Full<Bytes>;
type Handle = mock::Handle<Request<Body>, Response<Body>>;
type Service = mock::Spawn<tower_quota::RateLimit<mock::Mock<Request<Body>, Response<Body>>>>;

type Call = task::Spawn<tower_quota::ResponseFuture<mock::Mock<Request<Body>, Response<Body>>, Body>>;

fn builder(store: impl Store) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(store)
        .decision_in_response()
        .scope("contract")
        .key(key::from_fn(|_| Some(PartitionKey::new("everyone", ""))))
}

fn layer(store: impl Store) -> RateLimitLayer {
    builder(store).policy(QuotaPolicy::per_day("daily", 2)).build().unwrap()
}

fn spawn(store: impl Store) -> (Service, Handle) {
    mock::spawn_layer(layer(store))
}

/// A store in memory, which needs no plan, a store that decides immediately, and a store whose decisions are deferred.
fn stores() -> [Arc<dyn Store>; 3] {
    let timed = |timing| -> Arc<dyn Store> { Arc::new(TestStore::new(MemoryStore::new(), timing)) };
    let memory = Arc::new(MemoryStore::new());
    [memory, timed(Timing::AtOnce), timed(Timing::Later)]
}

fn failing() -> [TestStore; 2] {
    let unreachable = StoreErrorKind::Unreachable;
    [Timing::Failing(unreachable), Timing::FailingLater(unreachable)]
        .map(|timing| TestStore::new(MemoryStore::new(), timing))
}

/// A store that never decides.
pub(super) fn hanging() -> TestStore {
    TestStore::new(MemoryStore::new(), Timing::Hanging)
}

fn request() -> Request<Body> {
    Request::new(Full::from("question"))
}

fn body_of(response: Response<tower_quota::RateLimitBody<Body>>) -> Bytes {
    let body = task::spawn(response.into_body().collect()).poll();
    assert_ready!(body).unwrap().to_bytes()
}

/// Polls until nothing changes: a deferred decision takes two polls.
macro_rules! settle {
    ($future:expr) => {
        match $future.poll() {
            Poll::Pending => $future.poll(),
            ready => ready,
        }
    };
}

fn call(service: &mut Service) -> Call {
    assert_ready_ok!(service.poll_ready());
    task::spawn(service.call(request()))
}

/// Sends a request with a body of 300 bytes, of which none is sent.
fn announce(service: &mut Service) -> Call {
    assert_ready_ok!(service.poll_ready());
    let announced = Request::post("/").header("content-length", 300);
    task::spawn(service.call(announced.body(Full::default()).unwrap()))
}

async fn let_tasks_run() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// Lets the request come to the inner service, which may then answer it.
fn arrive<F: Future<Output: Debug>>(
    call: &mut task::Spawn<F>,
    handle: &mut Handle,
) -> mock::SendResponse<Response<Body>> {
    assert_pending!(settle!(call));
    let (_, answer) = assert_ready!(handle.poll_request()).unwrap();
    answer
}

/// Sends a request to a service that is ready, and answers it.
fn serve<S>(service: &mut mock::Spawn<S>, handle: &mut Handle)
where
    S: tower::Service<Request<Body>, Response: Debug, Error: Debug>,
{
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(request()));
    let answer = arrive(&mut response, handle);
    answer.send_response(Response::default());
    assert_ready_ok!(response.poll());
}

/// Uses up the quota of two.
fn exhaust(service: &mut Service, handle: &mut Handle) {
    handle.allow(2);
    for _ in 0..2 {
        serve(service, handle);
    }
    handle.allow(1);
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_the_inner_service_is() {
    let (mut service, mut handle) = spawn(MemoryStore::new());
    handle.allow(0);
    assert_pending!(service.poll_ready());
    assert!(!service.is_woken());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_is_passed_on() {
    let (mut service, mut handle) = spawn(MemoryStore::new());
    handle.send_error("broken");
    let error = assert_ready!(service.poll_ready()).unwrap_err();
    assert_eq!(error.to_string(), "broken");
}

#[tokio::test(start_paused = true)]
async fn an_allowed_request_reaches_the_service_that_was_ready_and_its_body_comes_back() {
    for store in stores() {
        let (mut service, mut handle) = spawn(store);
        handle.allow(1);
        let mut response = call(&mut service);
        assert_pending!(settle!(response));
        let (request, answer) = assert_ready!(handle.poll_request()).unwrap();
        let question = assert_ready!(task::spawn(request.into_body().collect()).poll()).unwrap();
        assert_eq!(question.to_bytes(), "question");
        answer.send_response(Response::new(Full::from("answer")));
        let response = assert_ready_ok!(response.poll());
        assert_eq!(response.outcome(), Outcome::Allowed);
        assert_eq!(body_of(response), "answer");
    }
}

/// L28
#[tokio::test(start_paused = true)]
async fn a_rejected_request_never_reaches_the_inner_service() {
    for store in stores() {
        let (mut service, mut handle) = spawn(store);
        exhaust(&mut service, &mut handle);
        let mut response = call(&mut service);
        let response = assert_ready_ok!(settle!(response));
        assert_eq!((response.code(), response.outcome()), (429, Outcome::Rejected));
        assert_pending!(handle.poll_request());
    }
}

/// A place in a concurrency limit is taken when a service becomes ready. A rejection that kept it would block all other
/// connections until the same connection sends its next request.
#[tokio::test(start_paused = true)]
async fn a_rejected_request_gives_back_the_place_that_readiness_took() {
    for store in stores() {
        let (inner, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let inner = ConcurrencyLimit::new(inner, 1);
        let layer = layer(store);
        let mut service = mock::Spawn::new(layer.layer(inner));
        let mut other = mock::Spawn::new(service.get_ref().clone());
        handle.allow(3);
        for _ in 0..2 {
            serve(&mut service, &mut handle);
        }
        assert_ready_ok!(service.poll_ready());
        let mut rejection = task::spawn(service.call(request()));
        assert_ready_ok!(settle!(rejection));
        drop(rejection);
        assert_ready_ok!(
            other.poll_ready(),
            "the place is free although `service` is still there"
        );
    }
}

/// Counts its clones.
struct Counted<S> {
    inner: S,
    clones: Arc<AtomicUsize>,
}

impl<S: Clone> Clone for Counted<S> {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Ordering::SeqCst);
        Self {
            inner: self.inner.clone(),
            clones: Arc::clone(&self.clones),
        }
    }
}

impl<S: tower::Service<R>, R> tower::Service<R> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.inner.call(request)
    }
}

/// A clone can be expensive: cloning a `BoxCloneService` allocates. An admitted request needs a clone only if it waits
/// for its decision, and a rejected request only to release the readiness.
#[tokio::test(start_paused = true)]
async fn a_request_clones_the_inner_service_once_at_most() {
    for (store, clones_of_allowed) in stores().into_iter().zip([0, 0, 1]) {
        let (inner, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let clones = Arc::new(AtomicUsize::new(0));
        let counted = Counted {
            inner,
            clones: Arc::clone(&clones),
        };
        let mut service = mock::Spawn::new(layer(store).layer(counted));
        handle.allow(3);
        for _ in 0..2 {
            serve(&mut service, &mut handle);
            assert_eq!(clones.swap(0, Ordering::SeqCst), clones_of_allowed);
        }
        assert_ready_ok!(service.poll_ready());
        let mut rejection = task::spawn(service.call(request()));
        assert_eq!(assert_ready_ok!(settle!(rejection)).code(), 429);
        assert_eq!(clones.load(Ordering::SeqCst), 1);
    }
}

/// Issue tower-rs/tower#764: limits stored in the service apply to one connection only.
#[tokio::test(start_paused = true)]
async fn clones_share_their_limits_but_not_their_readiness() {
    for store in stores() {
        let (mut service, mut handle) = spawn(store);
        let mut clone = mock::Spawn::new(service.get_ref().clone());
        exhaust(&mut service, &mut handle);
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        assert_pending!(clone.poll_ready());
        handle.allow(1);
        let mut response = call(&mut clone);
        assert_eq!(assert_ready_ok!(settle!(response)).code(), 429);
    }
}

/// L9, L10
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_lets_the_request_through_without_fields() {
    for store in failing() {
        let (mut service, mut handle) = spawn(store);
        handle.allow(1);
        let mut response = call(&mut service);
        let answer = arrive(&mut response, &mut handle);
        answer.send_response(Response::new(Full::from("answer")));
        let response = assert_ready_ok!(response.poll());
        assert!(response.headers().is_empty());
        assert_eq!(response.outcome(), Outcome::FailedOpen);
        assert_eq!(body_of(response), "answer");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_holds_a_request_until_the_deadline_and_no_longer() {
    let (mut service, mut handle) = spawn(hanging());
    handle.allow(1);
    let mut response = call(&mut service);
    assert_pending!(response.poll());
    tokio::time::advance(Duration::from_millis(49)).await;
    assert_pending!(response.poll());
    assert_pending!(handle.poll_request());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert_pending!(response.poll());
    let (_, answer) = assert_ready!(handle.poll_request()).unwrap();
    answer.send_response(Response::new(Full::default()));
    assert_ready_ok!(response.poll());
}

/// A store that is near and one that is far, for a layer with these policies.
fn layers(policies: &[QuotaPolicy]) -> [(MemoryStore, RateLimitLayer); 2] {
    [Timing::AtOnce, Timing::Later].map(|timing| {
        let store = MemoryStore::new();
        let builder = builder(TestStore::new(store.clone(), timing));
        let builder = policies.iter().cloned().fold(builder, RateLimitLayerBuilder::policy);
        (store, builder.build().unwrap())
    })
}

/// The units that each policy of such a layer has left.
async fn left(store: &MemoryStore, policies: &[QuotaPolicy]) -> Vec<u64> {
    let everyone = Scope::new("contract").partition(&PartitionKey::new("everyone", ""));
    let policies = PolicySet::new(policies.iter().cloned()).unwrap();
    let decision = store.peek(Plan::new(policies, everyone, 1)).await.unwrap();
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

/// Ten seconds between two requests, so that no unit comes back while a test runs.
fn queue() -> QuotaPolicy {
    QuotaPolicy::new("queue", 1, Duration::from_secs(10)).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 3 })
}

/// A queued request must not hold the resources of a ready service, wherever the store is.
#[tokio::test(start_paused = true)]
async fn a_request_in_a_queue_holds_no_service_that_is_ready() {
    for (_, layer) in layers(&[queue()]) {
        let (inner, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let limited = ConcurrencyLimit::new(inner, 1);
        let mut service = mock::Spawn::new(layer.layer(limited.clone()));
        let mut other = mock::Spawn::new(limited);
        handle.allow(9);
        serve(&mut service, &mut handle);
        assert_ready_ok!(service.poll_ready());
        let mut queued = task::spawn(service.call(request()));
        assert_pending!(settle!(queued));
        assert_ready_ok!(other.poll_ready(), "the place is free");
        let mut others = task::spawn(other.call(request()));
        let answer = arrive(&mut others, &mut handle);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_pending!(queued.poll());
        answer.send_response(Response::default());
        assert_ready_ok!(others.poll());
        drop(others);

        assert!(queued.is_woken());
        let answer = arrive(&mut queued, &mut handle);
        answer.send_response(Response::default());
        assert_ready_ok!(queued.poll());
    }
}

/// X34
#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_in_a_queue_stays_charged_with_its_place_and_holds_no_slot() {
    let policies = [
        queue(),
        QuotaPolicy::per_day("daily", 9),
        QuotaPolicy::per_day("bytes", 1_000).with_content_bytes(Direction::Request),
        QuotaPolicy::concurrent("at once", 5),
    ];
    for (store, layer) in layers(&policies) {
        let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(layer);
        handle.allow(1);
        serve(&mut service, &mut handle);
        let before = left(&store, &policies).await;
        assert_eq!(before, [3, 8, 999, 5]);

        handle.allow(1);
        let mut cancelled = announce(&mut service);
        assert_pending!(settle!(cancelled));
        assert_eq!(left(&store, &policies).await, [2, 7, 699, 4]);
        drop(cancelled);
        assert_eq!(left(&store, &policies).await, [2, 7, 998, 5], "no body was sent");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_pending!(handle.poll_request());
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_while_a_request_is_in_a_queue_costs_it_nothing() {
    let [daily, slots] = [QuotaPolicy::per_day("daily", 9), QuotaPolicy::concurrent("at once", 5)];
    let policies = [queue(), daily, slots];
    for (store, layer) in layers(&policies) {
        let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(layer);
        handle.allow(1);
        serve(&mut service, &mut handle);
        let before = left(&store, &policies).await;

        handle.allow(1);
        let mut failing = call(&mut service);
        assert_pending!(settle!(failing));
        let during: Vec<u64> = before.iter().map(|left| left - 1).collect();
        assert_eq!(left(&store, &policies).await, during);
        handle.send_error("gone");
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(assert_ready!(failing.poll()).unwrap_err().to_string(), "gone");
        assert_eq!(left(&store, &policies).await, before);
    }
}

/// X34
#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_its_store_decides_stays_charged_and_holds_no_slot() {
    let policies = [
        QuotaPolicy::per_day("daily", 9),
        QuotaPolicy::per_day("bytes", 1_000).with_content_bytes(Direction::Request),
        QuotaPolicy::concurrent("at once", 2),
    ];
    let [_, (store, layer)] = layers(&policies);
    let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(layer);
    handle.allow(1);
    let mut cancelled = announce(&mut service);
    assert_pending!(cancelled.poll());
    assert_eq!(left(&store, &policies).await, [8, 700, 1]);
    drop(cancelled);
    let_tasks_run().await;
    assert_eq!(left(&store, &policies).await, [8, 999, 2], "no body was sent");
    assert_pending!(handle.poll_request());
}

/// X34: `call` has called a store that decides immediately, but not a remote store.
#[tokio::test(start_paused = true)]
async fn a_future_that_was_never_polled_is_charged_if_the_decision_was_made_by_call() {
    let policies = [QuotaPolicy::per_day("daily", 9), QuotaPolicy::concurrent("at once", 2)];
    for ((store, layer), expected) in layers(&policies).into_iter().zip([8, 9]) {
        let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(layer);
        handle.allow(1);
        drop(call(&mut service));
        let_tasks_run().await;
        assert_eq!(left(&store, &policies).await, [expected, 2]);
    }
}

/// X34
#[tokio::test(start_paused = true)]
async fn the_request_of_an_outer_layer_stays_charged_when_it_is_cancelled_while_an_inner_store_decides() {
    let policies = [QuotaPolicy::per_day("daily", 9), QuotaPolicy::concurrent("at once", 2)];
    for ((outer_store, outer), (inner_store, inner)) in layers(&policies).into_iter().zip(layers(&policies)) {
        let (mock, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let mut service = mock::Spawn::new(outer.layer(inner.layer(mock)));
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut cancelled = task::spawn(service.call(request()));
        assert_pending!(settle!(cancelled));
        drop(cancelled);
        let_tasks_run().await;
        for store in [outer_store, inner_store] {
            assert_eq!(left(&store, &policies).await, [8, 2]);
        }
    }
}

/// The service was called: what it may have done is charged, also if the client no longer waits for its answer.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_passed_on_stays_charged_wherever_the_store_is() {
    let policies = [
        QuotaPolicy::per_day("daily", 9),
        QuotaPolicy::per_day("bytes", 100).with_content_bytes(Direction::Response),
        QuotaPolicy::concurrent("slots", 5),
    ];
    for (store, layer) in layers(&policies) {
        let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(layer);
        handle.allow(3);
        let mut given_up = call(&mut service);
        let _answer = arrive(&mut given_up, &mut handle);
        drop(given_up);
        assert_eq!(left(&store, &policies).await, [8, 99, 5]);

        let mut failing = call(&mut service);
        let answer = arrive(&mut failing, &mut handle);
        answer.send_error("handler failed");
        assert_eq!(assert_ready!(failing.poll()).unwrap_err().to_string(), "handler failed");
        assert_eq!(left(&store, &policies).await, [7, 98, 5]);

        let mut served = call(&mut service);
        let answer = arrive(&mut served, &mut handle);
        answer.send_response(Response::new(Full::from("ten bytes!")));
        let response = assert_ready_ok!(served.poll());
        assert_eq!(body_of(response), "ten bytes!");
        assert_eq!(left(&store, &policies).await, [6, 88, 5]);
    }
}

/// The layer settles its charge. If a program settled the same decision again, the units would be refunded twice.
#[tokio::test(start_paused = true)]
async fn a_decision_from_extensions_cannot_be_settled_by_the_program() {
    for slots in [None, Some(QuotaPolicy::concurrent("slots", 5))] {
        let policies: Vec<QuotaPolicy> = [QuotaPolicy::per_day("daily", 9)].into_iter().chain(slots).collect();
        for timed in stores() {
            let builder = builder(timed).decision_in_request();
            let builder = policies.iter().cloned().fold(builder, RateLimitLayerBuilder::policy);
            let (mut service, mut handle): (Service, Handle) = mock::spawn_layer(builder.build().unwrap());
            handle.allow(1);
            let mut response = call(&mut service);
            assert_pending!(settle!(response));
            let (request, answer) = assert_ready!(handle.poll_request()).unwrap();
            answer.send_response(Response::default());
            let mut response = assert_ready_ok!(response.poll());
            let in_request = request.extensions().get::<Decision>().unwrap();
            let in_response = response.extensions_mut().remove::<Decision>().unwrap();
            for decision in [in_request, &in_response] {
                assert_eq!(decision.outcome(), Outcome::Allowed);
                assert!(Settlement::refund_all(decision).is_empty());
            }
        }
    }
}

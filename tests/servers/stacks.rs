//! The layer among other layers of tower.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    response::IntoResponse,
    routing::{Route, get},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tonic::service::Routes;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, load_shed::error::Overloaded, retry::Policy, service_fn,
    timeout::error::Elapsed,
};
use tower_quota::{Decision, MemoryStore, Outcome, RateLimit, RateLimitLayer, ResponseFuture};

use crate::{Server, limits, limits_of_both_kinds, remaining};

const SECOND: Duration = Duration::from_secs(1);

fn get_as(user: &str) -> Request<String> {
    let request = Request::get("/").header("x-user-id", user);
    request.body(String::new()).unwrap()
}

async fn ok(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("ok".to_owned()))
}

/// A handler that answers once for each time that the gate is opened.
fn behind(
    gate: &Arc<Notify>,
) -> impl Fn(Request<String>) -> BoxFuture<'static, Result<Response<String>, Infallible>> + Clone {
    let gate = Arc::clone(gate);
    move |request| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.notified().await;
            ok(request).await
        })
    }
}

/// Requires of a layer what `axum::Router::layer` requires.
fn suits_axum<L>(_: &L)
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: Service<axum::extract::Request> + Clone + Send + Sync + 'static,
    <L::Service as Service<axum::extract::Request>>::Response: IntoResponse + 'static,
    <L::Service as Service<axum::extract::Request>>::Error: Into<Infallible> + 'static,
    <L::Service as Service<axum::extract::Request>>::Future: Send + 'static,
{
}

/// Requires of a layer what `tonic::transport::Server` requires.
fn suits_tonic<L, B>(_: &L)
where
    L: Layer<Routes>,
    L::Service: Service<Request<tonic::body::Body>, Response = Response<B>> + Clone + Send + 'static,
    <L::Service as Service<Request<tonic::body::Body>>>::Future: Send,
    <L::Service as Service<Request<tonic::body::Body>>>::Error: Into<BoxError> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
}

/// A service of another crate, without boxes: service and future are named.
#[derive(Clone)]
struct Gateway<S>(RateLimit<S>);

impl<S> Gateway<S> {
    fn new(inner: S, limits: &RateLimitLayer) -> Self {
        Self(limits.layer(inner))
    }
}

impl<S, B> Service<Request<B>> for Gateway<S>
where
    S: Service<Request<B>, Response = Response<String>> + Clone,
    B: http_body::Body + Send + 'static,
{
    type Response = <RateLimit<S> as Service<Request<B>>>::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        self.0.call(request)
    }
}

/// L32
#[tokio::test]
async fn layer_service_and_future_have_names_and_suit_axum_and_tonic() {
    let limits = limits(MemoryStore::new(), "api", 1);
    suits_axum(&limits);
    suits_tonic(&limits);
    let gateway = Gateway::new(service_fn(ok), &limits);
    assert_eq!(gateway.clone().oneshot(get_as("alice")).await.unwrap().status(), 200);
    assert_eq!(gateway.oneshot(get_as("alice")).await.unwrap().status(), 429);
}

/// L32
#[tokio::test]
async fn the_error_of_the_inner_service_stays_what_it_is() {
    #[derive(Debug, PartialEq)]
    struct Broken;

    for limits in limits_of_both_kinds(1) {
        let service = ServiceBuilder::new()
            .layer(limits)
            .service_fn(async |_: Request<String>| Err::<Response<String>, _>(Broken));
        let error: Broken = service.clone().oneshot(get_as("alice")).await.unwrap_err();
        assert_eq!(error, Broken);
        // A rejection is a response.
        let rejection = service.oneshot(get_as("alice")).await.unwrap();
        assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn an_outer_layer_finds_the_decision_in_the_response() {
    for limits in limits_of_both_kinds(1) {
        let service = ServiceBuilder::new()
            .map_response(|response: Response<_>| response.extensions().get::<Decision>().cloned())
            .layer(limits)
            .service_fn(ok);
        for outcome in [Outcome::Allowed, Outcome::Rejected] {
            let decision = service.clone().oneshot(get_as("alice")).await.unwrap().unwrap();
            assert_eq!(decision.outcome(), outcome);
            assert_eq!(decision.allowances().next().unwrap().policy().name(), "day");
        }
    }
}

/// L32, through a server: layers that can fail, inside and outside.
#[tokio::test]
async fn a_stack_of_many_layers_serves_and_limits() {
    let failed = || HandleErrorLayer::new(async |_: BoxError| StatusCode::SERVICE_UNAVAILABLE);
    let stack = ServiceBuilder::new()
        .layer(failed())
        .load_shed()
        .concurrency_limit(8)
        .timeout(60 * SECOND)
        .layer(limits(MemoryStore::new(), "api", 2))
        .layer(failed())
        .load_shed()
        .concurrency_limit(4)
        .timeout(60 * SECOND);
    let server = Server::axum(Router::new().route("/", get(async || "ok")).layer(stack)).await;
    assert_eq!(server.statuses(["/", "/", "/"]).await, [200, 200, 429]);
}

/// L32: a request that never reaches the layer is not counted.
#[tokio::test]
async fn a_request_that_an_outer_layer_sheds_uses_no_quota() {
    for limits in limits_of_both_kinds(2) {
        let gate = Arc::new(Notify::new());
        let service = ServiceBuilder::new()
            .load_shed()
            .layer(limits)
            .concurrency_limit(1)
            .service_fn(behind(&gate));

        let mut first = task::spawn(service.clone().oneshot(get_as("alice")));
        assert_pending!(first.poll());
        let shed = service.clone().oneshot(get_as("alice")).await.unwrap_err();
        assert!(shed.is::<Overloaded>(), "{shed}");

        gate.notify_one();
        assert_eq!(remaining(&first.await.unwrap()), 1);
        gate.notify_one();
        assert_eq!(remaining(&service.oneshot(get_as("alice")).await.unwrap()), 0);
    }
}

/// L32: a rejection releases the readiness of the inner service.
#[tokio::test]
async fn a_rejected_request_frees_its_place_in_an_inner_concurrency_limit() {
    for limits in limits_of_both_kinds(1) {
        let service = ServiceBuilder::new().layer(limits).concurrency_limit(1).service_fn(ok);
        let (mut one, mut other) = (service.clone(), service);
        for status in [200, 429] {
            let response = one.ready().await.unwrap().call(get_as("alice")).await.unwrap();
            assert_eq!(response.status(), status);
        }
        assert_ready_ok!(task::spawn(other.ready()).poll());
    }
}

/// L32: the error of the timeout passes, and the unit is used.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_ends_the_request_but_not_the_charge() {
    for limits in limits_of_both_kinds(1) {
        let service = ServiceBuilder::new()
            .layer(limits)
            .timeout(SECOND)
            .service_fn(async |_: Request<String>| {
                std::future::pending::<Result<Response<String>, Infallible>>().await
            });
        let error = service.clone().oneshot(get_as("alice")).await.unwrap_err();
        assert!(error.is::<Elapsed>(), "{error}");
        assert_eq!(service.oneshot(get_as("alice")).await.unwrap().status(), 429);
    }
}

/// L32: a future that is dropped leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_timeout_outside_frees_the_place_in_an_inner_concurrency_limit() {
    for limits in limits_of_both_kinds(2) {
        let gate = Arc::new(Notify::new());
        let service = ServiceBuilder::new()
            .timeout(SECOND)
            .layer(limits)
            .concurrency_limit(1)
            .service_fn(behind(&gate));
        let error = service.clone().oneshot(get_as("alice")).await.unwrap_err();
        assert!(error.is::<Elapsed>(), "{error}");
        gate.notify_one();
        assert_eq!(remaining(&service.oneshot(get_as("alice")).await.unwrap()), 0);
    }
}

/// Sends a request again as often as it fails with 503.
#[derive(Clone)]
struct UntilAvailable;

impl<E> Policy<Request<String>, Response<String>, E> for UntilAvailable {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Request<String>, result: &mut Result<Response<String>, E>) -> Option<Ready<()>> {
        let response = result.as_ref().ok()?;
        (response.status() == StatusCode::SERVICE_UNAVAILABLE).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

/// G7: the client sees one request, and pays for one.
#[tokio::test]
async fn requests_that_are_sent_again_inside_of_the_layer_count_once() {
    for limits in limits_of_both_kinds(9) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let service =
            ServiceBuilder::new()
                .layer(limits)
                .retry(UntilAvailable)
                .service_fn(move |_: Request<String>| {
                    let is_third = counted.fetch_add(1, Ordering::SeqCst) % 3 == 2;
                    let status = if is_third { 200 } else { 503 };
                    let response = Response::builder().status(status).body(String::new());
                    ready(Ok::<_, Infallible>(response.unwrap()))
                });
        for left in [8, 7] {
            let response = service.clone().oneshot(get_as("alice")).await.unwrap();
            assert_eq!((response.status(), remaining(&response)), (StatusCode::OK, left));
            assert_eq!(response.headers().get_all("ratelimit").iter().count(), 1);
        }
        assert_eq!(attempts.load(Ordering::SeqCst), 6);
    }
}

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

use axum::{Router, error_handling::HandleErrorLayer, routing::get};
use http::{Request, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, retry::Policy, service_fn, timeout::error::Elapsed};
use tower_quota::{MemoryStore, RateLimit, RateLimitLayer, ResponseFuture};

use crate::{Server, limits, limits_of_both_kinds, remaining};

const SECOND: Duration = Duration::from_secs(1);

fn get_as(user: &str) -> Request<String> {
    let request = Request::get("/").header("x-user-id", user);
    request.body(String::new()).unwrap()
}

async fn ok(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("ok".to_owned()))
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
async fn layer_service_and_future_have_names() {
    let limits = limits(MemoryStore::new(), "api", 1);
    let gateway = Gateway::new(service_fn(ok), &limits);
    assert_eq!(gateway.clone().oneshot(get_as("alice")).await.unwrap().status(), 200);
    assert_eq!(gateway.oneshot(get_as("alice")).await.unwrap().status(), 429);
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

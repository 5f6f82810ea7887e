//! Closures of the program that panic: each costs its own request only.

use std::{
    convert::Infallible,
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, routing::get};
use bytes::Bytes;
use futures_util::{FutureExt, future::join_all, stream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use test_kit::RedisServer;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tonic::transport::server::TcpIncoming;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};
use tower::{Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_layer::{Layer, layer_fn};
use tower_quota::{
    Capacity, CircuitState, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    RedisStore, Store, Tiers,
    key::{self, KeyExtractor},
};

use crate::{RemoteStore, Server, grpc::client_of, listener};

/// The closures of the layer that run before the store is called.
const BEFORE: [&str; 6] = ["key", "cost", "units", "tier", "capacity", "abnormal"];

/// The requests that make each closure panic, in the process and over connections that outlive a panic.
const PANICS: usize = 10_000;

const HANG: Duration = Duration::from_secs(60);

/// Panics without a message if the headers of the request or response name this closure.
fn panic_in(closure: &str, headers: &HeaderMap) {
    if headers.get("x-panic").is_some_and(|name| name == closure) {
        resume_unwind(Box::new(()));
    }
}

fn tiers() -> Tiers {
    let select = Tiers::from_fn(|request| {
        panic_in("tier", &request.headers);
        Some("all")
    });
    let policies = [
        QuotaPolicy::per_day("day", 3),
        QuotaPolicy::concurrent("slots", 2),
        // A token is restored in nine hours: under load, the tests of panics take minutes.
        QuotaPolicy::new("tokens", 1_000, Duration::from_secs(365 * 86_400)).with_unit("tokens"),
    ];
    select.tier("all", policies)
}

fn layer(store: impl Store) -> RateLimitLayer {
    let by_user = key::header("x-user-id");
    let limiter = Limiter::builder(store)
        // Each rejection is the store's.
        .rejection_cache(0)
        // Places that were lost would soon be all.
        .max_waiting(64)
        .deadline(HANG);
    RateLimitLayerBuilder::from(limiter)
        .scope("panics")
        .key(key::from_fn(move |request| {
            panic_in("key", &request.headers);
            by_user.extract(request)
        }))
        .tiers(tiers())
        .cost_by(|request| {
            panic_in("cost", &request.headers);
            1
        })
        .unit_cost("tokens", |request| {
            panic_in("units", &request.headers);
            1
        })
        .capacity(|request| {
            panic_in("capacity", &request.headers);
            Capacity::full()
        })
        .abnormal_usage(|request| {
            panic_in("abnormal", &request.headers);
            None
        })
        .actual_cost(|response| {
            panic_in("actual", &response.headers);
            None
        })
        .respond_with(|rejection| {
            panic_in("respond", &rejection.request().headers);
            rejection.to_response()
        })
        .build()
        .unwrap()
}

/// A service whose responses repeat the panic header of their requests.
#[derive(Clone)]
struct Echoing<S>(S);

impl<S, B, R> Service<Request<B>> for Echoing<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = request.headers().get("x-panic").cloned();
        let response = self.0.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if let Some(asked) = asked {
                response.headers_mut().insert("x-panic", asked);
            }
            Ok(response)
        })
    }
}

fn hello()
-> impl Clone + Service<Request<String>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send + 'static> {
    service_fn(async |_: Request<String>| Ok(Response::new(Full::from("hello"))))
}

fn request<B>(user: &str, closure: &str, body: B) -> Request<B> {
    let request = Request::get("http://localhost/").header("x-user-id", user);
    request.header("x-panic", closure).body(body).unwrap()
}

/// The user whose request makes a closure panic. Requests that are charged are each of another one.
fn user(closure: &str, number: usize) -> String {
    match closure {
        "actual" => format!("actual {number}"),
        "respond" => "exhausted".to_owned(),
        _ => "alice".to_owned(),
    }
}

fn closures() -> impl Iterator<Item = &'static str> {
    BEFORE.into_iter().chain(["actual", "respond"])
}

/// The units left of each policy.
async fn left(layer: &RateLimitLayer, user: &str) -> Vec<u64> {
    let user = PartitionKey::new("x-user-id", user);
    let left = layer.limiter().caller(&user).tier("all").peek().await.unwrap().unwrap();
    left.allowances().map(|allowance| allowance.remaining()).collect()
}

/// The requests whose responses were computed are charged. Nothing else is, and no slot is held.
async fn assert_nothing_is_lost(layer: &RateLimitLayer, panics: usize) {
    let all_are = async |user: &str, expected: [u64; 3]| {
        let are = async {
            while left(layer, user).await != expected {
                tokio::task::yield_now().await;
            }
        };
        let in_time = timeout(HANG, are).await;
        assert!(in_time.is_ok(), "{user}: {:?}", left(layer, user).await);
    };
    all_are("alice", [3, 2, 1_000]).await;
    all_are("exhausted", [0, 2, 997]).await;
    for number in 0..panics {
        all_are(&user("actual", number), [2, 2, 999]).await;
    }
    let circuit = layer.limiter().circuit();
    assert!(matches!(circuit, Some(CircuitState::Closed)), "{circuit:?}");
}

async fn statuses(layer: &RateLimitLayer, user: &str, requests: usize) -> Vec<u16> {
    let service = layer.layer(hello());
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let response = service
            .clone()
            .oneshot(request(user, "none", String::new()))
            .await
            .unwrap();
        statuses.push(response.status().as_u16());
    }
    statuses
}

/// Exactly the quota of another user is admitted: all places are free.
async fn assert_admits_the_quota(layer: &RateLimitLayer) {
    assert_eq!(statuses(layer, "bob", 5).await, [200, 200, 200, 429, 429]);
}

async fn assert_survives(layer: &RateLimitLayer, panics: usize) {
    assert_eq!(statuses(layer, "exhausted", 3).await, [200; 3]);
    // Its permits are few, so that those that were lost would be missed.
    let service = layer.layer(Echoing(ConcurrencyLimit::new(hello(), 4)));
    for closure in closures() {
        for number in 0..panics {
            let answered = service
                .clone()
                .oneshot(request(&user(closure, number), closure, String::new()));
            let answered = AssertUnwindSafe(answered).catch_unwind().await;
            assert!(answered.is_err(), "{closure}");
        }
    }
    assert_nothing_is_lost(layer, panics).await;
    assert_admits_the_quota(layer).await;
    let response = timeout(HANG, service.oneshot(request("carol", "none", String::new()))).await;
    assert_eq!(response.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn ten_thousand_panics_in_each_closure_lose_no_slot_place_or_permit() {
    assert_survives(&layer(MemoryStore::new()), PANICS).await;
    assert_survives(&layer(RemoteStore::<1>::default()), PANICS).await;
}

#[tokio::test]
async fn hundreds_of_panics_in_each_closure_lose_no_slot_in_redis() {
    let server = RedisServer::start();
    assert_survives(&layer(RedisStore::new(server.url()).unwrap()), 300).await;
}

/// A service that is kept, as by a layer around it that catches panics, holds the permit of the inner one no longer.
#[tokio::test]
async fn a_closure_that_panics_releases_the_permit_of_the_inner_service() {
    let layers = [layer(MemoryStore::new()), layer(RemoteStore::<1>::default())];
    for layer in layers {
        assert_eq!(statuses(&layer, "exhausted", 3).await, [200; 3]);
        for closure in closures() {
            let mut kept = layer.layer(Echoing(ConcurrencyLimit::new(hello(), 1)));
            let user = user(closure, 0);
            let answered = async {
                kept.ready()
                    .await
                    .unwrap()
                    .call(request(&user, closure, String::new()))
                    .await
            };
            assert!(AssertUnwindSafe(answered).catch_unwind().await.is_err());
            let other = kept.clone().oneshot(request(closure, "none", String::new()));
            let response = timeout(Duration::from_secs(10), other).await;
            assert!(response.is_ok_and(|response| response.is_ok()), "{closure}");
        }
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers at once. The body of `/slow` ends after a notification.
async fn handle(path: String, may_end: Arc<Notify>) -> Result<Response<Body>, Infallible> {
    let end = async move {
        if path == "/slow" {
            may_end.notified().await;
        }
        Ok::<_, Infallible>(Frame::data(Bytes::from("hello")))
    };
    Ok(Response::new(StreamBody::new(stream::once(end)).boxed_unsync()))
}

async fn assert_slow_ends(slow: Response<Incoming>, may_end: &Notify) {
    assert_eq!(slow.status(), StatusCode::OK);
    may_end.notify_one();
    let body = timeout(HANG, slow.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(body.to_bytes(), "hello");
}

fn slow() -> Request<Empty<Bytes>> {
    let request = Request::get("http://localhost/slow").header("x-user-id", "slow");
    request.body(Empty::new()).unwrap()
}

#[tokio::test]
async fn over_http2_ten_thousand_panics_in_each_closure_reset_only_their_own_streams() {
    let (layer, may_end) = (layer(RemoteStore::<1>::default()), Arc::new(Notify::new()));
    let told = Arc::clone(&may_end);
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(layer_fn(Echoing))
        .service_fn(move |request: Request<Incoming>| handle(request.uri().path().to_owned(), Arc::clone(&told)));
    let server = Server::hyper(service).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let slow = client.send_request(slow()).await.unwrap();
    assert_eq!(statuses(&layer, "exhausted", 3).await, [200; 3]);
    for closure in closures() {
        for first in (0..PANICS).step_by(20) {
            let requests = (first..first + 20).map(|number| {
                let mut client = client.clone();
                async move {
                    client.ready().await.unwrap();
                    client
                        .send_request(request(&user(closure, number), closure, Empty::new()))
                        .await
                }
            });
            assert!(join_all(requests).await.iter().all(Result::is_err), "{closure}");
        }
    }
    let other = client.send_request(request("carol", "none", Empty::new())).await;
    assert_eq!(other.unwrap().status(), StatusCode::OK);
    assert_slow_ends(slow, &may_end).await;
    assert!(!connection.is_finished());
    assert_nothing_is_lost(&layer, PANICS).await;
    assert_admits_the_quota(&layer).await;
}

#[tokio::test]
async fn over_http1_a_panic_ends_only_its_own_connection() {
    /// Each takes a port: 10 000 in all.
    const PANICS: usize = 1_250;
    let (layer, may_end) = (layer(RemoteStore::<1>::default()), Arc::new(Notify::new()));
    let told = Arc::clone(&may_end);
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route(
            "/slow",
            get(move || async move {
                handle("/slow".to_owned(), told)
                    .await
                    .unwrap()
                    .map(axum::body::Body::new)
            }),
        )
        .layer(layer_fn(Echoing))
        .layer(layer.clone());
    let server = Server::axum(router).await;
    let connect = async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        (client, tokio::spawn(connection))
    };
    let in_path = |mut request: Request<Empty<Bytes>>| {
        *request.uri_mut() = request.uri().path().parse().unwrap();
        request
            .headers_mut()
            .insert("host", HeaderValue::from_static("localhost"));
        request
    };
    let (mut waiting, _open) = connect().await;
    let slow = waiting.send_request(in_path(slow())).await.unwrap();
    assert_eq!(statuses(&layer, "exhausted", 3).await, [200; 3]);
    for closure in closures() {
        for number in 0..PANICS {
            let (mut client, connection) = connect().await;
            let panicking = in_path(request(&user(closure, number), closure, Empty::new()));
            assert!(client.send_request(panicking).await.is_err(), "{closure}");
            let _ended = timeout(HANG, connection).await.unwrap();
        }
    }
    assert_slow_ends(slow, &may_end).await;
    assert_eq!(server.get_as("carol", "/").await.status(), StatusCode::OK);
    assert_nothing_is_lost(&layer, PANICS).await;
    assert_admits_the_quota(&layer).await;
}

fn call(user: &str, closure: &str) -> tonic::Request<HealthCheckRequest> {
    let mut call = tonic::Request::new(HealthCheckRequest::default());
    let metadata = call.metadata_mut();
    metadata.insert("x-user-id", user.parse().unwrap());
    metadata.insert("x-panic", closure.parse().unwrap());
    call
}

#[tokio::test]
async fn over_grpc_ten_thousand_panics_in_each_closure_of_streaming_calls_harm_no_other_stream() {
    let layer = layer(RemoteStore::<1>::default());
    let (listener, address) = listener().await;
    let (reporter, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder()
        .layer(layer.clone())
        .layer(layer_fn(Echoing))
        .add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client: HealthClient<_> = client_of(format!("http://{address}"));
    let mut watched = client.watch(call("slow", "none")).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    assert_eq!(statuses(&layer, "exhausted", 3).await, [200; 3]);
    for closure in closures() {
        for first in (0..PANICS).step_by(20) {
            let calls = (first..first + 20).map(|number| {
                let mut client = client.clone();
                async move { client.watch(call(&user(closure, number), closure)).await.is_err() }
            });
            assert!(join_all(calls).await.iter().all(|is_error| *is_error), "{closure}");
        }
    }
    for status in [ServingStatus::NotServing, ServingStatus::Serving] {
        reporter.set_service_status("", status).await;
        let told = timeout(HANG, watched.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(told.status, status as i32);
    }
    assert_eq!(left(&layer, "slow").await, [2, 1, 999]);
    drop(watched);
    assert_nothing_is_lost(&layer, PANICS).await;
    assert_admits_the_quota(&layer).await;
}

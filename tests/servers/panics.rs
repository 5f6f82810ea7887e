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

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use test_kit::RedisServer;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tower::{Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_layer::{Layer, layer_fn};
use tower_quota::{
    Capacity, CircuitState, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    RedisStore, Store, Tiers,
    key::{self, KeyExtractor},
};

use crate::{RemoteStore, Server};

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

/// That of `/slow` ends after a notification.
async fn content(request: Request<Incoming>, may_end: Arc<Notify>) -> Result<Frame<Bytes>, Infallible> {
    if request.uri().path() == "/slow" {
        may_end.notified().await;
    }
    Ok(Frame::data(Bytes::from("hello")))
}

#[tokio::test]
async fn over_http2_ten_thousand_panics_in_each_closure_reset_only_their_own_streams() {
    let (layer, may_end) = (layer(RemoteStore::<1>::default()), Arc::new(Notify::new()));
    let told = Arc::clone(&may_end);
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(layer_fn(Echoing))
        .service_fn(move |request| {
            let content = stream::once(content(request, Arc::clone(&told)));
            async { Ok::<_, Infallible>(Response::new(StreamBody::new(content))) }
        });
    let server = Server::hyper(service).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let slow = Request::get("http://localhost/slow").header("x-user-id", "slow");
    let slow = client
        .send_request(slow.body(Empty::<Bytes>::new()).unwrap())
        .await
        .unwrap();
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
    may_end.notify_one();
    let slow = timeout(HANG, slow.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(slow.to_bytes(), "hello");
    assert!(!connection.is_finished());
    assert_nothing_is_lost(&layer, PANICS).await;
    assert_admits_the_quota(&layer).await;
}

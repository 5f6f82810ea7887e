//! The layer in front of real servers: axum, bare hyper and tonic, alone and in a stack with other layers.
//!
//! Servers listen on a free port of the loopback interface. All quotas are per day, so that no unit comes back while a
//! test runs, however long it takes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod bodies;
mod full_store;
mod grpc;
mod grpc_example;
mod handlers;
#[path = "../../crates/tower-quota-anonymous/tests/privacy_pass/holder.rs"]
mod holder;
mod hyper_server;
mod lambda;
mod late_batches;
mod llm_gateway;
mod login;
mod metrics;
mod operators;
mod order;
mod panics;
mod proxy;
mod redis_proxies;
mod rejected_uploads;
mod routers;
mod secrets;
mod stacks;
mod state_lost;
mod tokens;
mod websocket;

use std::{convert::Infallible, future::IntoFuture, net::SocketAddr, time::Duration};

use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use test_kit::RemoteStore;
use tokio::net::TcpListener;
use tower::{BoxError, Service, ServiceBuilder};
use tower_quota::{
    Limiter, MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Store,
    key::{self, KeyExtractor, PeerAddress},
};

/// The URL of a server that is not there: no program of this machine gets this port by chance, as one that was free a
/// moment ago.
const NO_SERVER: &str = "redis://127.0.0.1:1/";

/// Limits each user ID to `quota` requests a day, or each address if there is no ID. Without either, the status is 403.
fn limits(store: impl Store, scope: &str, quota: u64) -> RateLimitLayer {
    let by_user = key::header("x-user-id").or_else(key::client_ip());
    limits_by(by_user, store, scope, quota).build().unwrap()
}

fn limits_by(key: impl KeyExtractor, store: impl Store, scope: &str, quota: u64) -> RateLimitLayerBuilder {
    // A machine that is busy with other tests must not make requests pass uncounted.
    let limiter = Limiter::builder(store).deadline(Duration::from_secs(60));
    RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope(scope)
        .key(key)
        .on_missing_key(MissingKey::Reject)
        .policy(QuotaPolicy::per_day("day", quota))
}

/// One layer for each way that a decision can go: known at once, and waited for.
fn limits_of_both_kinds(quota: u64) -> [RateLimitLayer; 2] {
    [
        limits(MemoryStore::new(), "api", quota),
        limits(RemoteStore::<1>::default(), "api", quota),
    ]
}

/// A server that runs until the test ends, and a client for it.
struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, String>,
}

impl Server {
    fn at(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client }
    }

    /// An axum server that shows the peer's address by `ConnectInfo`.
    async fn axum(router: Router) -> Self {
        let (listener, address) = listener().await;
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(axum::serve(listener, router).into_future());
        Self::at(address)
    }

    /// A bare hyper server, of HTTP/1.1 and HTTP/2, that shows the peer's address by `PeerAddress`.
    async fn hyper<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                let service = ServiceBuilder::new()
                    .map_request(move |mut request: Request<Incoming>| {
                        request.extensions_mut().insert(PeerAddress(peer));
                        request
                    })
                    .service(service.clone());
                let connection = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                    .into_owned();
                tokio::spawn(connection);
            }
        });
        Self::at(address)
    }

    async fn send(&self, mut request: Request<String>) -> Response<Bytes> {
        let uri = format!("http://{}{}", self.address, request.uri());
        *request.uri_mut() = uri.parse().unwrap();
        let (head, body) = self.client.request(request).await.unwrap().into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }

    async fn get(&self, path: &str) -> Response<Bytes> {
        self.send(Request::get(path).body(String::new()).unwrap()).await
    }

    async fn get_as(&self, user: &str, path: &str) -> Response<Bytes> {
        let request = Request::get(path).header("x-user-id", user);
        self.send(request.body(String::new()).unwrap()).await
    }

    /// The status codes of requests one after the other.
    async fn statuses<const N: usize>(&self, paths: [&str; N]) -> [u16; N] {
        let mut statuses = [0; N];
        for (status, path) in statuses.iter_mut().zip(paths) {
            *status = self.get(path).await.status().as_u16();
        }
        statuses
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The remaining units of the only policy, from the `RateLimit` field.
fn remaining<B>(response: &Response<B>) -> u64 {
    let field = response.headers()["ratelimit"].to_str().unwrap();
    let (_, remaining) = field.split_once(";r=").unwrap();
    remaining.split(';').next().unwrap().parse().unwrap()
}

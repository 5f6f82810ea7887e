//! Twenty tasks that share a server's quota without being rejected.
//!
//! ```sh
//! cargo run --package tower-ratelimit-client --example client
//! ```
//!
//! Starts a server that allows 40 requests per two seconds, and sends it 100 requests, first with the client layer and
//! then without.

use std::{
    error::Error,
    future::IntoFuture,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use axum::{Router, routing::get};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, time::Instant};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_quota::{Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, key};
use tower_ratelimit_client::ClientLayer;

const TASKS: usize = 20;
const REQUESTS: usize = 100;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = start_server().await?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();

    let polite = ServiceBuilder::new().layer(ClientLayer::new()).service(client.clone());
    println!("{TASKS} tasks send {REQUESTS} requests to {url}, which allows 40 in two seconds.");
    println!("With the client layer:    {}", run_job(polite, &url, "polite").await?);
    println!("Without, as anybody else: {}", run_job(client, &url, "hasty").await?);
    Ok(())
}

async fn start_server() -> Result<String, Failure> {
    let policy = QuotaPolicy::new("two-seconds", 40, Duration::from_secs(2)).with_algorithm(Algorithm::FixedWindow);
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("client example")
        .key(key::header("x-user-id"))
        .policy(policy)
        .build()?;
    let server = Router::new().route("/", get(|| async { "hello" })).layer(limits);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, server).into_future());
    Ok(url)
}

/// Sends each request once and counts the responses by status.
async fn run_job<S, R>(service: S, url: &str, user: &str) -> Result<String, Failure>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<R>> + Clone,
    S::Error: Into<Failure>,
{
    let (sent, served, rejected) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let task = async || {
        while sent.fetch_add(1, Ordering::Relaxed) < REQUESTS {
            let request = Request::get(url).header("x-user-id", user).body(Empty::new())?;
            let response = service.clone().oneshot(request).await.map_err(Into::into)?;
            let counter = match response.status() {
                StatusCode::TOO_MANY_REQUESTS => &rejected,
                _ => &served,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, Failure>(())
    };
    try_join_all((0..TASKS).map(|_| task())).await?;
    let seconds = start.elapsed().as_secs_f64();
    let (served, rejected) = (served.into_inner(), rejected.into_inner());
    Ok(format!("{served} served, {rejected} rejected, in {seconds:.1} s"))
}

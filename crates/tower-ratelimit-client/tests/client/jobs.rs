//! Whole jobs: the layer for clients in front of the layer for servers.

use std::{error::Error, future, net::SocketAddr};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper_util::{client::legacy::Client as HyperClient, rt::TokioExecutor};
use tokio::net::TcpListener;
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, clock::Clock,
    key,
};
use tower_ratelimit_client::{Client, ClientError, NoRetries, Strategy, Throttled};

use super::*;

/// Limits that everybody shares, by the clock of tokio.
fn limits(policies: &[QuotaPolicy]) -> RateLimitLayer {
    let store = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let builder = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(seconds(60)))
        .scope("jobs")
        .key(key::from_fn(|_| Some(PartitionKey::new("everybody", ""))));
    let policies = policies.iter().cloned();
    policies.fold(builder, RateLimitLayerBuilder::policy).build().unwrap()
}

/// The result of a job.
#[derive(Default)]
struct Report {
    /// When each request was sent that was rejected.
    rejected: Vec<Instant>,
    first_answer: Option<Instant>,
    done: usize,
}

impl Report {
    fn rejected_after_the_first_answer(&self) -> usize {
        let first = self.first_answer.unwrap();
        self.rejected.iter().filter(|sent| **sent >= first).count()
    }
}

/// Tasks that do the parts of a job until all of them are done; a part that is rejected is done again.
async fn run<S, F>(tasks: usize, parts: usize, service: S, request: F) -> Report
where
    S: Service<Request<Body>, Response = Response<axum::body::Body>> + Clone,
    S::Error: std::fmt::Debug,
    F: Fn() -> Request<Body>,
{
    let (todo, report) = (Mutex::new(parts), Mutex::new(Report::default()));
    let task = async || {
        loop {
            {
                let mut todo = todo.lock().unwrap();
                let Some(left) = todo.checked_sub(1) else { return };
                *todo = left;
            }
            let sent = Instant::now();
            let response = service.clone().oneshot(request()).await.unwrap();
            let mut report = report.lock().unwrap();
            report.first_answer.get_or_insert_with(Instant::now);
            match response.status() {
                StatusCode::OK => report.done += 1,
                StatusCode::TOO_MANY_REQUESTS => {
                    report.rejected.push(sent);
                    *todo.lock().unwrap() += 1;
                }
                other => panic!("{other}"),
            }
        }
    };
    join_all((0..tasks).map(|_| task())).await;
    report.into_inner().unwrap()
}

/// A server behind limits, and a network that takes between 10 and 100 ms each way.
#[allow(clippy::disallowed_methods, reason = "the time is virtual")]
fn far_away(
    limits: RateLimitLayer,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = impl Future> + Clone {
    let server = Router::new().route("/", get(async || "done")).layer(limits);
    let numbers = Arc::new(Mutex::new(0_u64));
    let delay = move || {
        let mut number = numbers.lock().unwrap();
        *number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Duration::from_millis(10 + ((*number >> 33) % 90))
    };
    service_fn(move |request: Request<Body>| {
        let (server, there, back) = (server.clone(), delay(), delay());
        async move {
            tokio::time::sleep(there).await;
            let response = server.oneshot(request).await;
            tokio::time::sleep(back).await;
            response
        }
    })
}

fn request() -> Request<Body> {
    Request::get("http://a.example/").body(Body::empty()).unwrap()
}

/// Fifty tasks, five hundred requests, and none rejected that was sent after the first answer.
async fn job(name: &str, policies: &[QuotaPolicy], strategy: Strategy, at_most: u64) {
    let layer = builder()
        .strategy(strategy)
        .queue_timeout(seconds(3_600))
        .build()
        .unwrap();
    let start = Instant::now();
    let report = run(50, 500, layer.layer(far_away(limits(policies))), request).await;
    assert_eq!(report.done, 500);
    assert_eq!(report.rejected_after_the_first_answer(), 0, "{name}");
    assert!(start.elapsed() <= seconds(at_most), "{name}: {:?}", start.elapsed());
}

/// F7, F15, L1
#[tokio::test(start_paused = true)]
async fn fifty_tasks_finish_a_job_with_not_one_429_after_the_first_answers() {
    use Algorithm::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, StrictTokenBucket, TokenBucket};
    for algorithm in [
        TokenBucket,
        StrictTokenBucket,
        FixedWindow,
        SlidingWindowLog,
        SlidingWindowCounter,
    ] {
        for quota in [20, 60, 1_000] {
            let policy = QuotaPolicy::new("ten seconds", quota, seconds(10)).with_algorithm(algorithm);
            let name = format!("{algorithm:?} {quota}");
            // Half of the quota's rate, which is all that a strict token bucket guarantees, and the time in transit.
            let at_most = 20 * 500_u64.div_ceil(quota) + 10;
            job(&name, &[policy], Strategy::Greedy, at_most).await;
        }
    }
}

/// F15
#[tokio::test(start_paused = true)]
async fn a_job_under_several_limits_obeys_them_all() {
    let (second, minute) = (
        QuotaPolicy::per_second("second", 30),
        QuotaPolicy::per_minute("minute", 300),
    );
    job("several", &[second, minute], Strategy::Greedy, 180).await;
}

/// F14
#[tokio::test(start_paused = true)]
async fn a_job_that_paces_itself_is_not_rejected_either() {
    let policy = QuotaPolicy::new("ten seconds", 60, seconds(10)).with_algorithm(Algorithm::FixedWindow);
    job("paced", &[policy], Strategy::pace(), 150).await;
}

/// The result of the test above if the client held no request back.
#[tokio::test(start_paused = true)]
async fn without_waiting_the_same_job_is_rejected_over_and_over() {
    let policy = QuotaPolicy::new("ten seconds", 60, seconds(10));
    let layer = builder().strategy(Strategy::Observe).build().unwrap();
    let report = run(50, 500, layer.layer(far_away(limits(&[policy]))), request).await;
    assert!(report.rejected_after_the_first_answer() > 500);
}

/// Starts a server on a free port.
async fn serve(limits: &RateLimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Router::new().route("/", get(async || "done")).layer(limits.clone());
    tokio::spawn(future::IntoFuture::into_future(axum::serve(listener, server)));
    address
}

/// Sends two requests, of which the second uses up a day's quota, and a third, which is not sent.
async fn use_up<S, B, R>(client: Client<S, NoRetries>, request: impl Fn() -> Request<B>) -> Throttled
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: Error,
{
    for left in [1, 0] {
        let response = client.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.status(), 200);
        let advice = response.extensions().get::<Advice>().unwrap();
        assert_eq!(advice.limits()[0].remaining(), Some(left));
    }
    match client.oneshot(request()).await.map(drop).unwrap_err() {
        ClientError::Throttled(error) => error,
        other => panic!("{other}"),
    }
}

fn impatient() -> ClientLayer {
    builder().queue_timeout(Duration::ZERO).build().unwrap()
}

const DAY: QuotaPolicy = QuotaPolicy::per_day("day", 2);

#[tokio::test]
async fn a_hyper_client_does_not_send_what_would_be_rejected() {
    let address = serve(&limits(&[DAY])).await;
    let client = impatient().layer(HyperClient::builder(TokioExecutor::new()).build_http());
    let uri = format!("http://{address}/");
    let error = use_up(client, || Request::get(&uri).body(Full::<Bytes>::default()).unwrap()).await;
    // The cap, though it takes half a day.
    assert!(error.retry_after() <= Some(seconds(600)), "{error}");
}

#[tokio::test]
async fn a_reqwest_client_does_not_send_what_would_be_rejected() {
    let address = serve(&limits(&[DAY])).await;
    let reqwest = reqwest::Client::new();
    let client = impatient().layer(service_fn(move |request: Request<reqwest::Body>| {
        let reqwest = reqwest.clone();
        async move { reqwest.execute(request.try_into()?).await.map(Response::from) }
    }));
    let uri = format!("http://{address}/");
    use_up(client, || Request::get(&uri).body(reqwest::Body::from("")).unwrap()).await;
}

#[tokio::test]
async fn a_tonic_client_does_not_send_what_would_be_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits(&[DAY])).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_lazy();

    let mut client = HealthClient::new(impatient().layer(channel));
    for _ in 0..2 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    let error = status
        .source()
        .unwrap()
        .downcast_ref::<ClientError<tonic::transport::Error>>();
    assert!(matches!(error, Some(ClientError::Throttled(_))), "{status:?}");
}

/// Fifty tasks over real connections; the server's quota comes back in less than a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_real_connections_is_not_rejected_after_the_first_answers() {
    let address = serve(&limits(&[QuotaPolicy::per_second("second", 100)])).await;
    let hyper = HyperClient::builder(TokioExecutor::new()).build_http();
    let service = builder().build().unwrap().layer(hyper);
    let service = service.map_response(|response: Response<hyper::body::Incoming>| response.map(Body::new));
    let uri = format!("http://{address}/");
    let report = run(50, 150, service, || Request::get(&uri).body(Body::empty()).unwrap()).await;
    assert_eq!((report.done, report.rejected_after_the_first_answer()), (150, 0));
}

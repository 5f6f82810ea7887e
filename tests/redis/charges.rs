//! Every plan that was sent is charged, however soon its request is cancelled (X34), and refunded units are available
//! to the next request.

#![allow(clippy::disallowed_methods, reason = "a real server is waited for in real time")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{join_all, poll_immediate};
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use test_kit::RedisServer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::yield_now,
    time::{sleep, timeout},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, Limiter, Measurement, MemoryStore, PartitionKey, Plan, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, RedisStore, Settlement, Store, StoreFuture,
    clock::{Clock, Timestamp},
    key,
};

/// Longer than anything in a test can take unless it hangs.
const HANG: Duration = Duration::from_secs(30);

/// In the middle of a window of every length that tests use.
fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_010_000_000_000))
}

/// A policy that restores no units while a test's clock is stopped.
fn daily(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_day("daily", quota).with_algorithm(Algorithm::FixedWindow)
}

fn layer(store: impl Store, clock: &Clock, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
    let limiter = Limiter::builder(store)
        .clock(clock.clone())
        // A machine that is busy with other tests must not make requests pass uncounted.
        .deadline(Duration::from_secs(60));
    let builder = RateLimitLayerBuilder::from(limiter)
        .scope("charges")
        .key(key::header("x-user-id"));
    let builder = policies
        .into_iter()
        .fold(builder, |builder, policy| builder.policy(policy));
    builder.build().unwrap()
}

fn request() -> Request<String> {
    Request::builder()
        .header("x-user-id", "alice")
        .body(String::new())
        .unwrap()
}

/// The units that alice has left of each policy.
async fn left(layer: &RateLimitLayer) -> Vec<u64> {
    let alice = PartitionKey::new("x-user-id", "alice");
    let left = layer.limiter().caller(&alice).peek().await.unwrap().unwrap();
    left.allowances().map(|allowance| allowance.remaining()).collect()
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = timeout(HANG, wait).await;
    in_time.unwrap_or_else(|_| panic!("still not so: {what}"));
}

async fn until_left(layer: &RateLimitLayer, expected: &[u64]) {
    let wait = async {
        while left(layer).await != expected {
            sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(HANG, wait).await.is_err() {
        assert_eq!(left(layer).await, expected);
    }
}

fn calls_of_scripts(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<u64> {
        let numbers = line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1;
        numbers.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// No pattern, but the same in every run.
fn scrambled(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

async fn yields(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// Sends a request that may be cancelled after some time. Returns whether the request has called the store.
async fn send_and_perhaps_cancel(layer: &RateLimitLayer, number: u64) -> bool {
    let scrambled = scrambled(number);
    let service = service_fn(move |_: Request<String>| async move {
        yields(scrambled % 20).await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    });
    let request = layer.layer(service).oneshot(request());
    match scrambled / 32 % 10 {
        // It is never polled.
        0 => {
            drop(request);
            false
        }
        number => {
            let patience = [0, 0, 0, 1, 3, 10, 30, 100, u64::MAX][number as usize - 1];
            tokio::select! {
                biased;
                response = request => assert_eq!(response.unwrap().status(), StatusCode::OK),
                () = yields(patience) => {}
            }
            true
        }
    }
}

/// Sends requests, 1,000 at a time. After each thousand, exactly the requests that called the store are charged, and no
/// slot is held.
async fn assert_that_thousands_are_counted_exactly(thousands: u64, layer: &RateLimitLayer, clock: &Clock) {
    let mut expected = left(layer).await;
    for round in 0..thousands {
        let requests = (0..1_000).map(|number| send_and_perhaps_cancel(layer, round * 1_000 + number));
        let asked = join_all(requests)
            .await
            .into_iter()
            .filter(|has_asked| *has_asked)
            .count();
        assert!((850..950).contains(&asked), "{asked}");
        expected[0] -= asked as u64;
        // The unspent remainder of a batch is refunded after a second.
        clock.advance(Duration::from_secs(2));
        until_left(layer, &expected).await;
    }
}

#[tokio::test]
async fn of_20_000_requests_in_memory_those_that_have_asked_are_charged_and_no_other() {
    let clock = clock();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let layer = layer(store, &clock, [daily(100_000), QuotaPolicy::concurrent("slots", 1_000)]);
    assert_that_thousands_are_counted_exactly(20, &layer, &clock).await;
}

/// Alone, where slots are taken; in shared calls; and by batches of units.
#[tokio::test]
async fn of_21_000_requests_in_redis_those_that_have_asked_are_charged_and_no_other() {
    let (server, clock) = (RedisServer::start(), clock());
    let with_slots = vec![daily(100_000), QuotaPolicy::concurrent("slots", 1_000)];
    for (prefix, policies) in [
        ("alone", with_slots),
        ("shared", vec![daily(100_000)]),
        ("batches", vec![daily(100_000).with_prefetch(64)]),
    ] {
        let store = RedisStore::builder(server.url())
            .key_prefix(prefix)
            .clock(clock.clone())
            .lease_time(Duration::from_secs(86_400))
            .build()
            .unwrap();
        let layer = layer(store, &clock, policies);
        assert_that_thousands_are_counted_exactly(7, &layer, &clock).await;
    }
}

#[tokio::test]
async fn requests_that_are_cancelled_while_they_wait_for_a_shared_call_are_charged() {
    let (server, clock) = (RedisServer::start(), clock());
    let store = RedisStore::builder(server.url()).clock(clock.clone()).build().unwrap();
    let layer = layer(store, &clock, [daily(1_500)]);
    until_left(&layer, &[1_500]).await;
    let before = calls_of_scripts(&server);
    let send = || {
        let hello = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
        layer.layer(hello).oneshot(request())
    };
    // Each request is polled once and dropped: only the first few of them have separate calls.
    for _ in 0..1_000 {
        assert!(poll_immediate(send()).await.is_none());
    }
    until_left(&layer, &[500]).await;
    let calls = calls_of_scripts(&server) - before;
    assert!(calls < 500, "{calls} calls");
}

/// Holds decisions back while its gate is closed.
#[derive(Debug)]
struct Gated {
    store: RedisStore,
    is_open: watch::Receiver<bool>,
}

impl Store for Gated {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let (store, mut is_open) = (self.store.clone(), self.is_open.clone());
        StoreFuture::boxed(async move {
            let _ = is_open.wait_for(|is_open| *is_open).await;
            store.acquire(plan).await
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }

    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        self.store.peek(plan)
    }

    fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        self.store.flush(timeout)
    }
}

/// The calls that a server sees.
#[derive(Default)]
struct Seen {
    came: AtomicUsize,
    over: AtomicUsize,
    passed: AtomicUsize,
}

/// Counts when it is dropped.
struct Over(Arc<Seen>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
    }
}

/// A server of HTTP/2 behind a layer, and a client that is connected to it.
async fn http2_server(layer: &RateLimitLayer, seen: &Arc<Seen>) -> http2::SendRequest<Empty<Bytes>> {
    let counting = Arc::clone(seen);
    let limited = layer.layer(service_fn(move |_: Request<Incoming>| {
        counting.passed.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) }
    }));
    let seen = Arc::clone(seen);
    let service = service_fn(move |request| {
        seen.came.fetch_add(1, Ordering::SeqCst);
        let (over, response) = (Over(Arc::clone(&seen)), limited.clone().oneshot(request));
        async move {
            let response = response.await;
            drop(over);
            response
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let builder = auto::Builder::new(TokioExecutor::new());
        builder
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .await
    });
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn until_count(what: &str, counter: &AtomicUsize, expected: usize) {
    until(what, async || counter.load(Ordering::SeqCst) >= expected).await;
}

/// Resets each of 5,000 streams while its decision is in flight. This used to be free for the client, and cost Redis
/// 10,000 calls.
#[tokio::test]
async fn http2_streams_that_are_reset_while_redis_decides_are_charged_and_then_cost_redis_nothing() {
    const AT_ONCE: usize = 50;
    const ROUNDS: usize = 100;

    let (server, gate) = (RedisServer::start(), watch::Sender::new(false));
    let store = Gated {
        store: RedisStore::new(server.url()).unwrap(),
        is_open: gate.subscribe(),
    };
    let hour = QuotaPolicy::per_hour("hour", 10).with_algorithm(Algorithm::SlidingWindowLog);
    let layer = layer(store, &Clock::system(), [hour]);
    let seen = Arc::new(Seen::default());
    let mut client = http2_server(&layer, &seen).await;
    let mut send = || {
        let request = Request::get("http://localhost/").header("x-user-id", "alice");
        client.send_request(request.body(Empty::new()).unwrap())
    };
    until_left(&layer, &[10]).await;
    let before = calls_of_scripts(&server);

    for round in 1..=ROUNDS {
        let streams: Vec<_> = (0..AT_ONCE).map(|_| send()).collect();
        until_count("the streams have come", &seen.came, round * AT_ONCE).await;
        drop(streams);
        until_count("the streams are over", &seen.over, round * AT_ONCE).await;
        // The gate opens only now, so that all streams are reset before Redis is called.
        gate.send_replace(true);
        if round == 1 {
            until_left(&layer, &[0]).await;
        }
        gate.send_replace(false);
    }
    let calls = calls_of_scripts(&server) - before;
    gate.send_replace(true);
    assert_eq!(send().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(seen.passed.load(Ordering::SeqCst), 0);
    assert!(
        calls < 1_000,
        "{calls} calls of scripts for {} streams",
        AT_ONCE * ROUNDS
    );
}

/// Its slot is taken after the client has gone.
#[tokio::test]
async fn a_flush_waits_for_the_decision_of_a_cancelled_request_and_its_slot_becomes_free() {
    let (server, gate) = (RedisServer::start(), watch::Sender::new(false));
    let store = Gated {
        store: RedisStore::new(server.url()).unwrap(),
        is_open: gate.subscribe(),
    };
    let layer = layer(store, &Clock::system(), [QuotaPolicy::concurrent("slots", 1)]);
    let hello = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    assert!(poll_immediate(layer.layer(hello).oneshot(request())).await.is_none());

    let error = layer.limiter().flush(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.to_string(), "store timed out: decisions in progress: 1");
    gate.send_replace(true);
    layer.limiter().flush(HANG).await.unwrap();
    assert_eq!(left(&layer).await, [1]);
}

/// A layer that refunds the whole cost of each request.
fn refunding(store: impl Store, scope: &str, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
    let builder = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(Duration::from_secs(60)))
        .scope(scope)
        .key(key::header("x-user-id"))
        .actual_cost(|_| Some(0));
    let builder = policies
        .into_iter()
        .fold(builder, |builder, policy| match policy.name() {
            "tenants" => builder.named_key("tenant", key::header("x-tenant")).policy(policy),
            _ => builder.policy(policy),
        });
    builder.build().unwrap()
}

/// Sends requests of one user one after the other, in turn through these layers, and returns how many were rejected.
async fn rejected(layers: &[RateLimitLayer], user: &str, requests: usize) -> usize {
    let hello = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
    let mut rejected = 0;
    for layer in layers.iter().cycle().take(requests) {
        let request = Request::builder().header("x-user-id", user).header("x-tenant", "acme");
        let response = layer
            .layer(hello)
            .oneshot(request.body(String::new()).unwrap())
            .await
            .unwrap();
        rejected += usize::from(response.status() == StatusCode::TOO_MANY_REQUESTS);
    }
    rejected
}

/// Charges and refunds a quota of one a day 2,000 times. Before the fix, 771 requests were rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_is_there_for_the_next_request() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let log = QuotaPolicy::per_day("log", 1).with_algorithm(Algorithm::SlidingWindowLog);
    let layer = refunding(store, "one", [QuotaPolicy::per_day("day", 1), log]);
    assert_eq!(rejected(&[layer], "alice", 2_000).await, 0);
}

#[tokio::test]
async fn what_was_given_back_to_several_partitions_and_slots_is_there_for_the_next_request() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let policies = [
        QuotaPolicy::per_day("day", 1),
        QuotaPolicy::per_day("tenants", 1).keyed_by("tenant"),
        QuotaPolicy::concurrent("slots", 1),
    ];
    let layer = refunding(store, "several", policies);
    assert_eq!(rejected(&[layer], "alice", 1_000).await, 0);
}

#[tokio::test]
async fn what_one_layer_gives_back_is_there_for_another_one_on_the_same_store() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let layer = || refunding(store.clone(), "same", [QuotaPolicy::per_day("day", 1)]);
    assert_eq!(rejected(&[layer(), layer(), layer()], "alice", 1_000).await, 0);
}

#[tokio::test]
async fn what_was_given_back_is_there_for_the_next_request_in_a_cluster() {
    let store = RedisStore::cluster(test_kit::shared_cluster().urls()).unwrap();
    let scope = format!("charges-{}", std::process::id());
    let policies = [
        QuotaPolicy::per_day("day", 1),
        QuotaPolicy::per_day("tenants", 1).keyed_by("tenant"),
    ];
    let layer = refunding(store, &scope, policies);
    assert_eq!(rejected(&[layer], "alice", 1_000).await, 0);
}

/// Each of them is rejected for nothing that others do, while calls are shared and settlements queue up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_is_there_for_the_next_request_of_each_of_many_users() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let layer = refunding(store, "many", [QuotaPolicy::per_day("day", 1)]);
    let users = (0..100).map(|user| {
        let layer = layer.clone();
        tokio::spawn(async move { rejected(&[layer], &user.to_string(), 20).await })
    });
    for user in join_all(users).await {
        assert_eq!(user.unwrap(), 0);
    }
}

/// Units that wait in a batch are available to requests that follow a refund.
#[tokio::test]
async fn what_was_given_back_is_there_for_the_next_request_also_where_units_are_prefetched() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let layer = refunding(store, "batches", [QuotaPolicy::per_day("day", 8).with_prefetch(4)]);
    assert_eq!(rejected(&[layer], "alice", 1_000).await, 0);
}

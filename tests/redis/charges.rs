//! Every plan that was sent is charged, however soon its request is cancelled (X34), and refunded units are available
//! to the next request.

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
use test_kit::{
    Answered, RedisServer, TestStore, Timing, clock, hello, limits, limits_of, load::until, memory, request,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::yield_now,
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Limiter, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Store, clock::Clock, key,
};

use super::support::{DAY, HANG, left_of, scripts, shared_cluster_store};

/// A policy that restores no units while a test's clock is stopped.
fn daily(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_day("daily", quota).with_algorithm(Algorithm::FixedWindow)
}

fn layer(store: impl Store, clock: &Clock, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
    let limiter = Limiter::builder(store).clock(clock.clone()).deadline(HANG);
    let builder = policies
        .into_iter()
        .fold(limits_of(limiter), RateLimitLayerBuilder::policy);
    builder.build().unwrap()
}

async fn until_left(layer: &RateLimitLayer, expected: &[u64]) {
    until(&format!("{expected:?} are left"), async || {
        left_of(layer, "alice").await == expected
    })
    .await;
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
    let request = layer.layer(service).oneshot(request("alice"));
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
    let mut expected = left_of(layer, "alice").await;
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
    let layer = layer(
        memory(&clock),
        &clock,
        [daily(100_000), QuotaPolicy::concurrent("slots", 1_000)],
    );
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
        let store = RedisStore::builder(server.url()).key_prefix(prefix).lease_time(DAY);
        let layer = layer(store.clock(clock.clone()).build().unwrap(), &clock, policies);
        assert_that_thousands_are_counted_exactly(7, &layer, &clock).await;
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

    let server = RedisServer::start();
    let store = TestStore::new(RedisStore::new(server.url()).unwrap(), Timing::AtOnce);
    let hour = QuotaPolicy::per_hour("hour", 10).with_algorithm(Algorithm::SlidingWindowLog);
    let layer = layer(store.clone(), &Clock::system(), [hour]);
    let seen = Arc::new(Seen::default());
    let mut client = http2_server(&layer, &seen).await;
    let mut send = || {
        let request = Request::get("http://localhost/").header("x-user-id", "alice");
        client.send_request(request.body(Empty::new()).unwrap())
    };
    until_left(&layer, &[10]).await;
    let before = scripts(&server);

    for round in 1..=ROUNDS {
        let gate = Arc::new(Semaphore::new(0));
        store.set(Timing::Held(Arc::clone(&gate)));
        let streams: Vec<_> = (0..AT_ONCE).map(|_| send()).collect();
        until_count("the streams have come", &seen.came, round * AT_ONCE).await;
        drop(streams);
        until_count("the streams are over", &seen.over, round * AT_ONCE).await;
        // The gate opens only now, so that all streams are reset before Redis is called.
        gate.add_permits(AT_ONCE);
        if round == 1 {
            until_left(&layer, &[0]).await;
        }
    }
    let calls = scripts(&server) - before;
    store.set(Timing::AtOnce);
    assert_eq!(send().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(seen.passed.load(Ordering::SeqCst), 0);
    assert!(calls < 1_000, "{calls} calls of scripts");
}

/// Its slot is taken after the client has gone.
#[tokio::test]
async fn a_flush_waits_for_the_decision_of_a_cancelled_request_and_its_slot_becomes_free() {
    let (server, gate) = (RedisServer::start(), Arc::new(Semaphore::new(0)));
    let store = TestStore::new(RedisStore::new(server.url()).unwrap(), Timing::Held(Arc::clone(&gate)));
    let layer = layer(store, &Clock::system(), [QuotaPolicy::concurrent("slots", 1)]);
    let request = layer.layer(hello()).oneshot(request("alice"));
    assert!(poll_immediate(request).await.is_none());

    let error = layer.limiter().flush(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.to_string(), "store timed out: decisions in progress: 1");
    gate.add_permits(1);
    layer.limiter().flush(HANG).await.unwrap();
    assert_eq!(left_of(&layer, "alice").await, [1]);
}

/// A layer that refunds the whole cost of each request.
fn refunding(store: &RedisStore, scope: &str, policies: Vec<QuotaPolicy>) -> RateLimitLayer {
    let builder = limits(store.clone()).scope(scope).actual_cost(|_| Some(0));
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
    let mut rejected = 0;
    for layer in layers.iter().cycle().take(requests) {
        let mut request = request(user);
        request.headers_mut().insert("x-tenant", "acme".parse().unwrap());
        rejected += usize::from(test_kit::send(layer, request).await.code() == 429);
    }
    rejected
}

/// Charges and refunds all that there is, again and again. Before the fix, four of ten requests were rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_is_there_for_the_next_request() {
    let server = RedisServer::start();
    let (single, cluster) = (
        RedisStore::new(server.url()).unwrap(),
        shared_cluster_store().build().unwrap(),
    );
    let day = || QuotaPolicy::per_day("day", 1);
    let log = QuotaPolicy::per_day("log", 1).with_algorithm(Algorithm::SlidingWindowLog);
    let tenants = || QuotaPolicy::per_day("tenants", 1).keyed_by("tenant");
    let slots = QuotaPolicy::concurrent("slots", 1);
    let batches = QuotaPolicy::per_day("day", 8).with_prefetch(4);
    let mut counts = Vec::new();
    for (name, store, layers, policies) in [
        ("one partition", &single, 1, vec![day(), log]),
        (
            "several partitions and slots",
            &single,
            1,
            vec![day(), tenants(), slots],
        ),
        ("several layers", &single, 3, vec![day()]),
        ("partitions in a cluster", &cluster, 1, vec![day(), tenants()]),
        // Units that wait in a batch are available, too.
        ("batches", &single, 1, vec![batches]),
    ] {
        let layers: Vec<_> = (0..layers).map(|_| refunding(store, name, policies.clone())).collect();
        counts.push((name, rejected(&layers, "alice", 1_000).await));
    }
    // While calls are shared and settlements queue up.
    let layer = refunding(&single, "many", vec![day()]);
    let users = (0..100).map(|user| {
        let layer = layer.clone();
        tokio::spawn(async move { rejected(&[layer], &user.to_string(), 20).await })
    });
    counts.push((
        "many users",
        join_all(users).await.into_iter().map(Result::unwrap).sum(),
    ));
    assert!(counts.iter().all(|(_, rejected)| *rejected == 0), "{counts:?}");
}

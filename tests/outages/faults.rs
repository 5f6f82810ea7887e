//! Redis that is unavailable, slow, wrong or hostile: no request is lost, none hangs, and limits hold again afterwards.
//!
//! Uses real servers and real time. Time limits only distinguish a hang from a wait; benchmarks measure durations.

#![allow(
    clippy::disallowed_methods,
    reason = "a server that restarts does not follow virtual time"
)]

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use test_kit::{Proxy, RedisServer, ScriptedServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, Limiter, LimiterBuilder, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, RedisStore, Scope, Settlement, Store, StoreErrorKind, key,
};

use super::harness::eventually;

/// Longer than anything here can take unless it hangs.
const HANG: Duration = Duration::from_secs(20);

/// Longer than a busy machine keeps a server from its answer: a late reply is a decision, not a request that passes.
const PATIENCE: Duration = Duration::from_secs(10);

fn store(url: &str) -> RedisStore {
    RedisStore::builder(url).connection_timeout(PATIENCE).build().unwrap()
}

/// These tests need every request to reach the store.
fn limiter(store: RedisStore) -> LimiterBuilder {
    Limiter::builder(store).rejection_cache(0).deadline(PATIENCE)
}

fn builder(store: RedisStore) -> RateLimitLayerBuilder {
    builder_of(limiter(store))
}

fn builder_of(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope("faults")
        .key(key::extension::<u64>())
        .policy(QuotaPolicy::per_day("daily", 5))
}

fn layer(url: &str) -> RateLimitLayer {
    builder(store(url)).build().unwrap()
}

async fn hello(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Sends a request of this user and returns its status and outcome; a request that hangs fails the test.
async fn ask(layer: &RateLimitLayer, user: u64) -> (StatusCode, Outcome) {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(user);
    let response = timeout(HANG, layer.layer(service_fn(hello)).oneshot(request))
        .await
        .expect("no request hangs")
        .unwrap();
    let outcome = response.extensions().get::<Decision>().unwrap().outcome();
    let has_fields = response.headers().contains_key("ratelimit");
    assert_eq!(
        has_fields,
        matches!(outcome, Outcome::Allowed | Outcome::Rejected),
        "{outcome:?}"
    );
    (response.status(), outcome)
}

/// Waits until the store decides again, using a separate user.
async fn until_decided(layer: &RateLimitLayer) {
    eventually("the store decides", || async {
        ask(layer, u64::MAX).await.1 != Outcome::FailedOpen
    })
    .await;
}

/// Twenty requests at once, of which the five of the quota pass.
async fn assert_limits_hold(layer: &RateLimitLayer, user: u64) {
    let answers = join_all((0..20).map(|_| ask(layer, user))).await;
    let passed = answers.iter().filter(|(status, _)| *status == StatusCode::OK).count();
    assert_eq!(passed, 5, "{answers:?}");
}

#[test]
fn a_store_can_be_made_outside_of_a_runtime() {
    let server = RedisServer::start();
    let layer = layer(&server.url());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        until_decided(&layer).await;
        assert_limits_hold(&layer, 1).await;
    });
}

/// The name of the key that a user of `layer` has.
fn key_of(server: &RedisServer) -> String {
    let keys = server.command(&["KEYS", "quota:*"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys.trim().to_owned()
}

#[tokio::test]
async fn garbage_and_other_types_under_a_key_count_as_never_seen_and_are_overwritten() {
    let server = RedisServer::start();
    let layer = layer(&server.url());
    until_decided(&layer).await;
    server.command(&["FLUSHALL"]);
    assert_limits_hold(&layer, 1).await;
    let key = key_of(&server);
    let full: Vec<u8> = std::iter::repeat_n(0xff, 4_000).collect();
    let mut levels = vec![b'\x01', 0, 0, 0, 0, 0, 0, 0];
    levels.extend([0xff; 48]);
    let mut empty_levels = vec![b'\x02', 1, 0, 0, 0, 0, 0, 0];
    empty_levels.extend([0; 50]);
    let garbage: [&[u8]; 9] = [
        b"",
        b"x",
        b"\x01",
        b"\x01\0\0\0\0\0\0\0",
        b"garbage garbage",
        &full[..8],
        &full,
        &levels,
        &empty_levels,
    ];
    for bytes in garbage {
        server.command_bytes(&[b"SET", key.as_bytes(), bytes]);
        assert_limits_hold(&layer, 1).await;
    }
    for other_type in [["RPUSH", &key, "x"], ["SADD", &key, "x"]] {
        server.command(&["DEL", &key]);
        server.command(&other_type);
        assert_limits_hold(&layer, 1).await;
        assert_eq!(server.command(&["TYPE", &key]).trim_start_matches('+').trim(), "string");
    }
}

/// L14
#[tokio::test]
async fn every_key_expires_when_its_buckets_are_full_again() {
    let server = RedisServer::start();
    let layer = builder(store(&server.url()))
        .policy(QuotaPolicy::per_second("second", 10))
        .build()
        .unwrap();
    until_decided(&layer).await;
    server.command(&["FLUSHALL"]);
    ask(&layer, 1).await;
    let life: u64 = server
        .command(&["PTTL", &key_of(&server)])
        .trim()
        .trim_start_matches(':')
        .parse()
        .unwrap();
    // With five units a day, one is restored after 17,280 s.
    assert!((17_000_000..=17_280_000).contains(&life), "{life} ms");
}

/// Behind the same name there may be another primary by now.
#[tokio::test]
async fn connections_to_a_server_that_has_become_a_replica_are_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let layer = layer(&proxy.url());
    until_decided(&layer).await;
    let before = proxy.connections();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually("there are new connections", || async {
        ask(&layer, 1).await;
        proxy.connections() > before + 2
    })
    .await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until_decided(&layer).await;
}

#[tokio::test]
async fn a_password_comes_with_the_url_and_a_wrong_one_is_a_failure_like_any_other() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "requirepass", "open sesame"]);
    let with_password = format!("redis://:open%20sesame@127.0.0.1:{}/", server.port());
    let right = layer(&with_password);
    until_decided(&right).await;
    assert_limits_hold(&right, 1).await;
    for url in [server.url(), with_password.replace("sesame", "barley")] {
        assert_eq!(
            ask(&layer(&url), 1).await,
            (StatusCode::OK, Outcome::FailedOpen),
            "{url}"
        );
    }
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_is_enough() {
    let server = RedisServer::start();
    if !server.has_users() {
        return;
    }
    server.set_documented_user(&[]);
    let url = server.url().replace("redis://", "redis://limits:password@");
    let layer = layer(&url);
    until_decided(&layer).await;
    assert_limits_hold(&layer, 1).await;

    let store = RedisStore::new(url).unwrap();
    let logged = QuotaPolicy::per_hour("logged", 2).with_algorithm(Algorithm::SlidingWindowLog);
    let policies = PolicySet::new([logged, QuotaPolicy::concurrent("slots", 2)]).unwrap();
    let partition = Scope::new("permissions").partition(&PartitionKey::new("user", "alice"));
    let plan = || Plan::new(policies.clone(), partition, 1);
    let first = store.decide(plan()).await.unwrap();
    store.decide(plan()).await.unwrap();
    let rejected = store.decide(plan()).await.unwrap();
    assert_eq!(rejected.outcome(), Outcome::Rejected);
    store.settle(Settlement::refund_all(&first)).await.unwrap();
    assert_eq!(store.decide(plan()).await.unwrap().outcome(), Outcome::Allowed);
    store.reset(plan()).await.unwrap();
    assert_eq!(
        store
            .peek(plan())
            .await
            .unwrap()
            .allowances()
            .next()
            .unwrap()
            .remaining(),
        2
    );
}

#[test]
fn mistakes_in_a_store_are_found_by_build_and_named() {
    let builder = || RedisStore::builder("redis://127.0.0.1/");
    let cases = [
        (builder().connections(0), "redis store: connections 0 is outside 1..=64"),
        (
            builder().connections(65),
            "redis store: connections 65 is outside 1..=64",
        ),
        (
            builder().connection_timeout(Duration::from_millis(9)),
            "redis store: connection_timeout 9ms is outside 10ms..=60s",
        ),
        (
            builder().lease_time(Duration::from_millis(999)),
            "redis store: lease_time 999ms is outside 1s..=86400s",
        ),
        (
            builder().key_prefix("a{b"),
            r#"redis store: key_prefix "a{b" is longer than 64 bytes or contains a brace"#,
        ),
    ];
    for (builder, message) in cases {
        assert_eq!(builder.build().unwrap_err().to_string(), message);
    }
}

/// Something that is not Redis: answers every command with the same bytes.
async fn impostor(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    // Each command begins with the number of its words.
                    let is_start = |bytes: &&[u8]| bytes[0] == b'*' && bytes[1].is_ascii_digit();
                    let commands = buffer[..read].windows(2).filter(is_start).count();
                    if stream.write_all(&reply.repeat(commands)).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

/// L9: including a server that returns errors.
#[tokio::test]
async fn whatever_else_listens_at_the_address_no_request_is_lost() {
    let replies: [&[u8]; 12] = [
        b"-ERR unknown command\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-NOSCRIPT No matching script\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"$3\r\nabc\r\n",
        b"$16\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"*1000000000\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\xff\xfe",
    ];
    for reply in replies {
        let layer = builder_of(Limiter::builder(RedisStore::new(impostor(reply).await).unwrap()))
            .build()
            .unwrap();
        for _ in 0..3 {
            let answer = ask(&layer, 1).await;
            assert_eq!(
                answer,
                (StatusCode::OK, Outcome::FailedOpen),
                "{}",
                reply.escape_ascii()
            );
        }
    }
}

/// A server that answers with `numbers` numbers, a count that the script never returns, and a store on it.
async fn with_numbers(numbers: usize, case: u64) -> (ScriptedServer, RedisStore) {
    const NUMBERS: [u64; 5] = [0, 1, 1_700_000_000_000_000, (1 << 53) - 2, (1 << 53) - 1];
    // A few of all combinations, always the same ones.
    let chance = case.wrapping_mul(2_654_435_761);
    let number = move |place: usize| NUMBERS[(chance >> (4 * place)) as usize % NUMBERS.len()] as f64;
    let numbers: Vec<_> = (0..numbers).map(number).collect();
    let server = ScriptedServer::start(move |call| call.reply(&numbers)).await;
    let store = RedisStore::new(server.url()).unwrap();
    (server, store)
}

#[tokio::test]
async fn whatever_numbers_a_server_answers_a_decision_is_made_or_there_is_an_error() {
    let month = Duration::from_secs(2_678_400);
    let caller = Scope::new("numbers").partition(&PartitionKey::new("user", "alice"));
    for (algorithm, width) in [
        (Algorithm::TokenBucket, 1),
        (Algorithm::StrictTokenBucket, 1),
        (Algorithm::LeakyBucketQueue { max_waiting: 9 }, 1),
        (Algorithm::FixedWindow, 1),
        (Algorithm::SlidingWindowCounter, 2),
        (Algorithm::SlidingWindowLog, 4),
    ] {
        let timed = QuotaPolicy::new("policy", 100, month).with_algorithm(algorithm);
        let slots = QuotaPolicy::concurrent("slots", 9);
        let policies = PolicySet::new([timed.clone(), slots.clone()]).unwrap();
        for other_width in [width + 1, width + 3] {
            let (_server, store) = with_numbers(other_width, 0).await;
            let error = store.decide(Plan::new(policies.clone(), caller, 1)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        }
        for case in 0..100 {
            let (_server, store) = with_numbers(width + 2, case).await;
            for cost in [0, 1, 100, u64::MAX] {
                let Ok(decision) = store.decide(Plan::new(policies.clone(), caller, cost)).await else {
                    continue;
                };
                let _ = (decision.outcome(), decision.retry_after(), decision.delay());
                for allowance in decision.allowances() {
                    let _ = (allowance.remaining(), allowance.effective_window());
                }
                let _ = store.settle(Settlement::new(&decision, 7)).await;
            }
            // Also where it is written into fields, and what is remembered of it.
            let layer = RateLimitLayer::builder(store)
                .scope("numbers")
                .key(key::extension::<u64>());
            let layer = layer
                .cost_by(|_| 2)
                .policy(timed.clone())
                .policy(slots.clone())
                .build()
                .unwrap();
            for _ in 0..3 {
                ask(&layer, 1).await;
            }
        }
    }
}

/// Found by a user of the `redis` example: the pool let requests wait for their whole deadline although the
/// connection had been rejected at once.
#[tokio::test]
async fn a_rejected_connection_is_told_at_once_and_with_its_reason() {
    let server = RedisServer::start();
    server.kill();
    let store = RedisStore::builder(server.url())
        .connection_timeout(HANG * 2)
        .build()
        .unwrap();
    let policies = PolicySet::new([QuotaPolicy::per_day("daily", 5)]).unwrap();
    for _ in 0..3 {
        let plan = Plan::new(
            policies.clone(),
            Scope::new("rejected").partition(&PartitionKey::new("user", "x")),
            1,
        );
        let error = timeout(HANG, store.decide(plan))
            .await
            .expect("it does not wait")
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

/// The errors of a store identify their cause.
#[tokio::test]
async fn errors_are_told_apart() {
    let policies = PolicySet::new([QuotaPolicy::per_day("daily", 5)]).unwrap();
    let plan = || {
        Plan::new(
            policies.clone(),
            Scope::new("errors").partition(&PartitionKey::new("user", "x")),
            1,
        )
    };
    let kind_of = async |url: &str| store(url).decide(plan()).await.unwrap_err().kind();
    assert_eq!(
        kind_of(&impostor(b"-LOADING wait\r\n").await).await,
        StoreErrorKind::Unavailable
    );
    assert_eq!(kind_of(&impostor(b"-ERR no\r\n").await).await, StoreErrorKind::Failed);
    assert_eq!(kind_of(&impostor(b"+OK\r\n").await).await, StoreErrorKind::Unreachable);
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(kind_of(&server.url()).await, StoreErrorKind::OutOfMemory);
    server.kill();
    assert_eq!(kind_of(&server.url()).await, StoreErrorKind::Unreachable);
}

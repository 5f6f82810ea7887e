//! Redis that is unavailable, slow, wrong or hostile: no request is lost, none hangs, and limits hold again afterwards.
//!
//! Uses real servers and real time. Time limits only distinguish a hang from a wait; benchmarks measure durations.

#![allow(
    clippy::disallowed_methods,
    reason = "a server that restarts does not follow virtual time"
)]

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use test_kit::{Mode, Proxy, RedisServer, ScriptedServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, FailureMode, Limiter, LimiterBuilder, MemoryStore, Outcome, PartitionKey, Plan, PolicySet,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Scope, Settlement, Store, StoreErrorKind, key,
};

/// Longer than anything here can take unless it hangs.
const HANG: Duration = Duration::from_secs(20);

/// The deadline of a layer that sets none.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

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

/// Two layers with the same limits and the same store. The first has the usual deadline, so that it fails open at once
/// where a server does not answer. The second waits, so that it shows whether the limits hold.
fn hasty_and_patient(url: &str) -> (RateLimitLayer, RateLimitLayer) {
    let store = RedisStore::new(url).unwrap();
    let hasty = limiter(store.clone()).deadline(DEFAULT_DEADLINE);
    (builder_of(hasty).build().unwrap(), builder(store).build().unwrap())
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

async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, wait)
        .await
        .unwrap_or_else(|_| panic!("still not so: {what}"));
}

/// Waits until the store decides again, using a separate user.
async fn until_decided(layer: &RateLimitLayer) {
    eventually("the store decides", || async {
        ask(layer, u64::MAX).await.1 != Outcome::FailedOpen
    })
    .await;
}

async fn until_undecided(layer: &RateLimitLayer) {
    eventually("the store does not decide", || async {
        ask(layer, u64::MAX).await.1 == Outcome::FailedOpen
    })
    .await;
}

/// Twenty requests at once, of which the five of the quota pass.
async fn assert_limits_hold(layer: &RateLimitLayer, user: u64) {
    let answers = join_all((0..20).map(|_| ask(layer, user))).await;
    let passed = answers.iter().filter(|(status, _)| *status == StatusCode::OK).count();
    assert_eq!(passed, 5, "{answers:?}");
}

/// Requests of many users, without pause, until stopped. Each response must be 200 or 429.
struct Load {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Load {
    fn start(layer: &RateLimitLayer) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let task = |number: u64| {
            let (layer, is_over) = (layer.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut requests = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let (status, outcome) = ask(&layer, 1_000 + number + 64 * (requests % 50)).await;
                    assert!(
                        matches!(status, StatusCode::OK | StatusCode::TOO_MANY_REQUESTS),
                        "{status} {outcome:?}"
                    );
                    requests += 1;
                    if outcome == Outcome::FailedOpen {
                        // Without a store nothing else would give the other tasks of this thread a turn.
                        tokio::task::yield_now().await;
                    }
                }
                requests
            })
        };
        Self {
            tasks: (0..64).map(task).collect(),
            is_over,
        }
    }

    async fn stop(self, layer: &RateLimitLayer) {
        self.is_over.store(true, Ordering::Relaxed);
        let requests: u64 = join_all(self.tasks).await.into_iter().map(Result::unwrap).sum();
        assert!(requests > 64, "{requests}");
        // The last failures may have opened the circuit after the last look at it.
        until_decided(layer).await;
    }
}

/// L8, L9
#[tokio::test]
async fn a_service_started_while_redis_is_down_serves_and_limits_once_it_is_there() {
    let server = RedisServer::start();
    server.kill();
    let layer = layer(&server.url());
    for _ in 0..20 {
        assert_eq!(ask(&layer, 1).await, (StatusCode::OK, Outcome::FailedOpen));
    }
    server.restart();
    until_decided(&layer).await;
    assert_limits_hold(&layer, 1).await;
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

/// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_loses_no_request_and_limits_hold_after_its_return() {
    let server = RedisServer::start();
    let (layer, patient) = hasty_and_patient(&server.url());
    until_decided(&layer).await;
    let load = Load::start(&layer);
    for _ in 0..2 {
        server.kill();
        until_undecided(&layer).await;
        server.restart();
        until_decided(&layer).await;
    }
    load.stop(&layer).await;
    assert_limits_hold(&patient, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_under_load_holds_nobody_and_limits_hold_after_its_return() {
    let server = RedisServer::start();
    let (layer, patient) = hasty_and_patient(&server.url());
    until_decided(&layer).await;
    let load = Load::start(&layer);
    server.pause();
    until_undecided(&layer).await;
    server.resume();
    until_decided(&layer).await;
    load.stop(&layer).await;
    assert_limits_hold(&patient, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_swallows_bytes_under_load_is_left_for_a_new_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (layer, patient) = hasty_and_patient(&proxy.url());
    until_decided(&layer).await;
    let load = Load::start(&layer);
    proxy.set_mode(Mode::Swallow);
    until_undecided(&layer).await;
    let before = proxy.connections();
    proxy.set_mode(Mode::Forward);
    until_decided(&layer).await;
    load.stop(&layer).await;
    assert_limits_hold(&patient, 1).await;
    // Two connections are replaced, perhaps more than once, but never one per request.
    assert!(
        proxy.connections() - before < 20,
        "{} connections",
        proxy.connections() - before
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_under_load_are_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (layer, patient) = hasty_and_patient(&proxy.url());
    until_decided(&layer).await;
    let load = Load::start(&layer);
    for _ in 0..5 {
        proxy.cut().await;
        until_decided(&layer).await;
    }
    load.stop(&layer).await;
    assert_limits_hold(&patient, 1).await;
}

/// X15
#[tokio::test]
async fn scripts_flushed_between_any_two_requests_cost_no_decision() {
    let server = RedisServer::start();
    let layer = layer(&server.url());
    until_decided(&layer).await;
    for round in 0..5 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(
            ask(&layer, 1).await,
            (StatusCode::OK, Outcome::Allowed),
            "round {round}"
        );
    }
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(ask(&layer, 1).await, (StatusCode::TOO_MANY_REQUESTS, Outcome::Rejected));
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

#[tokio::test]
async fn a_server_turned_replica_fails_open_and_limits_hold_afterwards() {
    let server = RedisServer::start();
    let layer = layer(&server.url());
    until_decided(&layer).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    until_undecided(&layer).await;
    assert_eq!(ask(&layer, 1).await, (StatusCode::OK, Outcome::FailedOpen));
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until_decided(&layer).await;
    assert_limits_hold(&layer, 1).await;
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
    let buckets = ["eval", "evalsha", "time", "get", "set", "setrange", "del"];
    let sets = "zadd zcard zcount zrange zrangebyscore zrank zrem zremrangebyrank pexpire unlink";
    let permissions = buckets
        .into_iter()
        .chain(sets.split(' '))
        .map(|name| format!("+{name}"));
    let user = ["on", ">secret", "~quota:*"].map(str::to_owned);
    let rules: Vec<String> = user.into_iter().chain(permissions).collect();
    server.set_user("limiter", &rules.iter().map(String::as_str).collect::<Vec<_>>());

    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
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
        let (layer, _) = hasty_and_patient(&impostor(reply).await);
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

#[tokio::test]
async fn a_layer_that_fails_closed_answers_503_while_redis_is_down() {
    let server = RedisServer::start();
    server.kill();
    let layer = builder(store(&server.url()))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    for _ in 0..10 {
        assert_eq!(
            ask(&layer, 1).await,
            (StatusCode::SERVICE_UNAVAILABLE, Outcome::FailedClosed)
        );
    }
}

#[tokio::test]
async fn a_fallback_keeps_the_limit_while_redis_is_down() {
    let server = RedisServer::start();
    server.kill();
    let limiter = limiter(store(&server.url())).fallback(MemoryStore::new());
    let layer = builder_of(limiter).build().unwrap();
    assert_limits_hold(&layer, 1).await;
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

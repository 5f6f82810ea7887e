//! Concurrency slots: the limit is never exceeded, and no slot is lost, however its holder ends.

#![allow(
    clippy::disallowed_methods,
    reason = "leases end in the time of a server, which no test can move"
)]

use std::{
    convert::Infallible,
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use test_kit::RedisServer;
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Decision, Limiter, MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, RedisStore, Scope, Settlement, Store, key,
};

const HOLDERS: u64 = 200;
const ROUNDS: u64 = 30;
const LIMIT: u64 = 7;
const SLOTS: QuotaPolicy = QuotaPolicy::concurrent("slots", LIMIT);

/// Short, but a process that is kept from running for a second still renews its leases in time.
const LEASE_TIME: Duration = Duration::from_secs(2);

/// Longer than anything here can take unless it hangs.
const HANG: Duration = Duration::from_secs(30);

/// The variable that makes a process a child, with the URL from its parent.
const URL: &str = "TOWER_QUOTA_TEST_HOLDER";

/// Runs as a process that a test has started, if it is one.
pub(crate) fn child() -> bool {
    env::var(URL).is_ok_and(|url| {
        hold_until_killed(&url);
        true
    })
}

#[tokio::main]
pub(crate) async fn run() {
    let server = RedisServer::start();
    two_hundred_holders_with_cancels_never_exceed_the_limit_and_end_at_zero(MemoryStore::new()).await;
    crate::passed("two_hundred_holders_with_cancels_never_exceed_the_limit_and_end_at_zero::in_memory");
    // The lease is so long that only a release can free a slot.
    let redis = RedisStore::builder(server.url()).lease_time(HANG * 10).build().unwrap();
    two_hundred_holders_with_cancels_never_exceed_the_limit_and_end_at_zero(redis).await;
    crate::passed("two_hundred_holders_with_cancels_never_exceed_the_limit_and_end_at_zero::in_redis");
    slots_of_a_killed_process_become_free_and_those_of_a_live_one_stay_taken(&server).await;
    crate::passed("slots_of_a_killed_process_become_free_and_those_of_a_live_one_stay_taken");
    leases_that_the_server_has_lost_are_there_again(&server).await;
    crate::passed("leases_that_the_server_has_lost_are_there_again");
}

fn plan() -> Plan {
    let alice = Scope::new("concurrency").partition(&PartitionKey::new("user", "alice"));
    Plan::new(PolicySet::new([SLOTS]).unwrap(), alice, 1)
}

/// Observed from outside.
async fn held(store: &dyn Store) -> u64 {
    let decision = store.peek(plan()).await.unwrap();
    LIMIT - decision.allowances().next().unwrap().remaining()
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(HANG, wait).await.is_ok(), "still not so: {what}");
}

async fn store_of(server: &RedisServer) -> RedisStore {
    let store = RedisStore::builder(server.url())
        .lease_time(LEASE_TIME)
        .build()
        .unwrap();
    eventually("the server decides", async || store.peek(plan()).await.is_ok()).await;
    store
}

/// The number of requests inside the service, and the highest number observed.
#[derive(Default)]
struct Gauge {
    inside: AtomicU64,
    most: AtomicU64,
    served: AtomicU64,
}

/// Inside of the service until it is dropped, which happens to cancelled requests, too.
struct Inside(Arc<Gauge>);

impl Inside {
    fn enter(gauge: &Arc<Gauge>) -> Self {
        let inside = gauge.inside.fetch_add(1, Ordering::SeqCst) + 1;
        gauge.most.fetch_max(inside, Ordering::SeqCst);
        gauge.served.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(gauge))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn yields(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// One request, which takes some time and is cancelled after some other time.
async fn one_request(layer: &RateLimitLayer, gauge: &Arc<Gauge>, number: u64) {
    // No pattern, but the same in every run.
    let scrambled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let gauge = Arc::clone(gauge);
    let service = service_fn(move |_: Request<String>| {
        let inside = Inside::enter(&gauge);
        async move {
            yields(scrambled % 50).await;
            drop(inside);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
        }
    });
    let request = async {
        let response = layer.layer(service).oneshot(Request::new(String::new())).await.unwrap();
        let outcome = response.extensions().get().map_or(Outcome::Allowed, Decision::outcome);
        assert!(matches!(outcome, Outcome::Allowed | Outcome::Rejected), "{outcome:?}");
        // Some read the response, some throw it away.
        if scrambled.is_multiple_of(2) {
            response.into_body().collect().await.unwrap();
        }
    };
    let queue_timeout = [0, 1, 3, 10, 30, 100, 300, 1_000, u64::MAX, u64::MAX][(scrambled / 64 % 10) as usize];
    tokio::select! {
        () = request => {}
        () = yields(queue_timeout) => {}
    }
}

/// L24
async fn two_hundred_holders_with_cancels_never_exceed_the_limit_and_end_at_zero(store: impl Store + Clone) {
    // A process that is kept from running must not fail open here.
    let limiter = Limiter::builder(store.clone()).deadline(HANG);
    let layer = RateLimitLayerBuilder::from(limiter)
        .scope("concurrency")
        .key(key::from_fn(|_| Some(PartitionKey::new("user", "alice"))))
        .policy(SLOTS)
        .build()
        .unwrap();
    let gauge = Arc::new(Gauge::default());
    let holder = |holder: u64| {
        let (layer, gauge) = (layer.clone(), Arc::clone(&gauge));
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                one_request(&layer, &gauge, holder * ROUNDS + round).await;
            }
        })
    };
    for ended in join_all((0..HOLDERS).map(holder)).await {
        ended.unwrap();
    }
    let (most, served) = (gauge.most.load(Ordering::SeqCst), gauge.served.load(Ordering::SeqCst));
    assert!(most <= LIMIT && served > 2 * LIMIT, "{most} at a time, {served} in all");
    assert_eq!(gauge.inside.load(Ordering::SeqCst), 0);
    eventually("no slot is held", async || held(&store).await == 0).await;
}

/// Acquires slots and never releases them.
async fn hold(store: &RedisStore, slots: u64) -> Vec<Decision> {
    let mut decisions = vec![];
    for _ in 0..slots {
        let decision = store.decide(plan()).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Allowed);
        decisions.push(decision);
    }
    decisions
}

async fn give_back(store: &RedisStore, decisions: Vec<Decision>) {
    for decision in decisions {
        store.settle(Settlement::refund_all(&decision)).await.unwrap();
    }
}

#[tokio::main]
async fn hold_until_killed(url: &str) {
    let store = RedisStore::builder(url).lease_time(LEASE_TIME).build().unwrap();
    let _decisions = hold(&store, 3).await;
    println!("holding");
    // Also ends when the parent does.
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    read.await.unwrap().unwrap();
}

fn start_holder(server: &RedisServer) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .env(URL, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "holding\n");
    child
}

/// When the last lease ends, in the server's microseconds. Every renewal moves it.
fn last_end(server: &RedisServer) -> u64 {
    let key = server.command(&["KEYS", "quota:*:slots:*"]);
    let newest = server.command_bytes(&[b"ZRANGE", key.trim().as_bytes(), b"-1", b"-1", b"WITHSCORES"]);
    let text = String::from_utf8_lossy(&newest).into_owned();
    text.lines()
        .last()
        .and_then(|score| score.trim().parse().ok())
        .unwrap_or(0)
}

/// Until all leases have been renewed for longer than several of them last.
async fn for_several_lease_times(server: &RedisServer, condition: impl AsyncFn()) {
    let end = last_end(server) + 3 * LEASE_TIME.as_micros() as u64;
    eventually("leases are renewed", async || {
        condition().await;
        last_end(server) > end
    })
    .await;
}

/// L24: a process that was killed does not release its slots.
async fn slots_of_a_killed_process_become_free_and_those_of_a_live_one_stay_taken(server: &RedisServer) {
    let store = store_of(server).await;
    let own = hold(&store, 2).await;
    let mut child = start_holder(server);
    assert_eq!(held(&store).await, 5);
    for_several_lease_times(server, async || assert_eq!(held(&store).await, 5)).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let are_free = async || held(&store).await == 2;
    eventually("the slots of the killed process are free", are_free).await;
    for_several_lease_times(server, async || assert_eq!(held(&store).await, 2)).await;
    let rest = hold(&store, LIMIT - 2).await;
    assert_eq!(store.decide(plan()).await.unwrap().outcome(), Outcome::Rejected);
    give_back(&store, own).await;
    give_back(&store, rest).await;
    assert_eq!(held(&store).await, 0);
}

/// L24
async fn leases_that_the_server_has_lost_are_there_again(server: &RedisServer) {
    let store = store_of(server).await;
    let decisions = hold(&store, 4).await;
    for _ in 0..3 {
        assert_eq!(server.command(&["FLUSHALL"]).trim(), "OK");
        eventually("all leases are there again", async || held(&store).await == 4).await;
    }
    give_back(&store, decisions).await;
    assert_eq!(held(&store).await, 0);
    // Released slots do not reappear with the next renewals.
    let other = hold(&store, 1).await;
    for_several_lease_times(server, async || assert_eq!(held(&store).await, 1)).await;
    give_back(&store, other).await;
}

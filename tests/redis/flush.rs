//! The end of a process: what it owes its callers arrives before, or is reported.

use std::{convert::Infallible, iter, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use http::{Request, Response};
use http_body_util::Full;
use test_kit::{RedisServer, Sentinels, TestStore};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Semaphore, watch},
    task::{JoinHandle, yield_now},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder,
    RedisStore, RedisStoreBuilder, Settlement, Store, StoreErrorKind, clock::Clock, key,
};

use super::shared_store;
use super::support::{self, DAY, HANG, START, left, plan, shared_cluster_store, user};

const CALLERS: i64 = 100;
/// Of each caller.
const REQUESTS: u64 = 2;
const QUOTA: u64 = 100;
/// The cost of a request until its response reports an actual cost of 1.
const ESTIMATE: u64 = 10;

type Answer = Response<RateLimitBody<Full<Bytes>>>;

/// A store by whose time no window and no lease ends.
fn build(builder: RedisStoreBuilder, prefix: &str) -> RedisStore {
    let builder = builder.key_prefix(prefix).clock(Clock::manual(START)).lease_time(DAY);
    builder.connection_timeout(HANG).build().unwrap()
}

fn layer(store: impl Store, fallback: Option<RedisStore>) -> RateLimitLayer {
    // A machine that is busy with other tests must not make requests pass uncounted.
    let limiter = Limiter::builder(store).deadline(HANG);
    let limiter = match fallback {
        Some(fallback) => limiter.fallback(fallback),
        None => limiter,
    };
    RateLimitLayerBuilder::from(limiter)
        .scope("flush")
        .key(key::extension::<i64>())
        .cost(ESTIMATE)
        .policy(QuotaPolicy::per_day("daily", QUOTA).with_algorithm(Algorithm::FixedWindow))
        .policy(QuotaPolicy::concurrent("slots", REQUESTS))
        .build()
        .unwrap()
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Decided requests, which respond on a signal.
struct InProgress {
    requests: Vec<JoinHandle<Answer>>,
    may_end: Arc<Semaphore>,
}

impl InProgress {
    async fn begin(layer: &RateLimitLayer) -> Self {
        let (came, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let service = {
            let (came, may_end) = (Arc::clone(&came), Arc::clone(&may_end));
            service_fn(move |_: Request<String>| {
                let (came, may_end) = (Arc::clone(&came), Arc::clone(&may_end));
                async move {
                    came.add_permits(1);
                    may_end.acquire().await.unwrap().forget();
                    let mut response = Response::new(Full::<Bytes>::from("hello"));
                    response.extensions_mut().insert(ActualCost(1));
                    Ok::<_, Infallible>(response)
                }
            })
        };
        let service = layer.layer(service);
        let callers = (0..CALLERS).flat_map(|caller| iter::repeat_n(caller, REQUESTS as usize));
        let requests: Vec<_> = callers
            .map(|caller| {
                let mut request = Request::new(String::new());
                request.extensions_mut().insert(caller);
                let response = service.clone().oneshot(request);
                tokio::spawn(async move { response.await.unwrap() })
            })
            .collect();
        let all = came.acquire_many(requests.len() as u32).await;
        all.unwrap().forget();
        Self { requests, may_end }
    }

    /// Each has settled its cost. Its slot is settled when what is returned is dropped.
    async fn answer_together(self) -> Vec<Answer> {
        self.may_end.add_permits(self.requests.len());
        let answers = join_all(self.requests).await;
        answers.into_iter().map(Result::unwrap).collect()
    }
}

/// By another process.
fn assert_that_nobody_is_overcharged_or_holds_a_slot(store: RedisStore, name: &str) {
    let layer = layer(store, None);
    let left = runtime().block_on(join_all((0..CALLERS).map(|caller| {
        let caller = layer.limiter().caller(&caller);
        async move { left(&caller).await }
    })));
    let wrong = left.iter().filter(|left| **left != [QUOTA - REQUESTS, REQUESTS]);
    assert_eq!(wrong.count(), 0, "{name}: {left:?}");
}

#[test]
fn after_a_flush_the_process_may_end_and_nobody_is_overcharged_or_holds_a_slot() {
    let sentinels = Sentinels::start();
    let single = |prefix: &str| build(shared_store(), prefix);
    let cluster = || build(shared_cluster_store(), "flush");
    let sentinel = || RedisStore::sentinel_builder(sentinels.urls(), Sentinels::SERVICE);
    let sentinel = || build(sentinel(), "flush");
    let shared: Arc<dyn Store> = Arc::new(single("flush-shared"));
    let failing = TestStore::failing(StoreErrorKind::Unreachable);
    for (name, layer, another) in [
        ("single", layer(single("flush"), None), single("flush")),
        ("shared", layer(shared, None), single("flush-shared")),
        (
            "fallback",
            layer(failing, Some(single("flush-fallback"))),
            single("flush-fallback"),
        ),
        ("cluster", layer(cluster(), None), cluster()),
        ("sentinel", layer(sentinel(), None), sentinel()),
    ] {
        let runtime = runtime();
        runtime.block_on(async {
            drop(InProgress::begin(&layer).await.answer_together().await);
            layer.limiter().flush(HANG).await.unwrap();
        });
        drop(runtime);
        assert_that_nobody_is_overcharged_or_holds_a_slot(another, name);
    }
}

#[test]
fn a_flush_of_a_stopped_redis_ends_at_its_timeout_with_the_number_of_what_remains_and_the_next_one_sends_it() {
    let server = RedisServer::start();
    let store = || build(RedisStore::builder(server.url()), "flush");
    let layer = layer(store(), None);
    let runtime = runtime();
    runtime.block_on(async {
        let requests = InProgress::begin(&layer).await;
        server.pause();
        drop(requests.answer_together().await);
        let error = layer.limiter().flush(Duration::from_millis(200)).await.unwrap_err();
        let expected = "store timed out: settlements in progress: 400, lost since the last flush: 0";
        assert_eq!(error.to_string(), expected);

        server.resume();
        for _ in 0..2 {
            layer.limiter().flush(HANG).await.unwrap();
        }
    });
    drop(runtime);
    assert_that_nobody_is_overcharged_or_holds_a_slot(store(), "stopped");
}

#[tokio::test]
async fn a_flush_after_redis_was_killed_reports_the_number_of_lost_settlements_once() {
    let server = RedisServer::start();
    let layer = layer(build(RedisStore::builder(server.url()), "flush"), None);
    let requests = InProgress::begin(&layer).await;
    server.kill();
    drop(requests.answer_together().await);
    let error = layer.limiter().flush(HANG).await.unwrap_err();
    let expected = "store unavailable: settlements in progress: 0, lost since the last flush: 400";
    assert_eq!(error.to_string(), expected);
    layer.limiter().flush(HANG).await.unwrap();
}

/// Without a runtime, a settlement of a store that has sent nothing yet is lost at once.
fn lose_a_settlement(store: &RedisStore) {
    thread::scope(|scope| scope.spawn(|| drop(store.settle(settlement()))).join().unwrap());
}

fn settlement() -> Settlement {
    let plan = plan([QuotaPolicy::per_day("daily", QUOTA)], user("flush", "1"), 1);
    let decision = MemoryStore::new().decide(plan).now_or_never();
    Settlement::refund_all(&decision.unwrap().unwrap())
}

#[tokio::test]
async fn a_flush_that_times_out_keeps_the_number_of_lost_settlements_for_the_next_one() {
    let server = RedisServer::start();
    let store = build(RedisStore::builder(server.url()), "flush");
    lose_a_settlement(&store);
    server.pause();
    drop(store.settle(settlement()));
    for _ in 0..2 {
        let error = store.flush(Duration::from_millis(20)).await.unwrap_err();
        let expected = "store timed out: settlements in progress: 1, lost since the last flush: 1";
        assert_eq!(error.to_string(), expected);
    }
    server.resume();
    let error = store.flush(HANG).await.unwrap_err();
    let expected = "store unavailable: settlements in progress: 0, lost since the last flush: 1";
    assert_eq!(error.to_string(), expected);
    store.flush(HANG).await.unwrap();
}

#[test]
fn while_requests_still_finish_flushes_lose_nothing_and_the_last_one_waits_for_all() {
    let store = || build(shared_store(), "flush-finishing");
    let layer = layer(store(), None);
    let runtime = runtime();
    runtime.block_on(async {
        let requests = InProgress::begin(&layer).await;
        let (is_over, over) = watch::channel(false);
        let (admin, at_once) = (layer.limiter().clone(), layer.limiter());
        let flushes = tokio::spawn(async move {
            while !*over.borrow() {
                // Some end in the middle, and two wait at the same time.
                let _ = tokio::join!(admin.flush(Duration::from_millis(1)), admin.flush(HANG));
                yield_now().await;
            }
        });
        let InProgress { requests, may_end } = requests;
        for _ in &requests {
            may_end.add_permits(1);
            yield_now().await;
        }
        join_all(requests.into_iter().map(async |request| drop(request.await.unwrap()))).await;
        is_over.send_replace(true);
        flushes.await.unwrap();
        at_once.flush(HANG).await.unwrap();
    });
    drop(runtime);
    assert_that_nobody_is_overcharged_or_holds_a_slot(store(), "finishing");
}

#[test]
fn what_a_runtime_has_left_unsent_is_reported_without_a_runtime_and_sent_in_another_one() {
    let store = || build(shared_store(), "flush-runtimes");
    let layer = layer(store(), None);
    let first = support::runtime();
    first.block_on(async {
        let answers = InProgress::begin(&layer).await.answer_together().await;
        // The costs are settled already. This settles the slots, after which no task runs.
        layer.limiter().flush(HANG).await.unwrap();
        drop(answers);
    });
    drop(first);
    let error = layer.limiter().flush(HANG).now_or_never().unwrap().unwrap_err();
    assert!(error.to_string().contains("settlements in progress: 200"), "{error}");
    runtime().block_on(layer.limiter().flush(HANG)).unwrap();
    assert_that_nobody_is_overcharged_or_holds_a_slot(store(), "runtimes");
}

#[test]
fn without_anything_to_send_a_flush_needs_neither_redis_nor_a_runtime() {
    let layer = layer(RedisStore::new("redis://127.0.0.1:1/").unwrap(), None);
    layer.limiter().flush(Duration::ZERO).now_or_never().unwrap().unwrap();
}

//! Prefetched units: never more than the quota, few left unused, and no request waits for long.

mod ahead;

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{join_all, poll_immediate},
};
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use test_kit::{Answered, TestStore, Timing, memory};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    time::Instant,
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Algorithm, ConfigErrorKind, Decision, Direction, Limiter, LimiterBuilder, Outcome, PolicySet,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Rules, StoreErrorKind, clock::Clock, key,
};

use super::support;

/// The estimated and the actual cost of a request.
#[derive(Clone, Copy, Debug)]
struct Cost {
    announced: u64,
    actual: u64,
}

impl Cost {
    const fn of(units: u64) -> Self {
        Self {
            announced: units,
            actual: units,
        }
    }
}

struct Scene {
    clock: Clock,
    store: TestStore,
}

/// After this time, all unspent units are refunded: they may be spent for a second, and are checked every 50 ms.
const GIVEN_BACK: Duration = Duration::from_millis(1_001);

impl Scene {
    fn new(timing: Timing) -> Self {
        let clock = test_kit::clock();
        let store = memory(&clock);
        Self {
            store: TestStore::new(store, timing),
            clock,
        }
    }

    /// A scene, and a layer with this policy.
    fn alone(timing: Timing, policy: QuotaPolicy) -> (Self, RateLimitLayer) {
        let scene = Self::new(timing);
        let layer = scene.layer([policy]);
        (scene, layer)
    }

    /// A scene of two layers with batches of at most 16 units, of which the first has spent 31: batches of 1, 2, 4, 8 and
    /// 16 units.
    async fn two(policy: QuotaPolicy) -> (Self, RateLimitLayer, RateLimitLayer) {
        let (scene, layer) = Self::alone(Timing::AtOnce, policy.clone());
        let other = scene.layer([policy]);
        assert_eq!(allowed(&layer, 31).await, 31);
        (scene, layer, other)
    }

    fn layer(&self, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
        layer_of(Limiter::builder(self.store.clone()).clock(self.clock.clone()), policies)
    }

    /// Advances the clock, and lets the refund task notice.
    async fn advance(&self, time: Duration) {
        self.clock.advance(time);
        pass(Duration::from_millis(101)).await;
    }
}

fn layer_of(limiter: LimiterBuilder, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
    let builder = RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope("prefetchs")
        .key(key::extension::<String>())
        .cost_by(|request| request.extensions.get::<Cost>().map_or(1, |cost| cost.announced));
    let builder = policies.into_iter().fold(builder, RateLimitLayerBuilder::policy);
    builder.build().unwrap()
}

async fn send_for(layer: &RateLimitLayer, user: &str, cost: Cost) -> Decision {
    let service = service_fn(async |request: Request<String>| {
        let mut response = Response::new(Full::<Bytes>::default());
        if let Some(cost) = request.extensions().get::<Cost>() {
            response.extensions_mut().insert(ActualCost(cost.actual));
        }
        Ok::<_, Infallible>(response)
    });
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(user.to_owned());
    request.extensions_mut().insert(cost);
    layer.layer(service).oneshot(request).await.unwrap().decision().clone()
}

async fn send(layer: &RateLimitLayer, units: u64) -> Decision {
    send_for(layer, "alice", Cost::of(units)).await
}

async fn outcome(layer: &RateLimitLayer) -> Outcome {
    send(layer, 1).await.outcome()
}

/// Sends requests of one unit, one after the other, and counts those that were allowed.
async fn allowed(layer: &RateLimitLayer, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        allowed += usize::from(outcome(layer).await == Outcome::Allowed);
    }
    allowed
}

/// The units that the store has left, without those that instances hold.
async fn left(layer: &RateLimitLayer) -> u64 {
    support::left(&layer.limiter().caller("alice"))
        .await
        .into_iter()
        .min()
        .unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    support::remaining(decision)[0]
}

/// A request that waits for an answer.
fn pending<T>(request: impl Future<Output = T>) -> Pin<Box<impl Future<Output = T>>> {
    let mut request = Box::pin(request);
    assert!((&mut request).now_or_never().is_none());
    request
}

/// Lets the time of a paused runtime pass, and all tasks see it.
async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

const fn daily(quota: u64, batch: u64) -> QuotaPolicy {
    QuotaPolicy::per_day("daily", quota)
        .with_algorithm(Algorithm::FixedWindow)
        .with_prefetch(batch)
}

#[test]
fn a_batch_that_cannot_be_is_rejected_with_its_bound() {
    let minute = || QuotaPolicy::per_minute("minute", 60).with_prefetch(2);
    let with = |algorithm| minute().with_algorithm(algorithm);
    let (buckets, requests) = ("only for token buckets and fixed windows", "only for requests");
    let bytes = minute().with_content_bytes(Direction::Response);
    let slots = QuotaPolicy::concurrent("minute", 60).with_prefetch(2);
    let cases = [
        (minute().with_prefetch(0), "0 is outside 1..=60", ""),
        (
            minute().with_burst_capacity(5).with_prefetch(6),
            "6 is outside 1..=5",
            "",
        ),
        (
            with(Algorithm::StrictTokenBucket),
            "2: not supported for StrictTokenBucket, ",
            buckets,
        ),
        (
            with(Algorithm::SlidingWindowLog),
            "2: not supported for SlidingWindowLog, ",
            buckets,
        ),
        (bytes, "2: not supported for ContentBytes(Response), ", requests),
        (slots, "2: not supported for ConcurrentRequests, ", requests),
    ];
    for (policy, message, end) in cases {
        let error = PolicySet::new([policy]).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Prefetch);
        let expected = format!(r#"policy "minute": prefetch {message}{end}"#);
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_and_with_batches_of_one_unit_or_other_policies_every_request_asks_the_store() {
    let hourly = || QuotaPolicy::per_hour("hourly", 100);
    for policies in [
        vec![daily(100, 1)],
        vec![QuotaPolicy::per_day("daily", 100)],
        vec![daily(1_000, 100), hourly()],
        vec![daily(1_000, 100), hourly().with_prefetch(10).shadow()],
        vec![daily(1_000, 100), QuotaPolicy::concurrent("at once", 50)],
    ] {
        let scene = Scene::new(Timing::Later);
        let layer = scene.layer(policies.clone());
        assert_eq!(allowed(&layer, 90).await, 90);
        // Only slots are given back.
        let slots = policies.iter().filter(|policy| policy.name() == "at once").count();
        let asked = (scene.store.calls(), scene.store.settlements());
        assert_eq!(asked, (90, 90 * slots), "{policies:?}");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_spent_within_a_second_is_given_back_and_the_task_ends() {
    let scene = Scene::new(Timing::Later);
    let layers = [scene.layer([daily(1_000, 100)]), scene.layer([daily(1_000, 100)])];
    let spent = allowed(&layers[0], 70).await + allowed(&layers[1], 40).await;
    let spent = spent as u64;
    assert!(left(&layers[0]).await < 1_000 - spent, "a part of a batch is held");
    assert!(Handle::current().metrics().num_alive_tasks() > 0);

    scene.advance(GIVEN_BACK).await;
    assert_eq!(left(&layers[0]).await, 1_000 - spent);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);

    // The layer continues as before.
    assert_eq!(allowed(&layers[0], 1_000).await as u64, 1_000 - spent);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_fixed_window_is_not_spent_in_the_next_one() {
    let scene = Scene::new(Timing::Later);
    let policy = QuotaPolicy::new("p", 100, Duration::from_secs(10)).with_algorithm(Algorithm::FixedWindow);
    let layer = scene.layer([policy.with_prefetch(50)]);
    scene.advance(Duration::from_millis(9_950)).await;
    // 1, 2 and 4 units
    assert_eq!(allowed(&layer, 5).await, 5);
    assert_eq!(left(&layer).await, 93);
    scene.advance(Duration::from_millis(50)).await;
    assert_eq!(allowed(&layer, 2).await, 2);
    // A new batch, of 8 units.
    assert_eq!(left(&layer).await, 92);
}

#[tokio::test(start_paused = true)]
async fn partitions_are_bounded_in_number_and_who_makes_room_gives_back() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 100));
    for user in 0..20_000 {
        for _ in 0..2 {
            let decision = send_for(&layer, &format!("user {user}"), Cost::of(1)).await;
            assert_eq!(decision.outcome(), Outcome::Allowed);
        }
    }
    let given_back = scene.store.settlements();
    assert!((20_000 - 16_384..20_000).contains(&given_back), "{given_back}");
}

#[tokio::test(start_paused = true)]
async fn what_a_request_did_not_use_and_what_it_used_more_is_settled_once() {
    let (scene, layer) = Scene::alone(Timing::Later, daily(10_000, 100));
    let mut used = 0;
    for number in 0..200 {
        let actual = number % 7;
        let cost = Cost { announced: 3, actual };
        assert_eq!(send_for(&layer, "alice", cost).await.outcome(), Outcome::Allowed);
        used += actual;
    }
    scene.advance(GIVEN_BACK).await;
    assert_eq!(left(&layer).await, 10_000 - used);
    drop(layer);
    assert_eq!(left(&scene.layer([daily(10_000, 100)])).await, 10_000 - used);
}

#[tokio::test(start_paused = true)]
async fn new_rules_are_not_served_from_old_blocks() {
    let (scene, layer) = Scene::alone(Timing::Later, daily(1_000, 100));
    assert_eq!(allowed(&layer, 70).await, 70);
    let replace = |rules| layer.limiter().rules().replace(rules).unwrap();
    replace(Rules::new().policy(daily(80, 10)));
    assert_eq!(allowed(&layer, 70).await, 10);
    scene.advance(GIVEN_BACK).await;
    assert_eq!(left(&layer).await, 0);

    let hourly = QuotaPolicy::per_hour("hourly", 50).with_prefetch(10);
    replace(Rules::new().policy(hourly.clone()));
    assert_eq!(allowed(&layer, 30).await, 30);
    assert!(left(&layer).await < 20, "a part of a batch is held");
    replace(Rules::new().policy(hourly).policy(daily(200, 100)));
    assert_eq!(allowed(&layer, 30).await, 20);
}

#[tokio::test(start_paused = true)]
async fn a_reset_leaves_nothing_in_advance_and_nothing_to_give_back() {
    let (scene, layer) = Scene::alone(Timing::Later, daily(1_000, 100));
    assert_eq!(allowed(&layer, 70).await, 70);
    layer.limiter().caller("alice").reset().await.unwrap();
    assert_eq!(left(&layer).await, 1_000);

    let calls = scene.store.calls();
    assert_eq!(remaining(&send(&layer, 1).await), 999);
    assert_eq!(scene.store.calls(), calls + 1);
    scene.advance(GIVEN_BACK).await;
    assert_eq!((left(&layer).await, scene.store.settlements()), (999, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_taken_while_a_reset_is_under_way_does_not_outlive_it() {
    let scene = Scene::new(Timing::Later);
    let (layer, other) = (scene.layer([daily(1_000, 100)]), scene.layer([daily(1_000, 100)]));
    assert_eq!(allowed(&layer, 70).await, 70);
    let permits = Arc::new(Semaphore::new(0));
    scene.store.hold_resets(Arc::clone(&permits));
    let reset = tokio::spawn({
        let admin = layer.limiter().clone();
        async move { admin.caller("alice").reset().await }
    });
    tokio::task::yield_now().await;
    assert_eq!(allowed(&layer, 70).await, 70);
    permits.add_permits(1);
    reset.await.unwrap().unwrap();

    // Units that are spent from now on are charged, and refunded units had been charged.
    let spent = allowed(&layer, 20).await + allowed(&other, 50).await;
    let calls = scene.store.calls();
    assert_eq!(allowed(&layer, 200).await, 200);
    assert!(scene.store.calls() < calls + 10, "it takes batches again");
    drop(layer);
    scene.advance(GIVEN_BACK).await;
    assert_eq!(left(&other).await, 1_000 - spent as u64 - 200);
}

/// A layer that takes its next batch of 16 units when there is a permit.
async fn waiting_scene() -> (Scene, RateLimitLayer, Arc<Semaphore>) {
    let (scene, layer, _) = Scene::two(daily(1_000, 16)).await;
    let permits = Arc::new(Semaphore::new(0));
    scene.store.set(Timing::Held(Arc::clone(&permits)));
    (scene, layer, permits)
}

#[tokio::test(start_paused = true)]
async fn requests_for_which_a_batch_has_no_units_do_not_wait_for_it() {
    let (scene, layer, permits) = waiting_scene().await;
    let calls = scene.store.calls();
    let requests: Vec<_> = (0..20).map(|_| pending(outcome(&layer))).collect();
    assert_eq!(scene.store.calls(), calls + 1 + 4);
    permits.add_permits(5);
    assert_eq!(join_all(requests).await, [Outcome::Allowed; 20]);
}

#[tokio::test(start_paused = true)]
async fn when_the_request_that_takes_a_batch_is_cancelled_the_others_have_it_all_the_same() {
    let (scene, layer, permits) = waiting_scene().await;
    let calls = scene.store.calls();
    let mut requests: Vec<_> = (0..10).map(|_| pending(outcome(&layer))).collect();
    drop(requests.drain(..5));
    permits.add_permits(1);
    assert_eq!(join_all(requests).await, [Outcome::Allowed; 5]);
    // X34: the five that were cancelled have spent their units.
    assert_eq!(allowed(&layer, 6).await, 6);
    assert_eq!(scene.store.calls(), calls + 1);
    assert_eq!(left(&layer).await, 1_000 - 31 - 16);
    permits.add_permits(1);
    assert_eq!(allowed(&layer, 1).await, 1);
    assert_eq!(scene.store.calls(), calls + 2, "the batch is used up");
}

#[tokio::test(start_paused = true)]
async fn a_batch_for_which_no_request_waits_any_more_is_not_lost_but_for_what_was_asked_for() {
    let (scene, layer, permits) = waiting_scene().await;
    let request = pending(outcome(&layer));
    drop(request);
    permits.add_permits(1);
    pass(Duration::from_millis(1)).await;
    assert_eq!(left(&layer).await, 1_000 - 31 - 16);
    scene.advance(GIVEN_BACK).await;
    assert_eq!(left(&layer).await, 1_000 - 31 - 1);
}

/// The rejection of the batch was decided before the refund, and the request has come after it.
#[tokio::test(start_paused = true)]
async fn what_was_given_back_is_there_for_a_request_that_joins_a_batch_afterwards() {
    let (scene, layer, other) = Scene::two(daily(100, 16)).await;
    let alice = layer.limiter().caller(&"alice".to_owned());
    let open = alice.cost(20).hold().await.unwrap();
    assert_eq!(left(&layer).await, 49);
    assert_eq!(send(&other, 49).await.outcome(), Outcome::Allowed);

    let permits = Arc::new(Semaphore::new(0));
    scene.store.set(Timing::Told(Arc::clone(&permits)));
    let _before = pending(outcome(&layer));
    tokio::task::yield_now().await;
    assert!(scene.store.asked() > 1, "it takes a batch");
    scene.clock.advance(Duration::from_millis(1));
    open.settle(0);
    let after = pending(outcome(&layer));
    permits.add_permits(9);
    assert_eq!(after.await, Outcome::Allowed);
}

/// The same for a cost that is known late: the store rejects for longer than when it rejected the batch.
#[tokio::test(start_paused = true)]
async fn a_request_that_joins_a_batch_after_a_late_charge_waits_as_long_as_the_store_says() {
    let minute = QuotaPolicy::per_minute("minute", 100).with_prefetch(16);
    let (scene, layer, other) = Scene::two(minute).await;
    let open = layer.limiter().caller(&"alice".to_owned()).hold().await.unwrap();
    let all = left(&layer).await;
    assert_eq!(send(&other, all).await.outcome(), Outcome::Allowed);

    let permits = Arc::new(Semaphore::new(0));
    scene.store.set(Timing::Told(Arc::clone(&permits)));
    while let Some(held) = poll_immediate(Box::pin(outcome(&layer))).await {
        assert_eq!(held, Outcome::Allowed);
    }
    tokio::task::yield_now().await;
    assert!(scene.store.asked() > 1, "it takes a batch");
    scene.clock.advance(Duration::from_millis(1));
    open.settle(1_000);
    let after = pending(send(&layer, 1));
    permits.add_permits(9);
    // A debt of a hundred units, and one more.
    let wait = after.await.retry_after().unwrap();
    assert!(wait > Duration::from_secs(60), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_charged_late_is_not_shown_as_left_by_the_batch() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 16));
    assert_eq!(allowed(&layer, 20).await, 20);
    let late = Cost {
        announced: 1,
        actual: 101,
    };
    let calls = scene.store.calls();
    assert_eq!(remaining(&send_for(&layer, "alice", late).await), 1_000 - 20 - 101);
    assert_eq!(remaining(&send(&layer, 1).await), 1_000 - 20 - 101 - 1);
    assert_eq!(scene.store.calls(), calls, "both are served from a batch");
}

/// L9
#[tokio::test(start_paused = true)]
async fn nobody_waits_past_the_deadline_for_a_batch_and_the_failure_mode_holds() {
    for (timing, wait) in [
        (Timing::Hanging, 50),
        (Timing::FailingLater(StoreErrorKind::Unreachable), 0),
    ] {
        let (scene, layer, _) = waiting_scene().await;
        scene.store.set(timing);
        let (calls, start) = (scene.store.calls(), Instant::now());
        let outcomes = join_all((0..16).map(|_| outcome(&layer))).await;
        assert_eq!(outcomes, [Outcome::FailedOpen; 16]);
        assert_eq!(scene.store.calls(), calls + 1);
        let waited = start.elapsed().as_millis();
        assert!((wait..=wait + 2).contains(&waited), "{waited} ms");
    }
}

/// L9: even if a request learns too late that it needs a separate call.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_batch_and_asking_alone_end_together_at_the_deadline() {
    let (scene, layer, permits) = waiting_scene().await;
    let start = Instant::now();
    let requests = tokio::spawn({
        let layer = layer.clone();
        async move { join_all((0..10).map(|_| outcome(&layer))).await }
    });
    pass(Duration::from_millis(30)).await;
    // The batch is void, and the store stops responding.
    layer.limiter().caller("alice").reset().await.unwrap();
    scene.store.set(Timing::Hanging);
    permits.add_permits(1);
    assert_eq!(requests.await.unwrap(), [Outcome::FailedOpen; 10]);
    assert!(start.elapsed() <= Duration::from_millis(52), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_spent_while_the_circuit_is_open() {
    let (scene, layer) = Scene::alone(Timing::Later, daily(1_000, 16));
    // 1, 2, 4 and 8 units, and one of 16.
    assert_eq!(allowed(&layer, 16).await, 16);
    scene.store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    for _ in 0..5 {
        let decision = send_for(&layer, "bob", Cost::of(1)).await;
        assert_eq!(decision.outcome(), Outcome::FailedOpen);
    }
    let calls = scene.store.calls();
    assert_eq!(allowed(&layer, 20).await, 15);
    assert_eq!(outcome(&layer).await, Outcome::FailedOpen);
    assert_eq!(scene.store.calls(), calls, "the circuit is open");
}

#[tokio::test(start_paused = true)]
async fn a_fallback_decides_about_each_request_and_not_about_blocks() {
    let scene = Scene::new(Timing::AtOnce);
    let fallback = TestStore::new(memory(&scene.clock), Timing::Later);
    let limiter = Limiter::builder(scene.store.clone()).clock(scene.clock.clone());
    let layer = layer_of(limiter.fallback(fallback.clone()), [daily(1_000, 16)]);
    assert_eq!(allowed(&layer, 31).await, 31);
    scene.store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    assert_eq!(join_all((0..20).map(|_| outcome(&layer))).await, [Outcome::Allowed; 20]);
    assert_eq!(fallback.calls(), 20);
    let shown = remaining(&send(&layer, 1).await);
    assert_eq!(shown, 1_000 - 21);
}

/// A request with an impossible cost does not make the others call the store again.
#[tokio::test(start_paused = true)]
async fn a_cost_that_does_not_fit_with_what_is_held_either_leaves_the_batch_alone() {
    for cost in [2_000, 990] {
        let (scene, layer) = Scene::alone(Timing::Later, daily(1_000, 100));
        assert_eq!(allowed(&layer, 130).await, 130);
        let (before, calls) = (left(&layer).await, scene.store.calls());
        assert!(before < 870, "a part of a batch is held");
        for _ in 0..5 {
            assert_eq!(send(&layer, cost).await.outcome(), Outcome::Rejected);
        }
        assert_eq!((left(&layer).await, scene.store.settlements()), (before, 0), "{cost}");
        assert_eq!(scene.store.calls(), calls + 1, "{cost}");
        // The cached rejection does not contain the remaining units, so the next call fetches a batch again.
        while scene.store.calls() == calls + 1 {
            assert_eq!(outcome(&layer).await, Outcome::Allowed);
        }
        assert_eq!(scene.store.asked(), 100);
        scene.advance(GIVEN_BACK).await;
        let left = left(&layer).await;
        assert_eq!(allowed(&layer, 1_000).await as u64, left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_rejected_once_the_batch_is_used_up_asks_once() {
    let (scene, layer, other) = Scene::two(daily(1_000, 16)).await;
    assert_eq!(send(&other, 1_000 - 31).await.outcome(), Outcome::Allowed);
    // The next batch is rejected, and the call after that does not request a batch.
    assert_eq!(outcome(&layer).await, Outcome::Rejected);
    let calls = scene.store.calls();
    assert_eq!(outcome(&layer).await, Outcome::Rejected);
    assert_eq!((scene.store.calls(), scene.store.settlements()), (calls + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rest_and_what_the_store_has_left_are_enough_together_also_when_a_batch_is_rejected() {
    let (scene, layer, other) = Scene::two(daily(1_000, 16)).await;
    // Of another 16.
    assert_eq!(allowed(&layer, 13).await, 13);
    assert_eq!(send(&other, 1_000 - 47 - 3).await.outcome(), Outcome::Allowed);
    let calls = scene.store.calls();
    assert_eq!(send(&layer, 5).await.outcome(), Outcome::Allowed);
    // A batch, alone, and alone with the rest.
    assert_eq!(scene.store.calls(), calls + 3);
    assert_eq!(allowed(&layer, 5).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_rest_counts_towards_the_batch_that_may_be_held() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 16));
    assert_eq!(allowed(&layer, 31 + 13).await, 44);
    assert_eq!(send(&layer, 5).await.outcome(), Outcome::Allowed);
    assert_eq!(scene.store.asked(), 16 - 3);
}

/// Units that were restored over time are not refunded again, and no other unit is withheld.
#[tokio::test(start_paused = true)]
async fn what_a_bucket_is_given_back_late_is_what_was_not_spent() {
    let scene = Scene::new(Timing::AtOnce);
    let policy = QuotaPolicy::per_second("p", 100).with_burst_capacity(60);
    let layer = scene.layer([policy.with_prefetch(20)]);
    // Batches of 1, 2 and 4, and one of another 8.
    assert_eq!(allowed(&layer, 8).await, 8);
    assert_eq!((scene.store.asked(), left(&layer).await), (8, 45));
    // Ten units later, of which two were not needed.
    scene.advance(Duration::from_millis(100)).await;
    assert_eq!((scene.store.settlements(), left(&layer).await), (1, 60));
}

#[tokio::test(start_paused = true)]
async fn when_a_clock_was_set_back_what_is_held_is_given_back() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 100));
    scene.advance(Duration::from_secs(10)).await;
    assert_eq!(allowed(&layer, 70).await, 70);
    assert!(left(&layer).await < 930);
    scene.clock.set(test_kit::clock().now());
    scene.advance(Duration::from_secs(5)).await;
    assert_eq!(left(&layer).await, 930);
}

#[test]
fn without_a_runtime_nothing_is_taken_in_advance() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 100));
    assert_eq!(allowed(&layer, 50).now_or_never(), Some(50));
    assert_eq!(scene.store.calls(), 50);
}

#[test]
fn the_task_that_gives_back_may_end_with_its_runtime_and_is_started_anew() {
    let (scene, layer) = Scene::alone(Timing::Later, daily(1_000, 100));
    let (first, second) = (paused(), paused());
    assert_eq!(first.block_on(allowed(&layer, 70)), 70);
    drop(first);
    second.block_on(async {
        // 1, 2 and 4 units of another caller
        for _ in 0..5 {
            send_for(&layer, "bob", Cost::of(1)).await;
        }
        assert!(left(&layer).await < 930);
        scene.advance(GIVEN_BACK).await;
        assert_eq!(left(&layer).await, 930);
    });
}

#[test]
fn a_batch_that_was_under_way_when_its_runtime_ended_keeps_nobody_waiting() {
    let (first, second) = (paused(), paused());
    let (scene, layer, _) = first.block_on(waiting_scene());
    let _waiting: Vec<_> = first.block_on(async { (0..3).map(|_| pending(outcome(&layer))).collect() });
    drop(first);
    scene.store.set(Timing::Later);
    second.block_on(async {
        assert_eq!(allowed(&layer, 20).await, 20);
    });
}

#[derive(Clone, Debug)]
enum Event {
    Send { instance: usize, costs: Vec<Cost> },
    Advance(Duration),
}

fn cost() -> impl Strategy<Value = Cost> {
    let announced = prop_oneof![4 => Just(1), 1 => 1_u64..=9];
    let of = |announced: u64| {
        let actual = prop_oneof![4 => Just(announced), 1 => 0..=announced];
        actual.prop_map(move |actual| Cost { announced, actual })
    };
    announced.prop_flat_map(of)
}

fn events(longest: u64) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..INSTANCES, prop::collection::vec(cost(), 1..20))
            .prop_map(|(instance, costs)| Event::Send { instance, costs }),
        1 => prop_oneof![1..longest / 20, 1..longest].prop_map(|millis| Event::Advance(Duration::from_millis(millis))),
    ];
    prop::collection::vec(event, 1..60)
}

const INSTANCES: usize = 3;

/// Has instances do all this, with what each event lets pass handed to `seen`.
async fn simulate(
    policy: &QuotaPolicy,
    timing: Timing,
    events: Vec<Event>,
    mut seen: impl AsyncFnMut(&RateLimitLayer, u64, u64),
) {
    let scene = Scene::new(timing);
    let layers: Vec<_> = (0..INSTANCES).map(|_| scene.layer([policy.clone()])).collect();
    for event in events {
        match event {
            Event::Send { instance, costs } => {
                let layer = &layers[instance];
                let sent = costs.iter().map(|cost| async {
                    let decision = send_for(layer, "alice", *cost).await;
                    assert!(matches!(decision.outcome(), Outcome::Allowed | Outcome::Rejected));
                    if decision.outcome() == Outcome::Allowed {
                        cost.actual
                    } else {
                        0
                    }
                });
                let spent = join_all(sent).await.iter().sum();
                seen(layer, scene.clock.now().as_micros(), spent).await;
            }
            Event::Advance(time) => scene.advance(time).await,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// L11
    #[test]
    fn no_fixed_window_sees_more_than_its_quota_and_no_more_is_held_than_a_batch_by_each_instance(
        events in events(4_000),
        is_later: bool,
    ) {
        let batch = 40;
        let policy = QuotaPolicy::new("p", 200, Duration::from_secs(10))
            .with_algorithm(Algorithm::FixedWindow)
            .with_prefetch(batch);
        let timing = if is_later { Timing::Later } else { Timing::AtOnce };
        paused().block_on(async {
            let mut spent_in = HashMap::new();
            simulate(&policy, timing, events, async |layer: &RateLimitLayer, now: u64, spent: u64| {
                let used = spent_in.entry(now / 10_000_000).or_insert(0);
                *used += spent;
                let charged = 200 - left(layer).await;
                assert!(*used <= charged, "{used} of {charged}");
                let held = charged - *used;
                assert!(held <= INSTANCES as u64 * batch, "{held} are held");
            })
            .await;
        });
    }

    /// L11
    #[test]
    fn a_bucket_lets_no_more_pass_than_it_holds_and_its_rate_gives_with_the_time_of_a_batch_before(
        events in events(400),
        is_later: bool,
    ) {
        let (capacity, rate, batch) = (60, 100, 20);
        let policy = QuotaPolicy::per_second("p", rate).with_burst_capacity(capacity).with_prefetch(batch);
        let timing = if is_later { Timing::Later } else { Timing::AtOnce };
        paused().block_on(async {
            let mut spent_at: Vec<(u64, u64)> = Vec::new();
            simulate(&policy, timing, events, async |_: &RateLimitLayer, now: u64, spent: u64| {
                spent_at.push((now, spent));
            })
            .await;
            // A tenth of the window.
            let lifetime = 100_000;
            for (position, (from, _)) in spent_at.iter().enumerate() {
                let mut sum = 0;
                for (to, spent) in &spent_at[position..] {
                    sum += spent;
                    let given = |micros: u64| rate * micros / 1_000_000;
                    let by_time = capacity + given(to - from + lifetime);
                    let by_number = capacity + given(to - from) + INSTANCES as u64 * batch;
                    assert!(sum <= by_time.min(by_number), "{sum} in {} µs", to - from);
                }
            }
        });
    }

    /// With a stopped clock. The remaining units are also the same, except for held units that were too few for a
    /// request.
    #[test]
    fn an_instance_alone_decides_as_if_each_request_asked_the_store(
        costs in prop_oneof![
            1 => prop::collection::vec(Just(1_u64), 1..600),
            4 => prop::collection::vec(prop_oneof![4 => Just(1_u64), 1 => 0_u64..=40], 1..300),
        ],
        is_fixed: bool,
    ) {
        let policy = QuotaPolicy::per_minute("p", 500);
        let policy = if is_fixed { policy.with_algorithm(Algorithm::FixedWindow) } else { policy };
        let is_mixed = costs.iter().any(|units| *units != 1);
        paused().block_on(async {
            let scenes = [Scene::new(Timing::AtOnce), Scene::new(Timing::AtOnce)];
            let layers = [
                scenes[0].layer([policy.clone(), policy.clone().with_name("q")]),
                scenes[1].layer([policy.clone().with_prefetch(50), policy.clone().with_name("q").with_prefetch(90)]),
            ];
            for units in costs {
                let [exact, leased] = [send(&layers[0], units).await, send(&layers[1], units).await];
                assert_eq!(exact.outcome(), leased.outcome());
                let shown = remaining(&leased)..=remaining(&leased) + 49 * u64::from(is_mixed);
                assert!(shown.contains(&remaining(&exact)), "{exact:?} {leased:?}");
            }
            assert!(scenes[1].store.calls() <= scenes[0].store.calls() + 100);
        });
    }
}

/// L11, L25
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_in_parallel_let_exactly_the_quota_of_one_redis_pass() {
    const QUOTA: usize = 4_000;

    let prefix = format!("prefetchs {}:", std::process::id());
    let instances: Vec<_> = (0..4)
        .map(|_| {
            let store = crate::shared_store().key_prefix(&prefix).build();
            let store = TestStore::new(store.unwrap(), Timing::AtOnce);
            let policy = QuotaPolicy::new("p", QUOTA as u64, Duration::from_secs(1_000_000_000))
                .with_algorithm(Algorithm::FixedWindow)
                .with_prefetch(100);
            let limiter = Limiter::builder(store.clone()).deadline(Duration::from_secs(30));
            (store, layer_of(limiter, [policy]))
        })
        .collect();
    let layers = || instances.iter().map(|(_, layer)| layer);
    let calls = || instances.iter().map(|(store, _)| store.calls()).sum::<usize>();

    let mut total = 0;
    for _ in 0..7 {
        let sent = layers().flat_map(|layer| (0..4).map(move |_| (layer.clone(), 25)));
        let sent = sent.map(|(layer, requests)| tokio::spawn(async move { allowed(&layer, requests).await }));
        total += join_all(sent).await.into_iter().map(Result::unwrap).sum::<usize>();
    }
    assert_eq!(total, 2_800, "while there is enough, all pass");
    assert!(calls() < 1_400, "{} calls", calls());

    // Units that one instance holds become available to another once they are refunded.
    let end = Instant::now() + Duration::from_secs(20);
    while total < QUOTA && Instant::now() < end {
        let sent = layers().map(|layer| allowed(layer, 100));
        total += join_all(sent).await.into_iter().sum::<usize>();
        assert!(total <= QUOTA, "{total}");
    }
    assert_eq!(total, QUOTA);
}

#[tokio::test(start_paused = true)]
async fn a_flush_gives_back_the_units_that_are_held_and_those_that_are_under_way() {
    let (scene, layer) = Scene::alone(Timing::AtOnce, daily(1_000, 100));
    assert_eq!(allowed(&layer, 20).await, 20);
    let held = 980 - left(&layer).await;
    assert!(held > 0);
    for _ in 0..2 {
        layer.limiter().flush(Duration::from_secs(5)).await.unwrap();
        assert_eq!(left(&layer).await, 980);
    }

    let answers = Arc::new(Semaphore::new(0));
    scene.store.set(Timing::Told(Arc::clone(&answers)));
    let mut request = pin!(outcome(&layer));
    assert!(poll_immediate(&mut request).await.is_none());
    pass(Duration::from_millis(1)).await;
    assert!(scene.store.asked() > 1, "{}", scene.store.asked());
    let admin = layer.limiter();
    let mut flush = pin!(admin.flush(Duration::from_secs(5)));
    assert!(poll_immediate(&mut flush).await.is_none());

    // While the flush is pending, nothing more is prefetched.
    scene.store.set(Timing::AtOnce);
    assert_eq!(outcome(&layer).await, Outcome::Allowed);
    assert_eq!(scene.store.asked(), 1);

    answers.add_permits(1);
    assert_eq!(request.await, Outcome::Allowed);
    flush.await.unwrap();
    assert_eq!(left(&layer).await, 978);

    let calls = scene.store.calls();
    assert_eq!(allowed(&layer, 100).await, 100);
    assert!(scene.store.calls() - calls < 50, "{}", scene.store.calls() - calls);
}

//! Checks outside HTTP: checks decide as the layer does, and permits hold what was charged.

use futures_util::future::join_all;
use proptest::prelude::*;
use test_kit::RemoteStore;
use tokio_test::{assert_pending, assert_ready, task};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Access, AccessList, Algorithm, Caller, Decision, FailureMode, MissingKey, Outcome, Refund, RefundOutcome, Rules,
    WithPermit,
};

use super::{contract::hanging, *};

impl Scene {
    /// A limiter with the scope, the store and the policies of the layer.
    fn limiter_builder(&self) -> LimiterBuilder {
        self.limiter_builder_on(self.store.clone())
    }

    fn limiter_builder_on(&self, store: impl Store) -> LimiterBuilder {
        let builder = Limiter::builder(store).scope("layer").clock(self.clock.clone());
        let builder = builder.deadline(Duration::from_secs(60));
        self.policies.iter().cloned().fold(builder, LimiterBuilder::policy)
    }

    fn limiter(&self) -> Limiter {
        self.limiter_builder().build().unwrap()
    }

    fn caller(&self) -> Caller {
        self.limiter().caller(&everybody())
    }
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

async fn held(caller: &Caller) -> Permit {
    caller.hold().await.unwrap()
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
    ])
}

/// The setting of the short window that is tested.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Shadow,
    Lockout,
    Closed,
}

fn policies(algorithm: Algorithm, kind: Kind, quota: u64) -> Vec<QuotaPolicy> {
    let short = QuotaPolicy::new("short", quota, Duration::from_secs(30)).with_algorithm(algorithm);
    let short = match kind {
        Kind::Plain => short,
        Kind::Shadow => short.shadow(),
        Kind::Lockout => short.with_lockout(Duration::from_secs(45)),
        Kind::Closed => QuotaPolicy::new("short", 0, Duration::from_secs(30)).with_algorithm(algorithm),
    };
    vec![short, QuotaPolicy::per_hour("hour", 25)]
}

/// A layer on a remote store, so that rejections are cached.
fn remote_layer(scene: &Scene) -> RateLimitLayer {
    let cost = |request: &http::request::Parts| *request.extensions.get().unwrap();
    let limiter = Limiter::builder(RemoteStore::<1>(scene.store.clone())).clock(scene.clock.clone());
    builder_of(limiter, &scene.policies).cost_by(cost).build().unwrap()
}

async fn requested(layer: &RateLimitLayer, cost: u64) -> Decision {
    let mut request = request();
    request.extensions_mut().insert(cost);
    let response = layer.layer(service_fn(hello)).oneshot(request).await.unwrap();
    response.extensions().get().cloned().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// One scene sends requests; the other checks or acquires slots for some of them. Rules change in between.
    #[test]
    fn a_check_decides_as_a_request_would(
        algorithm in algorithms(),
        kind in prop::sample::select(vec![Kind::Plain, Kind::Shadow, Kind::Lockout, Kind::Closed]),
        steps in prop::collection::vec((0..7_u8, 0..4_u64, 0..20_u64), 1..60),
    ) {
        let first = policies(algorithm, kind, 6);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (scene, model) = (Scene::new(first.clone()), Scene::new(first));
            let (layer, modelled) = (remote_layer(&scene), remote_layer(&model));
            let caller = layer.limiter().caller(&everybody());
            let mut quota = 6;
            for (way, cost, seconds) in steps {
                let caller = caller.clone().cost(cost);
                let decision = match way {
                    0 | 1 => requested(&layer, cost).await,
                    2 | 3 => caller.check().await,
                    4 | 5 => caller.hold().await.map_or_else(|rejected| rejected, |permit| permit.decision().clone()),
                    _ => {
                        quota = 3 + seconds % 5;
                        let rules = policies(algorithm, kind, quota).into_iter().fold(Rules::new(), Rules::policy);
                        for layer in [&layer, &modelled] {
                            layer.limiter().rules().replace(rules.clone()).unwrap();
                        }
                        continue;
                    }
                };
                let expected = requested(&modelled, cost).await;
                let seen = |decision: &Decision| (decision.outcome(), remaining(decision), decision.retry_after());
                assert_eq!(seen(&decision), seen(&expected), "{quota}");
                for scene in [&scene, &model] {
                    scene.clock.advance(Duration::from_secs(seconds));
                }
            }
        });
    }

    /// Batches that are prefetched serve checks, too, and no unit is spent twice or lost.
    #[test]
    fn checks_and_requests_spend_prefetched_units_once(
        steps in prop::collection::vec((0..4_u8, 1..4_u64), 1..120),
    ) {
        let daily = QuotaPolicy::per_day("day", 60).with_algorithm(Algorithm::FixedWindow).with_prefetch(16);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let scene = Scene::new([daily]);
            let layer = remote_layer(&scene);
            let caller = layer.limiter().caller(&everybody());
            let mut admitted = 0;
            for (way, cost) in steps {
                let caller = caller.clone().cost(cost);
                let charged = |decision: Decision| if decision.outcome() == Outcome::Allowed { cost } else { 0 };
                admitted += match way {
                    0 => charged(requested(&layer, cost).await),
                    1 => charged(caller.check().await),
                    2 => caller.partial().check().await.granted(),
                    _ => match caller.hold().await {
                        Ok(permit) => {
                            permit.refund();
                            0
                        }
                        Err(_) => 0,
                    },
                };
            }
            layer.limiter().flush(Duration::from_secs(60)).await.unwrap();
            assert_eq!(scene.left().await, [60 - admitted]);
        });
    }
}

#[tokio::test]
async fn a_check_reads_a_concurrency_policy_and_a_permit_holds_a_slot_of_it() {
    let scene = Scene::new([QuotaPolicy::concurrent("slots", 1), QuotaPolicy::per_hour("hour", 100)]);
    let caller = scene.caller();
    let permit = held(&caller).await;
    assert_eq!(remaining(permit.decision()), [0, 99]);
    let checked = caller.check().await;
    assert_eq!(checked.outcome(), Outcome::Allowed);
    assert_eq!(remaining(&checked), [0, 98]);
    let rejected = caller.hold().await.unwrap_err();
    assert_eq!(rejected.violated().next().unwrap().policy().name(), "slots");
    drop(permit);
    assert_eq!(scene.left().await, [1, 98]);
}

#[tokio::test]
async fn a_permit_settles_its_charge_once() {
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 100), QuotaPolicy::concurrent("slots", 5)]);
    let caller = scene.caller().cost(10);
    for (end, left) in [
        (drop as fn(Permit), 90),
        (|permit| permit.settle(3), 87),
        (|permit| permit.settle(25), 62),
        (Permit::refund, 62),
    ] {
        let permit = held(&caller).await;
        assert_eq!(scene.left().await[1], 4);
        end(permit);
        assert_eq!(scene.left().await, [left, 5]);
    }
}

#[tokio::test]
async fn amounts_that_a_permit_reports_are_charged_in_place_of_the_estimate() {
    let scene = Scene::new([QuotaPolicy::per_hour("rows", 1_000).with_unit("rows")]);
    let caller = scene.caller().units("rows", 100);
    let permit = held(&caller).await;
    assert!(permit.add("rows", 30) && permit.add("rows", 10) && !permit.add("columns", 1));
    drop(permit);
    assert_eq!(scene.left().await, [960]);
    drop(held(&caller).await);
    assert_eq!(scene.left().await, [860], "without a report the estimate stands");
    // More than twice the charge is charged while it grows.
    let permit = held(&caller).await;
    assert!(permit.set("rows", 500));
    assert_eq!(scene.left().await, [360]);
    permit.refund();
    assert_eq!(scene.left().await, [360], "what was reported was used");
}

/// There is room for the amounts of three units, and those that are counted have it.
#[tokio::test]
async fn a_unit_that_no_policy_counts_takes_no_place_and_one_without_an_estimate_can_be_reported() {
    let scene = Scene::new([QuotaPolicy::per_hour("rows", 1_000).with_unit("rows")]);
    let caller = scene.caller();
    let many = ["a", "b", "c"]
        .into_iter()
        .fold(caller.clone(), |caller, unit| caller.units(unit, 9));
    assert_eq!(remaining(&many.units("rows", 300).check().await), [700]);
    let permit = held(&caller).await;
    assert!(permit.add("rows", 200) && !permit.add("a", 1));
    drop(permit);
    assert_eq!(scene.left().await, [500]);
}

#[tokio::test]
async fn a_refund_takes_neither_cost_nor_units_of_its_caller_and_its_id_has_no_order_of_keys() {
    let scene = Scene::new([
        QuotaPolicy::per_hour("user", 10),
        QuotaPolicy::per_hour("team", 10).keyed_by("team"),
        QuotaPolicy::per_hour("rows", 10).keyed_by("office").with_unit("rows"),
    ]);
    let builder = scene.limiter_builder().named_key("team").named_key("office");
    let limiter = builder.build().unwrap();
    let caller = limiter.caller("alice").keyed_by("team", "red").keyed_by("office", "1");
    let other_way = limiter.caller("alice").keyed_by("office", "1").keyed_by("team", "red");
    caller.clone().units("rows", 4).cost(3).check().await;
    let refund = Refund::new(1, tower_quota::ChargeTime::Now).with_id("a message");
    let first = caller.clone().units("rows", 4).cost(0);
    for (caller, outcome) in [(first, RefundOutcome::Refunded), (other_way, RefundOutcome::Duplicate)] {
        assert_eq!(caller.refund(&refund).await.unwrap(), outcome);
    }
    assert_eq!(remaining(&caller.peek().await.unwrap().unwrap()), [8, 8, 6]);
}

#[tokio::test]
async fn the_access_list_and_the_switch_apply_to_the_main_key() {
    let list = AccessList::new(key::client_ip());
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 1)]);
    let layer = scene.builder().access_list(list.clone()).build().unwrap();
    let limiter = layer.limiter();
    let outcome = async || limiter.check(&everybody()).await.outcome();
    let set = |access| list.update(|rules| rules.set_key(everybody(), access)).unwrap();
    set(Access::Block);
    assert_eq!(outcome().await, Outcome::Blocked);
    layer.limiter().rules().disable();
    assert_eq!(outcome().await, Outcome::Blocked, "the list is looked at first");
    set(Access::Allow);
    layer.limiter().rules().enable();
    assert_eq!(outcome().await, Outcome::Unlimited);
    set(Access::Limit);
    assert_eq!(outcome().await, Outcome::Allowed);
    assert_eq!(outcome().await, Outcome::Rejected);
    layer.limiter().rules().disable();
    assert_eq!(outcome().await, Outcome::Unlimited);
    assert_eq!(scene.left().await, [0]);
}

#[tokio::test]
async fn several_keys_are_charged_together_or_not_at_all() {
    let scene = Scene::new([
        QuotaPolicy::per_hour("user", 10),
        QuotaPolicy::per_hour("team", 3).keyed_by("team"),
    ]);
    let limiter = scene.limiter_builder().named_key("team").build().unwrap();
    let user = |name: &str| limiter.caller(name).keyed_by("team", "red");
    for name in ["alice", "alice", "bob"] {
        assert_eq!(user(name).check().await.outcome(), Outcome::Allowed);
    }
    assert_eq!(user("alice").check().await.outcome(), Outcome::Rejected);
    let left = async |caller: Caller| remaining(&caller.peek().await.unwrap().unwrap());
    assert_eq!(left(user("alice")).await, [8, 0]);
    assert_eq!(left(limiter.caller("alice")).await, [8]);
    assert_eq!(left(limiter.keyed_by("team", "red")).await, [0]);
    let refund = Refund::new(1, tower_quota::ChargeTime::Now).with_id("a message");
    for outcome in [RefundOutcome::Refunded, RefundOutcome::Duplicate] {
        assert_eq!(user("alice").refund(&refund).await.unwrap(), outcome);
    }
    assert_eq!(left(user("alice")).await, [9, 1]);
    user("alice").reset().await.unwrap();
    assert_eq!(left(user("alice")).await, [10, 3]);
    assert_eq!(left(user("bob")).await, [9, 3]);
}

#[tokio::test]
async fn a_key_that_a_caller_lacks_is_a_missing_key() {
    for (missing, outcomes) in [
        (MissingKey::Allow, [Outcome::Allowed; 2]),
        (MissingKey::Reject, [Outcome::MissingKey; 2]),
        (MissingKey::Share, [Outcome::Allowed, Outcome::Rejected]),
    ] {
        let scene = Scene::new([
            QuotaPolicy::per_hour("user", 10),
            QuotaPolicy::per_hour("team", 1).keyed_by("team"),
        ]);
        let builder = scene.limiter_builder().named_key("team").on_missing_key(missing);
        let limiter = builder.build().unwrap();
        for (name, outcome) in ["alice", "bob"].into_iter().zip(outcomes) {
            assert_eq!(limiter.check(name).await.outcome(), outcome, "{missing:?}");
        }
    }
}

#[tokio::test]
async fn a_check_takes_an_unknown_tier_for_the_first_one_and_an_unknown_key_for_none() {
    let scene = Scene::new([]);
    let log = QuotaPolicy::per_day("log", 50).with_algorithm(Algorithm::SlidingWindowLog);
    let rules = Rules::new()
        .tier("free", [QuotaPolicy::per_hour("hour", 2)])
        .tier("premium", [QuotaPolicy::per_hour("hour", 5), log])
        .unlimited("staff");
    let limiter = scene.limiter_builder().rules(rules).build().unwrap();
    let alice = limiter.caller("alice");
    assert_eq!(remaining(&alice.check().await), [1]);
    assert_eq!(remaining(&alice.clone().tier("premuim").check().await), [0]);
    let premium = alice.clone().tier("premium");
    assert_eq!(remaining(&premium.check().await), [2, 49]);
    let staff = alice.clone().tier("staff");
    assert_eq!(staff.check().await.outcome(), Outcome::Unlimited);
    assert!(staff.peek().await.unwrap().is_none());
    let error = alice.clone().tier("premuim").peek().await.unwrap_err();
    let message = r#"tier "premuim": unknown to the limiter, which has ["free", "premium", "staff"]"#;
    assert_eq!(error.to_string(), message);
    let elsewhere = alice.clone().keyed_by("taem", "red");
    assert_eq!(elsewhere.check().await.outcome(), Outcome::Rejected);
    let (peek, reset) = (
        elsewhere.peek().await.unwrap_err(),
        elsewhere.reset().await.unwrap_err(),
    );
    let message = r#"key "taem": unknown to the limiter, which has []"#;
    assert_eq!([peek.to_string(), reset.to_string()], [message; 2]);
    // In all tiers.
    alice.reset().await.unwrap();
    assert_eq!(remaining(&premium.peek().await.unwrap().unwrap()), [5, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_check_on_a_silent_store_is_decided_at_the_deadline_by_the_failure_mode() {
    for (mode, outcome) in [
        (FailureMode::Open, Outcome::FailedOpen),
        (FailureMode::Closed, Outcome::FailedClosed),
    ] {
        let limiter = Scene::new([QuotaPolicy::per_hour("hour", 1)]).limiter_builder_on(hanging());
        let limiter = limiter.deadline(Duration::from_millis(200)).failure_mode(mode);
        let limiter = limiter.build().unwrap();
        let begun = tokio::time::Instant::now();
        assert_eq!(limiter.check("alice").await.outcome(), outcome);
        assert_eq!(begun.elapsed(), Duration::from_millis(200));
        let permit = limiter.caller("alice").hold().await;
        assert_eq!(permit.is_ok(), mode == FailureMode::Open);
    }
}

/// How long each of 100 tasks waits that are all rejected for the next hour.
async fn waits(at_most: Duration) -> Vec<Duration> {
    let clock = Clock::tokio();
    let limiter = Limiter::builder(memory(&clock)).scope("layer").clock(clock);
    let limiter = limiter.policy(QuotaPolicy::per_hour("hour", 1)).build().unwrap();
    let caller = limiter.caller("alice");
    drop(held(&caller).await);
    let begun = tokio::time::Instant::now();
    let waits = (0..100).map(|_| async {
        // One is admitted, and the others return, because the next hour is too late for them.
        drop(caller.wait(at_most).await);
        begun.elapsed()
    });
    join_all(waits).await
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_the_same_moment_retry_after_it_and_not_together() {
    let hour = Duration::from_secs(3_600);
    let mut together = waits(2 * hour - Duration::from_secs(1)).await;
    // Timers are exact to a millisecond.
    let expected = hour..=hour + hour / 10 + Duration::from_millis(1);
    assert!(together.iter().all(|wait| expected.contains(wait)), "{together:?}");
    together.sort_unstable();
    together.dedup();
    assert!(together.len() > 50, "{together:?}");

    assert_eq!(waits(hour).await, [hour; 100], "no longer than at most");
    assert_eq!(waits(hour - Duration::from_micros(1)).await, [Duration::ZERO; 100]);
}

#[tokio::test(start_paused = true)]
async fn work_that_is_cancelled_in_a_queue_stays_charged_and_holds_no_slot() {
    let queue = QuotaPolicy::per_minute("queue", 60).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 3 });
    let scene = Scene::new([queue, QuotaPolicy::concurrent("slots", 3)]);
    let caller = scene.caller();
    let first = held(&caller).await;
    let mut second = task::spawn(caller.hold());
    assert_pending!(second.poll());
    assert_eq!(scene.left().await[1], 1);
    drop(second);
    assert_eq!(scene.left().await[1], 2);
    let mut third = task::spawn(caller.hold());
    assert_pending!(third.poll());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_pending!(third.poll(), "the place of the second one stays taken");
    tokio::time::advance(Duration::from_secs(1)).await;
    let third = assert_ready!(third.poll()).unwrap();
    drop((first, third));
    assert_eq!(scene.left().await[1], 3);
}

#[tokio::test]
async fn a_partial_cost_is_granted_down_to_one_also_after_a_cached_rejection() {
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 30), QuotaPolicy::concurrent("slots", 3)]);
    let limiter = scene
        .limiter_builder_on(RemoteStore::<1>(scene.store.clone()))
        .build()
        .unwrap();
    let caller = limiter.caller(&everybody()).cost(20);
    assert_eq!(caller.clone().partial().check().await.granted(), 20);
    for _ in 0..2 {
        assert_eq!(caller.check().await.outcome(), Outcome::Rejected);
    }
    assert!(caller.check().await.is_cached());
    let permit = held(&caller.clone().partial()).await;
    assert_eq!((permit.decision().granted(), scene.left().await), (10, vec![0, 2]));
    permit.settle(4);
    assert_eq!(caller.clone().cost(2).partial().check().await.granted(), 2);
    assert_eq!(scene.left().await, [4, 3]);
    assert_eq!(caller.partial().cost(0).check().await.granted(), 0);
}

#[tokio::test]
async fn a_content_policy_is_charged_one_byte_for_each_check_and_permit() {
    let bytes = QuotaPolicy::per_hour("bytes", 1_000).with_content_bytes(tower_quota::Direction::Both);
    let scene = Scene::new([bytes, QuotaPolicy::per_hour("hour", 10)]);
    let caller = scene.caller();
    assert_eq!(remaining(&caller.check().await), [999, 9]);
    held(&caller).await.settle(3);
    assert_eq!(scene.left().await, [998, 6]);
    held(&caller).await.refund();
    assert_eq!(scene.left().await, [998, 6]);
}

#[tokio::test]
async fn a_plan_of_the_programs_own_is_charged_whatever_the_rules_are() {
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 0)]);
    let limiter = scene.limiter();
    limiter.rules().disable();
    let contract = PolicySet::new([QuotaPolicy::per_day("contract", 2), QuotaPolicy::concurrent("slots", 1)]).unwrap();
    let partition = Scope::new("contracts").partition(&PartitionKey::new("customer", "acme"));
    let plan = |cost| Plan::new(contract.clone(), partition, cost);

    let permit = limiter.hold_plan(plan(1)).await.unwrap();
    assert_eq!(remaining(permit.decision()), [1, 0]);
    let rejected = limiter.hold_plan(plan(1)).await.unwrap_err();
    assert!(rejected.violated().map(|slots| slots.policy().name()).eq(["slots"]));
    permit.refund();
    limiter.hold_plan(plan(1)).await.unwrap().settle(2);
    let read = limiter.hold_plan(plan(0)).await.unwrap();
    assert_eq!(remaining(read.decision()), [0, 1]);
}

#[tokio::test]
async fn a_request_that_asks_for_a_permit_gets_that_of_all_layers_around_the_handler() {
    let scenes = ["outer", "inner"].map(|name| Scene::new([QuotaPolicy::per_hour(name, 9)]));
    let [outer, inner] = scenes.each_ref().map(Scene::layer);
    let service = outer.layer(inner.layer(service_fn(async |request: Request<TextBody>| {
        if let Some(permit) = request.extensions().get().and_then(WeakPermit::upgrade) {
            permit.refund();
        }
        hello(request).await
    })));
    for (is_asked, left) in [(true, 9), (false, 8)] {
        let mut request = request();
        if is_asked {
            request.extensions_mut().insert(WithPermit);
        }
        service.clone().oneshot(request).await.unwrap();
        for scene in &scenes {
            assert_eq!(scene.left().await, [left]);
        }
    }
}

#[tokio::test]
async fn work_that_a_fallback_has_admitted_is_settled_there() {
    let scene = Scene::new([QuotaPolicy::concurrent("slots", 1), QuotaPolicy::per_hour("hour", 10)]);
    let failing = test_kit::TestStore::failing(tower_quota::StoreErrorKind::Unreachable);
    let builder = scene.limiter_builder_on(failing).fallback(scene.store.clone());
    let limiter = builder.build().unwrap();
    for left in [9, 5, 1] {
        let permit = limiter.caller("alice").hold().await.unwrap();
        assert!(permit.decision().is_by_fallback());
        assert_eq!(remaining(permit.decision()), [0, left]);
        permit.settle(4);
    }
}

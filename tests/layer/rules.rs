//! Rules that change while requests are in flight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use proptest::prelude::*;
use test_kit::{Answered, limits_of, load::HANG, memory, request, rows};
use tokio::task::JoinSet;
use tower_quota::{
    Algorithm, CallerQuotas, ConfigErrorKind, Direction, Limiter, LimiterBuilder, MemoryStore, MissingKey,
    PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Rules, RulesHandle, Scope,
    Store, Tiers,
    clock::{Clock, Timestamp},
    key,
    updates::RulesDiff,
};

use crate::mistakes::{IN_FIELDS, IN_SETS};

struct Scene {
    store: MemoryStore,
}

impl Scene {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self { store: memory(&clock) }
    }

    fn builder(&self) -> RateLimitLayerBuilder {
        self.builder_with(|limiter| limiter)
    }

    /// Like `builder`, with additional settings of the limiter.
    fn builder_with(&self, settings: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> RateLimitLayerBuilder {
        limits_of(settings(Limiter::builder(self.store.clone()))).scope("rules")
    }

    fn layer(&self, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
        let builder = policies.into_iter().fold(self.builder(), RateLimitLayerBuilder::policy);
        builder.build().unwrap()
    }
}

fn rules(policies: impl IntoIterator<Item = QuotaPolicy>) -> Rules {
    policies.into_iter().fold(Rules::new(), Rules::policy)
}

/// The field that a user gets, or the outcome if there is none.
async fn send(layer: &RateLimitLayer, user: &str) -> String {
    let response = test_kit::send(layer, request(user)).await;
    match response.field("ratelimit") {
        field if response.status() == 200 && !field.is_empty() => field.to_owned(),
        _ => format!("{:?}", response.outcome()),
    }
}

fn hour(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_hour("hour", quota)
}

fn replace(layer: &RateLimitLayer, policies: impl IntoIterator<Item = QuotaPolicy>) {
    layer.limiter().rules().replace(rules(policies)).unwrap();
}

/// L12
#[tokio::test]
async fn new_rules_hold_for_all_clones_and_services_at_once_and_used_units_carry_over() {
    let scene = Scene::new();
    let layer = scene.layer([hour(10)]);
    let (clone, handle) = (layer.clone(), layer.limiter().rules());
    assert_eq!(send(&layer, "alice").await, r#""hour";r=9;t=3240"#);
    replace(&layer, [QuotaPolicy::per_minute("minute", 5), hour(100)]);
    assert_eq!(send(&clone, "alice").await, r#""minute";r=4;t=48, "hour";r=98;t=3528"#);
    replace(&layer, [hour(2)]);
    assert_eq!(send(&clone, "alice").await, "Rejected");
    assert_eq!(handle.current(), rules([hour(2)]));
}

#[tokio::test]
async fn another_algorithm_starts_with_a_full_quota_and_the_old_one_is_not_forgotten() {
    let scene = Scene::new();
    let layer = scene.layer([hour(10)]);
    send(&layer, "alice").await;
    replace(&layer, [hour(10).with_algorithm(Algorithm::SlidingWindowLog)]);
    assert!(send(&layer, "alice").await.starts_with(r#""hour";r=9;"#));
    replace(&layer, [hour(10)]);
    assert!(send(&layer, "alice").await.starts_with(r#""hour";r=8;"#));
}

#[tokio::test]
async fn tiers_can_be_replaced_as_well() {
    let scene = Scene::new();
    let by_user = || Tiers::from_fn(|request| request.headers.get("x-user-id")?.to_str().ok());
    let first = Rules::new().tier("anybody", [hour(10)]).unlimited("admin");
    let layer = scene.builder().rules(first).tiers(by_user()).build().unwrap();
    assert_eq!(send(&layer, "admin").await, "Unlimited");
    assert_eq!(send(&layer, "alice").await, r#""hour";r=9;t=3240"#);
    let current = layer.limiter().rules().current();
    let tiers: Vec<_> = current.tiers().collect();
    assert_eq!(tiers, [("anybody", Some(&[hour(10)][..])), ("admin", None)]);
    assert!(current.policies().is_empty());
    let second = Rules::new().tier("anybody", [hour(20)]).tier("admin", [hour(100)]);
    layer.limiter().rules().replace(second).unwrap();
    assert_eq!(send(&layer, "admin").await, r#""hour";r=99;t=3564"#);
    assert_eq!(send(&layer, "alice").await, r#""hour";r=18;t=3240"#);
    let error = layer.limiter().rules().replace(Rules::new()).unwrap_err();
    assert_eq!(error.to_string(), "tiers: at least one is required");
}

/// L30
#[tokio::test]
async fn the_kill_switch_lets_everything_pass_uncounted_until_it_is_switched_back() {
    let scene = Scene::new();
    let layer = scene.layer([hour(1)]);
    let handle = layer.limiter().rules();
    send(&layer, "alice").await;
    handle.disable();
    for _ in 0..5 {
        assert_eq!(send(&layer, "alice").await, "Unlimited");
    }
    // New rules do not switch it on.
    handle.replace(rules([hour(3)])).unwrap();
    assert!(!handle.is_enabled());
    assert_eq!(send(&layer, "alice").await, "Unlimited");
    handle.enable();
    assert_eq!(send(&layer, "alice").await, r#""hour";r=1;t=1200"#);
}

/// Each thread has a copy of the rules, which it has used before.
#[test]
fn the_next_request_of_every_thread_has_the_new_rules_and_the_new_position_of_the_switch() {
    const LAST: u64 = 300;
    let layer = Scene::new().layer([hour(1)]);
    let (handle, made) = (layer.limiter().rules(), AtomicU64::new(1));
    let served: [AtomicU64; 4] = Default::default();
    // Every tenth change switches the limits off.
    let is_off = |change: u64| change.is_multiple_of(10);
    let shown = |change: u64| match is_off(change) {
        true => String::new(),
        false => format!(r#""hour";q={change};w=3600"#),
    };
    thread::scope(|scope| {
        let threads = served.each_ref().map(|served| {
            let (layer, made) = (&layer, &made);
            scope.spawn(move || {
                while served.load(Ordering::SeqCst) < LAST {
                    let change = made.load(Ordering::SeqCst);
                    let response = test_kit::send(layer, request("alice")).now_or_never().unwrap();
                    let policy = response.field("ratelimit-policy");
                    // The next change may be made during the request.
                    let expected = [change, change + 1].map(shown);
                    assert!(expected.iter().any(|expected| policy == expected), "{change}: {policy}");
                    served.store(change, Ordering::SeqCst);
                }
            })
        });
        for change in 2..=LAST {
            if is_off(change) {
                handle.disable();
            } else {
                handle.replace(rules([hour(change)])).unwrap();
                handle.enable();
            }
            made.store(change, Ordering::SeqCst);
            for (thread, served) in threads.iter().zip(&served) {
                loop {
                    // Read first: a thread that ends after its last request has served it.
                    let has_ended = thread.is_finished();
                    if served.load(Ordering::SeqCst) >= change {
                        break;
                    }
                    assert!(!has_ended, "a thread has panicked");
                    thread::yield_now();
                }
            }
        }
    });
}

/// L30: which callers are among the first ten in a hundred is written down here, so that no process and no version of this
/// crate may see it otherwise.
#[tokio::test]
async fn the_same_callers_are_on_the_same_side_in_every_process() {
    let scene = Scene::new();
    let layer = scene.layer([hour(10)]);
    layer.limiter().rules().roll_out(10, rules([hour(1_000)])).unwrap();
    let mut tried = Vec::new();
    for user in 0..100 {
        if send(&layer, &format!("user {user}")).await.contains("r=999") {
            tried.push(user);
        }
    }
    assert_eq!(tried, TRIED);
}

/// By the digest of the key and the scope, modulo 100.
const TRIED: [u32; 13] = [2, 10, 11, 20, 23, 32, 34, 64, 67, 70, 81, 93, 95];

/// Support sees what the caller sees.
#[tokio::test]
async fn support_staff_see_the_rules_that_are_tried_on_a_caller() {
    let scene = Scene::new();
    let layer = scene.layer([hour(10)]);
    layer.limiter().rules().roll_out(50, rules([hour(1_000)])).unwrap();
    let mut sides = [0; 2];
    for user in 0..50 {
        let user = format!("user {user}");
        let told = send(&layer, &user).await;
        let key = PartitionKey::new("x-user-id", &user);
        let seen = layer.limiter().caller(&key).peek().await.unwrap();
        let left = seen.unwrap().allowances().next().unwrap().remaining();
        assert!(told.starts_with(&format!(r#""hour";r={left};"#)), "{told} {left}");
        sides[usize::from(left > 10)] += 1;
    }
    assert!(sides.iter().all(|side| *side > 10), "{sides:?}");
}

/// Replaces rules until `is_over` is set, and returns how often. The quotas are always at least 10,000 units an hour
/// and 5,000 a minute.
fn replace_all_the_time(handle: &RulesHandle, is_over: &AtomicBool) -> u64 {
    let mut changes = 0;
    while !is_over.load(Ordering::Relaxed) {
        let with_hour = rules([hour(10_000 + changes % 7 * 1_000)]);
        let minute = QuotaPolicy::per_minute("minute", 5_000 + changes % 3);
        let next = match changes % 2 {
            0 => with_hour,
            _ => with_hour.policy(minute),
        };
        handle.replace(next).unwrap();
        changes += 1;
    }
    changes
}

/// Nothing that both old and new rules let pass is rejected, and no counter is lost, however often they change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_are_replaced_all_the_time_reject_nothing_that_both_let_pass_and_lose_no_counter() {
    let scene = Scene::new();
    let layer = scene.layer([hour(20_000)]);
    let is_over = Arc::new(AtomicBool::new(false));
    let (handle, stop) = (layer.limiter().rules(), Arc::clone(&is_over));
    let changer = tokio::task::spawn_blocking(move || replace_all_the_time(&handle, &stop));
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let layer = layer.clone();
        senders.spawn(async move {
            for _ in 0..1_000 {
                let told = send(&layer, "alice").await;
                assert!(told.starts_with(r#""hour";r="#), "{told}");
            }
        });
    }
    senders.join_all().await;
    is_over.store(true, Ordering::Relaxed);
    assert!(changer.await.unwrap() > 100);
    let alice = Scope::new("rules").partition(&PartitionKey::new("x-user-id", "alice"));
    let plan = Plan::new(PolicySet::new([hour(10_000)]).unwrap(), alice, 1);
    let decision = scene.store.peek(plan).await.unwrap();
    assert_eq!(decision.allowances().next().unwrap().remaining(), 6_000);
}

/// L30
#[tokio::test]
async fn a_shadow_is_not_shown_unless_it_is_set_to_and_takes_effect_when_it_is_enforced() {
    let scene = Scene::new();
    let planned = || QuotaPolicy::per_minute("planned", 1);
    let layer = scene.layer([hour(10), planned().shadow()]);
    assert_eq!(send(&layer, "alice").await, r#""hour";r=9;t=3240"#);
    assert_eq!(send(&layer, "alice").await, r#""hour";r=8;t=2880"#);
    replace(&layer, [hour(10), planned().shadow().visible()]);
    assert_eq!(send(&layer, "alice").await, r#""hour";r=7;t=2520, "planned";r=0;t=60"#);
    replace(&layer, [hour(10), planned()]);
    assert_eq!(send(&layer, "alice").await, "Rejected");
}

/// Neither by a delay nor by `Retry-After`.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_shadow() {
    let queue = Algorithm::LeakyBucketQueue { max_waiting: 9 };
    let layer = Scene::new().layer([
        QuotaPolicy::per_minute("minute", 3),
        QuotaPolicy::per_day("planned", 1).shadow().visible(),
        QuotaPolicy::per_hour("even", 1).with_algorithm(queue).shadow(),
    ]);
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        send(&layer, "alice").await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    let rejected = test_kit::send(&layer, request("alice")).await;
    assert_eq!((rejected.code(), rejected.field("retry-after")), (429, "20"));
}

/// A layer that counts per user, per address and for everybody.
fn three_keys(scene: &Scene) -> RateLimitLayerBuilder {
    with_three_keys(scene.builder())
}

fn with_three_keys(builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    builder
        .named_key("address", key::header("x-address"))
        .named_key("everybody", key::from_fn(|_| Some(PartitionKey::new("everybody", ""))))
        .policy(QuotaPolicy::per_hour("user", 3))
        .policy(QuotaPolicy::per_hour("address", 4).keyed_by("address"))
        .policy(QuotaPolicy::per_hour("all", 50).keyed_by("everybody"))
        .policy(QuotaPolicy::per_day("user's day", 30))
}

/// The status, and the units that each policy has left.
async fn send_from(layer: &RateLimitLayer, user: &str, address: Option<&str>) -> (u16, Vec<(String, u64)>) {
    let mut request = request(user);
    if let Some(address) = address {
        request.headers_mut().insert("x-address", address.parse().unwrap());
    }
    let response = test_kit::send(layer, request).await;
    (response.code(), response.remaining())
}

fn numbers(left: &[(String, u64)]) -> Vec<u64> {
    left.iter().map(|(_, left)| *left).collect()
}

#[tokio::test]
async fn a_request_without_a_named_key_shares_that_part_passes_it_or_is_rejected() {
    let of = |no_key| {
        let scene = Scene::new();
        three_keys(&scene).on_missing_key(no_key).build().unwrap()
    };
    let layer = of(MissingKey::Share);
    send_from(&layer, "alice", None).await;
    assert_eq!(numbers(&send_from(&layer, "bob", None).await.1), [2, 29, 2, 48]);
    let layer = of(MissingKey::Allow);
    assert_eq!(numbers(&send_from(&layer, "alice", None).await.1), [2, 29, 49]);
    let layer = of(MissingKey::Reject);
    assert_eq!(send_from(&layer, "alice", None).await, (403, vec![]));
    assert_eq!(send_from(&layer, "alice", Some("1.1.1.1")).await.0, 200);
}

#[tokio::test]
async fn a_tier_that_only_the_rules_on_trial_have_is_known_to_the_administrator() {
    let scene = Scene::new();
    let tiers = Tiers::from_fn(|_| Some("free")).tier("free", [hour(10)]);
    let layer = scene.builder().tiers(tiers).build().unwrap();
    let tried = Rules::new().tier("free", [hour(10)]).tier("gold", [hour(1_000)]);
    layer.limiter().rules().roll_out(0, tried).unwrap();
    let (admin, alice) = (layer.limiter(), PartitionKey::new("x-user-id", "alice"));
    let decision = admin.caller(&alice).tier("gold").peek().await.unwrap().unwrap();
    // A caller that does not try the new rules is in the first tier, as its request would be.
    assert_eq!(decision.allowances().next().unwrap().remaining(), 10);
    let without_tiers = scene.layer([hour(1)]);
    let alice = without_tiers.limiter().caller(&alice).tier("free");
    let decision = alice.peek().await.unwrap().unwrap();
    let remaining = decision.allowances().next().unwrap().remaining();
    assert_eq!(remaining, 1, "the same for all tiers");
}

fn error(builder: RateLimitLayerBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[tokio::test]
async fn policies_and_rules_meet_and_nothing_that_was_given_is_dropped() {
    let scene = Scene::new();
    let named = |name: &str| QuotaPolicy::new(name.to_owned(), 10, Duration::from_secs(60));
    let builder = scene.builder().policy(named("a")).rules(rules([named("b")]));
    let layer = builder.policy(named("c")).build().unwrap();
    let current = layer.limiter().rules().current();
    let names: Vec<_> = current.policies().iter().map(QuotaPolicy::name).collect();
    assert_eq!(names, ["a", "b", "c"]);

    let both = "policies: `policy` and `tiers` cannot be combined; add the policies to the tiers";
    let tiers = || Tiers::from_fn(|_| None).tier("free", [hour(1)]);
    assert_eq!(error(scene.builder().policy(hour(1)).tiers(tiers())), both);
    let with_tiers = Rules::new().tier("free", [hour(1)]);
    let base = || scene.builder().tiers(Tiers::from_fn(|_| None));
    assert_eq!(error(base().policy(hour(1)).rules(with_tiers)), both);
    assert_eq!(
        error(scene.builder().tiers(tiers()).tiers(tiers())),
        "tiers: set twice; only one closure can determine the tier of a request"
    );
    assert_eq!(
        error(scene.builder().policy(hour(1)).rules(rules([hour(2)]))),
        r#"policy "hour": duplicate name; names must be unique"#
    );
}

#[test]
fn a_named_key_that_no_policy_counts_by_is_a_mistake_unless_rules_are_data() {
    let scene = Scene::new();
    let builder = || scene.builder().named_key("team", key::header("x-team"));
    let error = builder().policy(hour(1)).build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Key);
    assert_eq!(
        error.to_string(),
        r#"key "team": not used by any policy; use `keyed_by`, or remove the key"#
    );
    assert!(builder().policy(hour(1).keyed_by("team")).build().is_ok());
    // A file may use what the program offers today, tomorrow or never.
    assert!(builder().rules(rules([hour(1)])).build().is_ok());
}

/// Decision 12: never is a fault of the configuration, not of the client.
#[test]
fn a_cost_of_every_request_that_can_never_pass_is_a_mistake() {
    let scene = Scene::new();
    let small = || hour(100).with_burst_capacity(5);
    let error = scene.builder().policy(small()).cost(6).build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Cost);
    assert_eq!(error.to_string(), r#"policy "hour": fixed cost 6 exceeds capacity 5"#);
    let layer = scene.builder().policy(hour(100)).cost(6).build().unwrap();
    let tried = layer.limiter().rules().replace(rules([small()])).unwrap_err();
    assert_eq!(tried.to_string(), error.to_string());
    let tiers = Tiers::from_fn(|_| None).tier("free", [small()]);
    let in_a_tier = scene.builder().tiers(tiers).cost(6).build().unwrap_err();
    assert_eq!(in_a_tier.to_string(), format!(r#"tier "free": {error}"#));
    // Neither bytes nor slots are charged by the cost of requests.
    let bytes = scene.builder().policy(small().with_content_bytes(Direction::Response));
    let others = bytes.policy(QuotaPolicy::concurrent("slots", 1));
    assert!(others.cost(6).build().is_ok());
    assert!(scene.builder().policy(small()).cost(5).build().is_ok());
}

#[test]
fn keys_that_are_missing_or_named_twice_are_rejected() {
    let scene = Scene::new();
    let limiter = |limiter: LimiterBuilder| limiter.digest_key([7; 32]).readable_keys();
    let named = |name: &str| three_keys(&scene).named_key(name, key::header("x"));
    for (builder, message) in [
        (
            scene.builder().policy(hour(1).keyed_by("address")),
            r#"policy "hour": unknown key "address""#,
        ),
        (
            named("address"),
            r#"key "address": empty or duplicate name; names must be unique"#,
        ),
        (named(""), r#"key "": empty or duplicate name; names must be unique"#),
        (
            with_three_keys(scene.builder_with(limiter)),
            "readable_keys and digest_key cannot be combined",
        ),
    ] {
        assert_eq!(error(builder), message);
    }
    let handle = three_keys(&scene).build().unwrap().limiter().rules();
    let mistake = handle.replace(rules([hour(1).keyed_by("addresses")])).unwrap_err();
    assert_eq!(mistake.to_string(), r#"policy "hour": unknown key "addresses""#);
}

#[test]
fn rules_are_read_with_all_that_a_policy_can_have() {
    let read: Rules = serde_json::from_str(
        r#"{"policies": [
            {"name": "burst", "quota": 10, "window_seconds": 1, "burst_capacity": 20, "initial_units": 0,
             "partition_key": true, "prefetch": 5, "extensions": {"acme-burst": 20, "acme-text": "x", "acme-flag": true}},
            {"name": "strict", "quota": 10, "window_seconds": 60, "algorithm": "strict_token_bucket", "hidden": true,
             "lockout_seconds": 900},
            {"name": "bytes", "quota": 1000, "window_seconds": 60, "unit": "response_content_bytes",
             "algorithm": "fixed_window", "shadow": true},
            {"name": "soft", "quota": 10, "window_seconds": 60, "algorithm": "fixed_window", "overage_percent": 20},
            {"name": "slots", "quota": 3, "unit": "concurrent_requests", "shadow": true, "hidden": false,
             "key": "everybody", "caller_quotas": [0, 30]}
        ]}"#,
    )
    .unwrap();
    let extended = QuotaPolicy::per_second("burst", 10)
        .with_burst_capacity(20)
        .with_initial_units(0)
        .with_prefetch(5)
        .show_partition_key()
        .with_extension("acme-burst", 20)
        .with_extension("acme-flag", true)
        .with_extension("acme-text", tower_quota::fields::ExtensionValue::string("x").unwrap());
    let expected = [
        extended,
        QuotaPolicy::per_minute("strict", 10)
            .with_algorithm(Algorithm::StrictTokenBucket)
            .with_lockout(Duration::from_secs(900))
            .hidden(),
        QuotaPolicy::per_minute("bytes", 1_000)
            .with_content_bytes(Direction::Response)
            .with_algorithm(Algorithm::FixedWindow)
            .shadow(),
        QuotaPolicy::per_minute("soft", 10)
            .with_algorithm(Algorithm::FixedWindow)
            .with_overage(20),
        QuotaPolicy::concurrent("slots", 3)
            .shadow()
            .visible()
            .keyed_by("everybody")
            .with_caller_quotas(0..=30),
    ];
    assert_eq!(read, rules(expected.clone()));
    let written = serde_json::to_value(rules(expected)).unwrap();
    assert_eq!(serde_json::from_value::<Rules>(written).unwrap(), read);
}

/// A policy for all callers, as JSON, with a field in addition to name, quota and window, or in the place of one.
fn policy_json(field: &str, value: &str) -> String {
    let usual = [("name", r#""a""#), ("quota", "10"), ("window_seconds", "60")];
    let others = usual.into_iter().filter(|(name, _)| *name != field);
    let fields = others.chain([(field, value)]).filter(|(_, value)| !value.is_empty());
    let fields: Vec<String> = fields.map(|(name, value)| format!("{name:?}: {value}")).collect();
    format!(r#"{{"policies": [{{{}}}]}}"#, fields.join(", "))
}

/// One policy more than the maximum.
fn too_many() -> String {
    let policy = |number| format!(r#"{{"name": "{number}", "quota": 1, "window_seconds": 1}}"#);
    let policies: Vec<String> = (0..17).map(policy).collect();
    format!(r#"{{"policies": [{}]}}"#, policies.join(", "))
}

#[tokio::test]
async fn what_is_read_with_a_mistake_names_field_value_and_bound_and_the_old_rules_stay() {
    let scene = Scene::new();
    let tiers = Tiers::from_fn(|_| None).tier("free", [hour(1_000)]);
    let layer = scene.builder().tiers(tiers).build().unwrap();
    let (handle, before) = (layer.limiter().rules(), layer.limiter().rules().current());
    let in_fields = rows(IN_FIELDS).into_iter();
    let in_fields = in_fields.map(|[field, value, message]| [policy_json(&field, &value), message]);
    let in_number = [too_many(), "number of policies 17 is outside 1..=16".to_owned()];
    for (number, [text, expected]) in (1..).zip(in_fields.chain(rows(IN_SETS)).chain([in_number])) {
        let error = match serde_json::from_str::<Rules>(&text) {
            Ok(rules) => {
                let tried = handle.roll_out(50, rules.clone()).map_err(|error| error.to_string());
                assert_eq!(handle.replace(rules).map_err(|error| error.to_string()), tried);
                tried
            }
            Err(error) => Err(error.to_string()),
        };
        let error = error.expect_err(&text);
        assert!(error.contains(&expected), "{text}: {error}");
        assert_eq!((handle.current(), handle.rollout()), (before.clone(), None), "{text}");
        let left = format!(r#""hour";r={};"#, 1_000 - number);
        assert!(send(&layer, "alice").await.starts_with(&left), "{text}");
    }
}

/// Fails if `work` hangs, as it would with work that grows with the square of these inputs.
pub(crate) fn without_hanging<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(HANG).expect("the work hangs")
}

#[test]
fn rules_with_any_number_of_tiers_are_compared_without_a_hang() {
    let tiers = |kind: &'static str| (0..100_000).fold(Rules::new(), |rules, n| rules.unlimited(format!("{kind}{n}")));
    let diff = without_hanging(move || RulesDiff::between(&tiers("old"), &tiers("new")));
    // Each tier is removed or added, and there is another first tier.
    assert_eq!(diff.changes().len(), 200_001);
}

#[test]
fn rules_with_any_number_of_keys_are_validated_without_a_hang() {
    let keyed = |key: usize| {
        let policy = QuotaPolicy::per_minute("", 1).with_name(format!("minute {}", key % 16));
        policy.keyed_by(format!("key {key}"))
    };
    let tiers = (0..10_000).fold(Rules::new(), |rules, tier| {
        rules.tier(format!("tier {tier}"), (tier * 16..tier * 16 + 16).map(keyed))
    });
    without_hanging(move || tiers.validate()).unwrap();
}

#[test]
fn quotas_of_a_caller_for_any_number_of_policies_are_read_without_a_hang() {
    let policies = (0..200_000).map(|n| (n.to_string(), serde_json::json!({ "quota": n + 1 })));
    let json = serde_json::json!({ "policies": policies.collect::<serde_json::Map<_, _>>() });
    let quotas: CallerQuotas = without_hanging(move || serde_json::from_value(json)).unwrap();
    assert_eq!(quotas, quotas.clone().quota("4711", 4_712));
    assert_ne!(quotas, quotas.clone().quota("4711", 1));
}

proptest! {
    #[test]
    fn any_text_is_rules_or_an_error(text in r#"[\[\]{}",:a-z_0-9 ]{0,60}"#) {
        let _ = serde_json::from_str::<Rules>(&text);
    }
}

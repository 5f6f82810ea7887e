//! The counts for operators, as Prometheus would read them.

#![allow(clippy::disallowed_methods, reason = "a cluster does not follow virtual time")]

#[path = "../../examples/metrics/src/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::{collections::BTreeSet, convert::Infallible, fs, future::pending, time::Duration};

use axum::body::Body;
use futures_util::{FutureExt, future::try_join_all};
use http::{Request, Response};
use http_body_util::BodyExt;
use metrics::{LocalRecorderGuard, set_default_local_recorder};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};
use test_kit::{Answered, TestStore, Timing, request};
use test_kit::{RedisCluster, load::until};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, ChargeTime, Direction, FailureMode, LateCharge, Limiter, LimiterBuilder, Measurement, MemoryStore,
    MissingKey, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Refund,
    Rules, Scope, Settlement, Store, StoreError, StoreErrorKind, StoreFuture, Tiers, WeakPermit,
    clock::{Clock, Timestamp},
    key,
    tier::TierLayer,
};
use tower_quota_fleet::{FileRules, RulesDocument, RulesFollower};

use crate::{NO_SERVER, RemoteStore};

/// The lines of a page that contain metrics of tower-quota, without comments.
pub(crate) fn samples(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.starts_with("tower_quota_")).collect()
}

/// The number of times that each decision was made, without the words that all of the lines share.
fn decisions(page: &str) -> Vec<&str> {
    let lines = samples(page).into_iter();
    let mut lines: Vec<_> = lines
        .filter_map(|line| line.strip_prefix(r#"tower_quota_decisions_total{scope="test","#))
        .collect();
    lines.sort_unstable();
    lines
}

/// The pages on which each package documents its own metrics.
fn documentation() -> String {
    let pages = [
        include_str!("../../src/telemetry/mod.rs"),
        include_str!("../../crates/tower-quota-fleet/docs/fleet.md"),
        include_str!("../../crates/tower-quota-anonymous/docs/anonymous.md"),
    ];
    let pages = pages.join("\n");
    let lines = pages.lines().map(|line| line.trim_start_matches("//! "));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// The expressions of all alerts, a line each.
fn alerts() -> String {
    let alerts = include_str!("../../ops/prometheus/alerts.yml");
    let expressions: Vec<_> = alerts
        .lines()
        .filter(|line| line.trim_start().starts_with("expr: "))
        .collect();
    expressions.join("\n")
}

pub(crate) fn recorder() -> (PrometheusRecorder, PrometheusHandle) {
    let recorder = example::prometheus().unwrap().build_recorder();
    let page = recorder.handle();
    (recorder, page)
}

/// The page of a recorder that all of this thread reports to until it is dropped.
pub(crate) struct Page {
    page: PrometheusHandle,
    _recorder: LocalRecorderGuard<'static>,
}

impl Page {
    pub(crate) fn start() -> Self {
        let (recorder, page) = recorder();
        let _recorder = set_default_local_recorder(Box::leak(Box::new(recorder)));
        Self { page, _recorder }
    }

    pub(crate) fn text(&self) -> String {
        self.page.render()
    }

    /// Returns the value of the series with exactly this name after `tower_quota_`, if the page has it.
    pub(crate) fn find(&self, series: &str) -> Option<f64> {
        let text = self.text();
        let mut lines = samples(&text).into_iter();
        let value = lines.find_map(|line| {
            line.strip_prefix("tower_quota_")?
                .strip_prefix(series)?
                .strip_prefix(' ')
        });
        value.map(|value| value.parse().unwrap())
    }

    pub(crate) fn value(&self, series: &str) -> f64 {
        let value = self.find(series);
        value.unwrap_or_else(|| panic!("there is no {series} in\n{}", self.text()))
    }

    /// The value of a series without labels but the scope.
    pub(crate) fn of(&self, name: &str) -> f64 {
        self.value(&format!(r#"{name}{{scope="test"}}"#))
    }

    /// The value of a series with one label beside the scope.
    pub(crate) fn by(&self, name: &str, label: &str, value: &str) -> f64 {
        self.value(&format!(r#"{name}{{scope="test",{label}="{value}"}}"#))
    }
}

pub(crate) fn builder(store: impl Store) -> RateLimitLayerBuilder {
    builder_of(Limiter::builder(store))
}

pub(crate) fn builder_of(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .scope("test")
        .key(key::header("x-user-id"))
}

pub(crate) fn day(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_day("day", quota)
}

fn nine_a_day() -> RateLimitLayer {
    nine_a_day_of(builder(MemoryStore::new()))
}

fn nine_a_day_of(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.policy(day(9)).build().unwrap()
}

pub(crate) async fn send(layer: &RateLimitLayer, request: Request<String>) -> u16 {
    test_kit::send(layer, request).await.code()
}

/// A store that never decides.
fn hanging() -> TestStore {
    TestStore::new(MemoryStore::new(), Timing::Hanging)
}

#[tokio::test]
async fn the_page_of_the_example_shows_what_was_decided() {
    let page = Page::start();
    let app = example::app(page.page.clone()).unwrap();
    let get = async |path: &str| {
        let request = Request::get(path).header("x-user-id", "alice").body(Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    };
    for _ in 0..5 {
        get("/items").await;
    }
    let page = get("/metrics").await;
    let documentation = documentation();
    let shown: Vec<_> = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("tower_quota_decisions_total"))
        .collect();
    assert_eq!(shown.len(), 2);
    for line in shown {
        let line = format!("tower_quota_decisions_total{line}");
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
    for line in [
        r#"tower_quota_store_seconds_count{scope="items"} 5"#,
        r#"tower_quota_store_seconds_bucket{scope="items",le="+Inf"} 5"#,
        "# TYPE tower_quota_decisions_total counter",
        "# TYPE tower_quota_store_seconds histogram",
        "# TYPE tower_quota_circuit_open gauge",
        "# HELP tower_quota_decisions_total Decisions, by outcome",
    ] {
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("alice"), "{page}");
}

#[tokio::test]
async fn a_recorder_that_is_installed_after_the_first_request_receives_nothing_from_this_layer() {
    let (layer, other) = (nine_a_day(), nine_a_day());
    send(&layer, request("alice")).await;
    let page = Page::start();
    send(&layer, request("alice")).await;
    assert_eq!(decisions(&page.text()), [""; 0]);

    for layer in [other, nine_a_day()] {
        send(&layer, request("alice")).await;
    }
    assert_eq!(decisions(&page.text()), [r#"tier="",policy="",outcome="allowed"} 2"#]);
}

#[tokio::test]
async fn what_a_shadow_would_reject_is_counted_by_its_policy() {
    let page = Page::start();
    let layer = builder(MemoryStore::new())
        .policy(day(9))
        .policy(QuotaPolicy::per_day("planned", 1).shadow())
        .build()
        .unwrap();
    for _ in 0..4 {
        send(&layer, request("alice")).await;
    }
    let series = r#"shadow_rejections_total{scope="test",tier="",policy="planned"}"#;
    assert_eq!(page.value(series), 3.0);
}

fn window(name: &'static str, quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_day(name, quota).with_algorithm(tower_quota::Algorithm::FixedWindow)
}

#[tokio::test]
async fn a_request_above_a_quota_is_counted_by_the_policy_that_admits_it() {
    let page = Page::start();
    let policy = window("day", 2).with_overage(100);
    let layer = builder(MemoryStore::new()).policy(policy).build().unwrap();
    for _ in 0..6 {
        send(&layer, request("alice")).await;
    }
    let series = r#"over_quota_total{scope="test",tier="",policy="day"}"#;
    assert_eq!(page.value(series), 2.0);
}

/// Why a store gives no decision.
const REASONS: [&str; 7] = [
    "circuit_open",
    "overloaded",
    "failed",
    "out_of_memory",
    "timed_out",
    "unavailable",
    "unreachable",
];

/// An alert for what has never happened yet must not miss the first time.
#[tokio::test]
async fn as_soon_as_a_layer_is_built_all_that_can_be_known_is_there_with_a_zero() {
    let page = Page::start();
    let _layer = nine_a_day();
    for name in [
        "circuit_open",
        "limits_off",
        "never_fits_total",
        "new_partitions_total",
        "queue_wait_seconds_count",
        "slots_held",
        "state_lost_total",
        "unattributed_total",
        "uncounted_content_total",
        "unknown_tier_total",
    ] {
        assert_eq!(page.of(name), 0.0, "{name}");
    }
    for (name, label, values) in [
        ("failed_total", "mode", &["closed", "open"][..]),
        ("failed_while_closed_total", "mode", &["closed", "open"]),
        ("late_batches_total", "fate", &["kept", "returned", "unknown"]),
        ("undecided_total", "reason", &REASONS),
    ] {
        for value in values {
            assert_eq!(page.by(name, label, value), 0.0, "{name} {value}");
        }
    }
    for name in [
        "connection_failures_total",
        "evictions_total",
        "lost_nodes",
        "tier_waits_total",
        "unsettled_total",
    ] {
        assert_eq!(page.value(name), 0.0, "{name}");
    }
}

#[tokio::test]
async fn decisions_are_counted_by_tier_policy_and_outcome() {
    let page = Page::start();
    let tiers = Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok())
        .tier("free", [QuotaPolicy::per_minute("minute", 2), day(2)])
        .tier("premium", [QuotaPolicy::per_minute("minute", 1)])
        .unlimited("admin");
    let layer = builder(MemoryStore::new())
        .tiers(tiers)
        .on_missing_key(MissingKey::Reject)
        .build()
        .unwrap();
    let of_tier = |tier: &str, user: &str| {
        let mut request = request(user);
        request.headers_mut().insert("x-tier", tier.parse().unwrap());
        request
    };
    for _ in 0..3 {
        send(&layer, of_tier("free", "alice")).await;
        send(&layer, of_tier("premium", "bob")).await;
        send(&layer, of_tier("admin", "root")).await;
    }
    send(&layer, of_tier("gold", "carol")).await;
    send(&layer, Request::new(String::new())).await;
    let expected = [
        r#"tier="admin",policy="",outcome="unlimited"} 3"#,
        // Carol's tier is not known, so she is of the first one.
        r#"tier="free",policy="",outcome="allowed"} 3"#,
        r#"tier="free",policy="",outcome="unattributed"} 1"#,
        // Both reject, and the day does so for longer.
        r#"tier="free",policy="day",outcome="rejected"} 1"#,
        r#"tier="premium",policy="",outcome="allowed"} 1"#,
        r#"tier="premium",policy="minute",outcome="rejected"} 2"#,
    ];
    assert_eq!(decisions(&page.text()), expected);
    assert_eq!(page.of("unknown_tier_total"), 1.0);
    assert_eq!(page.of("unattributed_total"), 1.0);
    for user in ["alice", "bob", "root", "carol", "gold"] {
        assert!(!page.text().contains(user), "{user} is in\n{}", page.text());
    }
}

/// Sends a request through a layer that looks up the tier of its user, which takes 10 ms.
pub(crate) async fn look_up_a_tier(limits: &RateLimitLayer, answer: Result<Option<&'static str>, &'static str>) {
    let tiers = TierLayer::from_fn(
        |_| Some(7_u64),
        move |_| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            answer
        },
    );
    let layers = ServiceBuilder::new()
        .layer(tiers.build().unwrap())
        .layer(limits.clone());
    let service = layers.service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Body::default())));
    service.oneshot(request("alice")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_tier_and_those_that_go_on_without_it_are_counted() {
    let page = Page::start();
    let layer = nine_a_day();
    look_up_a_tier(&layer, Ok(Some("pro"))).await;
    let unresolved = |reason| page.value(&format!(r#"tier_unresolved_total{{reason="{reason}"}}"#));
    let all = || ["failed", "full", "unanswered"].map(unresolved);
    assert_eq!(page.value("tier_waits_total"), 1.0);
    assert_eq!(all(), [0.0; 3]);

    look_up_a_tier(&layer, Err("the database is down")).await;
    assert_eq!(page.value("tier_waits_total"), 2.0);
    assert_eq!(all(), [1.0, 0.0, 0.0]);

    let resolver = |_| pending::<Result<Option<String>, Infallible>>();
    let tiers = TierLayer::from_fn(|_| Some(7_u64), resolver).build().unwrap();
    let service = tiers.layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(())));
    let send = || service.clone().oneshot(request("alice"));
    try_join_all((0..4_097).map(|_| send())).await.unwrap();
    assert_eq!(page.value("tier_waits_total"), 2.0 + 4_096.0);
    assert_eq!(all(), [1.0, 1.0, 4_096.0]);
}

/// L10
#[tokio::test(start_paused = true)]
async fn an_outage_is_counted_by_its_reason_and_by_what_became_of_the_requests() {
    let page = Page::start();
    let policy = day(9);
    let clock = Clock::manual(Timestamp::from_micros(0));
    let open = builder_of(Limiter::builder(hanging()).clock(clock))
        .policy(policy.clone())
        .build()
        .unwrap();
    let closed = builder(TestStore::failing(StoreErrorKind::Failed))
        .failure_mode(FailureMode::Closed)
        .policy(policy)
        .build()
        .unwrap();
    for _ in 0..8 {
        assert_eq!(send(&open, request("alice")).await, 200);
        assert_eq!(send(&closed, request("alice")).await, 503);
    }
    let undecided = |reason| page.by("undecided_total", "reason", reason);
    assert_eq!((undecided("timed_out"), undecided("circuit_open")), (5.0, 3.0));
    assert_eq!(undecided("failed"), 8.0);
    let failed = |name| ["open", "closed"].map(|mode| page.by(name, "mode", mode));
    assert_eq!(failed("failed_total"), [8.0, 8.0]);
    // The fifth failure has opened one circuit, and what follows is an outage; the other one stays closed.
    assert_eq!(failed("failed_while_closed_total"), [4.0, 8.0]);
    assert_eq!(page.of("store_seconds_count"), 13.0, "an open circuit asks nobody");
    assert_eq!(page.of("circuit_open"), 1.0);

    drop(open);
    assert_eq!(page.of("circuit_open"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn failed_probe_calls_of_an_open_circuit_do_not_count_as_failures_of_a_closed_one() {
    let page = Page::start();
    let clock = Clock::manual(Timestamp::from_micros(0));
    let limiter = Limiter::builder(TestStore::failing(StoreErrorKind::Unreachable)).clock(clock.clone());
    let layer = builder_of(limiter).policy(day(9)).build().unwrap();
    for _ in 0..30 {
        send(&layer, request("alice")).await;
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(page.by("failed_total", "mode", "open"), 30.0);
    // Each request of the last 25 was a probe call.
    assert_eq!(page.by("undecided_total", "reason", "unreachable"), 30.0);
    assert_eq!(page.of("circuit_open"), 1.0);
    assert_eq!(page.by("failed_while_closed_total", "mode", "open"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn open_circuits_of_layers_with_the_same_scope_are_added_up() {
    let page = Page::start();
    let open = || page.of("circuit_open");
    let layer = || {
        let layer = builder(TestStore::failing(StoreErrorKind::Unavailable));
        layer.policy(day(9)).build().unwrap()
    };
    let (first, second) = (layer(), layer());
    for (layer, expected) in [(&first, 1.0), (&second, 2.0)] {
        for _ in 0..8 {
            send(layer, request("alice")).await;
        }
        assert_eq!(open(), expected);
    }
    drop(first);
    assert_eq!(open(), 1.0);
    drop(second);
    assert_eq!(open(), 0.0);
}

#[tokio::test]
async fn the_time_of_a_store_is_measured_in_seconds_if_it_has_to_be_waited_for() {
    for (answers_at_once, sum) in [(false, 1.5), (true, 0.0)] {
        let page = Page::start();
        let clock = Clock::manual(Timestamp::from_micros(1));
        let store = Distant {
            clock: clock.clone(),
            answers_at_once,
        };
        let layer = nine_a_day_of(builder_of(Limiter::builder(store).clock(clock)));
        send(&layer, request("alice")).await;
        let measured = ["count", "sum"].map(|part| page.of(&format!("store_seconds_{part}")));
        assert_eq!(measured, [1.0, sum]);
    }
}

/// Fails after a second and a half: within `acquire`, or while the layer waits.
#[derive(Debug)]
struct Distant {
    clock: Clock,
    answers_at_once: bool,
}

impl Store for Distant {
    fn acquire(&self, _: Plan) -> StoreFuture<Measurement> {
        let clock = self.clock.clone();
        let answer = move || {
            clock.advance(Duration::from_millis(1_500));
            Err(StoreError::new(StoreErrorKind::Failed, "test"))
        };
        if self.answers_at_once {
            return StoreFuture::ready(answer());
        }
        StoreFuture::boxed(async move { answer() })
    }

    fn settle(&self, _: Settlement) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, _: Plan) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

/// L10
#[tokio::test(start_paused = true)]
async fn requests_that_find_too_many_waiting_are_counted_as_such_and_the_circuit_stays_closed() {
    let page = Page::start();
    let layer = nine_a_day_of(builder_of(Limiter::builder(hanging()).max_waiting(3)));
    let mut requests: Vec<_> = (0..10).map(|_| Box::pin(send(&layer, request("alice")))).collect();
    let mut waiting = 0;
    for request in &mut requests {
        waiting += usize::from(futures_util::poll!(request).is_pending());
    }
    assert_eq!((waiting, page.by("undecided_total", "reason", "overloaded")), (3, 7.0));
    assert_eq!(page.of("circuit_open"), 0.0);
}

#[tokio::test]
async fn what_the_fallback_decides_has_not_failed() {
    let page = Page::start();
    let limiter = Limiter::builder(TestStore::failing(StoreErrorKind::Unreachable)).fallback(MemoryStore::new());
    let layer = builder_of(limiter).policy(day(1)).build().unwrap();
    assert_eq!(send(&layer, request("alice")).await, 200);
    assert_eq!(send(&layer, request("alice")).await, 429);
    assert_eq!(page.by("undecided_total", "reason", "unreachable"), 2.0);
    assert_eq!(page.by("failed_total", "mode", "open"), 0.0);
}

#[tokio::test]
async fn rejections_from_memory_are_counted_apart_and_among_the_decisions() {
    let page = Page::start();
    let layer = builder(RemoteStore::<1>::default()).policy(day(1)).build().unwrap();
    let hits = || page.of("rejection_cache_hits_total");
    assert_eq!(send(&layer, request("alice")).await, 200);
    assert_eq!(hits(), 0.0);
    for _ in 0..3 {
        assert_eq!(send(&layer, request("alice")).await, 429);
    }
    assert_eq!(hits(), 3.0);
    let expected = [
        r#"tier="",policy="",outcome="allowed"} 1"#,
        r#"tier="",policy="day",outcome="rejected"} 3"#,
    ];
    assert_eq!(decisions(&page.text()), expected);
    assert_eq!(page.of("store_seconds_count"), 1.0);
}

#[tokio::test]
async fn slots_are_held_until_the_response_has_ended() {
    let page = Page::start();
    let layer = builder(MemoryStore::new())
        .policy(QuotaPolicy::concurrent("at once", 2))
        .build()
        .unwrap();
    let handler = async |_: Request<String>| Ok::<_, Infallible>(Response::new(Body::from("not read yet")));
    let service = layer.layer(service_fn(handler));
    let held = || page.of("slots_held");
    let first = service.clone().oneshot(request("alice")).await.unwrap();
    let second = service.clone().oneshot(request("alice")).await.unwrap();
    assert_eq!(held(), 2.0);
    assert_eq!(service.oneshot(request("alice")).await.unwrap().status(), 429);
    assert_eq!(held(), 2.0, "a rejected request holds nothing");
    first.into_body().collect().await.unwrap();
    assert_eq!(held(), 1.0);
    drop(second);
    assert_eq!(held(), 0.0);
}

#[tokio::test]
async fn units_are_counted_as_they_were_expected_and_as_they_were_used() {
    let page = Page::start();
    let layer = builder(MemoryStore::new())
        .policy(QuotaPolicy::per_day("in", 1_000).with_unit("input"))
        .policy(QuotaPolicy::per_day("also in", 900).with_unit("input"))
        .policy(QuotaPolicy::per_day("out", 1_000).with_unit("output"))
        .unit_cost("output", |_| 100)
        .unit_cost("input", |_| 10)
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let permit = request.extensions().get().and_then(WeakPermit::upgrade);
        permit.unwrap().set("output", 30);
        Ok::<_, Infallible>(Response::new(String::from("answer")))
    }));
    for _ in 0..3 {
        let response = service.clone().oneshot(request("alice")).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    // This client disconnects.
    drop(service.oneshot(request("alice")).await.unwrap());
    for (unit, amounts) in [("input", [40.0, 40.0]), ("output", [400.0, 190.0])] {
        let units = |amount| {
            page.value(&format!(
                r#"units_total{{scope="test",unit="{unit}",amount="{amount}"}}"#
            ))
        };
        assert_eq!(["expected", "used"].map(units), amounts);
    }
}

#[tokio::test]
async fn refunds_of_callers_are_counted_by_what_became_of_them() {
    let page = Page::start();
    let layer = nine_a_day();
    send(&layer, request("alice")).await;
    let (limiter, alice) = (layer.limiter(), PartitionKey::new("x-user-id", "alice"));
    let refund = Refund::new(1, ChargeTime::Now).with_id("job 1");
    for refund in [&refund, &refund, &refund, &Refund::new(0, ChargeTime::Now)] {
        limiter.caller(&alice).refund(refund).await.unwrap();
    }
    for (outcome, number) in [("refunded", 1.0), ("duplicate", 2.0), ("not_applicable", 1.0)] {
        assert_eq!(page.by("refunds_total", "outcome", outcome), number, "{outcome}");
    }
    let help = "# HELP tower_quota_refunds_total Refunds of callers that did not fail, by result\n";
    assert!(page.text().contains(help));
}

#[tokio::test]
async fn late_charges_are_counted_by_what_became_of_them_and_their_excess_by_units() {
    let page = Page::start();
    let layer = nine_a_day();
    let alice = PartitionKey::new("x-user-id", "alice");
    let caller = layer.limiter().caller(&alice);
    let usage = LateCharge::new(12).with_id("job 1");
    for charge in [&usage, &usage, &usage, &LateCharge::new(10), &LateCharge::new(0)] {
        caller.charge(charge).await.unwrap();
    }
    for (outcome, number) in [
        ("charged", 1.0),
        ("capped", 1.0),
        ("duplicate", 2.0),
        ("not_applicable", 1.0),
    ] {
        assert_eq!(page.by("late_charges_total", "outcome", outcome), number, "{outcome}");
    }
    assert_eq!(page.of("excess_units_total"), 4.0, "18 of 22 were charged");
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_queued_requests_is_measured() {
    let page = Page::start();
    let queue = QuotaPolicy::per_day("queue", 1).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 2 });
    let layer = builder(MemoryStore::new()).policy(queue).build().unwrap();
    for status in [200, 200] {
        assert_eq!(send(&layer, request("alice")).await, status);
    }
    assert_eq!(page.of("queue_wait_seconds_count"), 1.0);
    let sum = page.of("queue_wait_seconds_sum");
    assert!((86_300.0..=86_400.0).contains(&sum), "{sum}");
}

#[tokio::test]
async fn mistakes_of_the_configuration_are_counted_beside_their_warning() {
    let page = Page::start();
    let layer = builder(MemoryStore::new())
        .cost_by(|_| 7)
        .policy(day(5))
        .policy(QuotaPolicy::per_day("bytes", 1_000).with_content_bytes(Direction::Request))
        .build()
        .unwrap();
    for _ in 0..3 {
        let mut request = request("alice");
        *request.method_mut() = http::Method::POST;
        assert_eq!(send(&layer, request).await, 429);
    }
    assert_eq!(page.of("never_fits_total"), 3.0);
    assert_eq!(page.of("uncounted_content_total"), 3.0);
}

#[tokio::test]
async fn partitions_that_are_thrown_out_are_counted() {
    let page = Page::start();
    let store = MemoryStore::builder().max_partitions(10).build().unwrap();
    let layer = builder(store).policy(day(9)).build().unwrap();
    for user in 0..15 {
        send(&layer, request(&user.to_string())).await;
    }
    assert_eq!(page.value("evictions_total"), 5.0);
}

#[tokio::test]
async fn connections_to_redis_that_fail_are_counted() {
    let page = Page::start();
    let store = RedisStore::new(NO_SERVER).unwrap();
    let layer = nine_a_day_of(builder_of(Limiter::builder(store).deadline(Duration::from_secs(60))));
    assert_eq!(send(&layer, request("alice")).await, 200);
    assert!(page.value("connection_failures_total") >= 1.0, "{}", page.text());
    assert_eq!(page.by("undecided_total", "reason", "unreachable"), 1.0);
}

/// A cluster without a known node counts as a lost one until a node is found, or until the store is dropped.
#[tokio::test]
async fn a_cluster_of_which_no_node_is_known_is_one_lost_node_until_it_is_dropped() {
    let page = Page::start();
    let layer = |scope: &str| {
        let store = RedisStore::cluster([NO_SERVER]).unwrap();
        let limiter = Limiter::builder(store).deadline(Duration::from_secs(60));
        nine_a_day_of(builder_of(limiter).scope(scope))
    };
    let lost = || page.value("lost_nodes");
    let layers = ["first", "second"].map(layer);
    for (layer, expected) in layers.iter().zip([1.0, 2.0]) {
        for _ in 0..20 {
            assert_eq!(send(layer, request("alice")).await, 200);
        }
        assert_eq!(lost(), expected);
    }
    assert_eq!(page.value(r#"circuit_open{scope="first"}"#), 0.0);
    drop(layers);
    // The tasks that look for nodes end first.
    until("nobody looks for nodes", async || lost() == 0.0).await;
}

/// Sends requests of many users, so that each node is called, until `nodes` nodes are lost.
async fn send_until_lost(layer: &RateLimitLayer, page: &Page, nodes: u8) {
    until("so many nodes are lost", async || {
        for user in 0..20 {
            send(layer, request(&user.to_string())).await;
        }
        page.value("lost_nodes") == f64::from(nodes)
    })
    .await;
}

fn cluster_layer(cluster: &RedisCluster) -> RateLimitLayer {
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    builder_of(Limiter::builder(store).rejection_cache(0))
        .policy(day(1_000_000))
        .build()
        .unwrap()
}

/// L9
#[tokio::test]
async fn nodes_of_a_cluster_that_do_not_answer_are_counted_until_they_do() {
    let page = Page::start();
    let cluster = RedisCluster::start(3, 0);
    let layer = cluster_layer(&cluster);
    send_until_lost(&layer, &page, 0).await;
    for lost in [1, 2] {
        cluster.nodes[usize::from(lost)].pause();
        send_until_lost(&layer, &page, lost).await;
    }
    let text = page.text();
    let lines = || samples(&text).into_iter().filter(|line| line.contains("lost_nodes"));
    assert_eq!(lines().collect::<Vec<_>>(), ["tower_quota_lost_nodes 2"]);
    assert_eq!(page.of("circuit_open"), 0.0);
    for lost in [2, 1] {
        cluster.nodes[usize::from(lost)].resume();
        send_until_lost(&layer, &page, lost - 1).await;
    }
}

/// L9: the node's circuit never closes, because requests no longer reach it.
#[tokio::test]
async fn a_lost_node_whose_replica_has_taken_over_is_not_counted_any_more() {
    let page = Page::start();
    let cluster = RedisCluster::start(3, 1);
    let layer = cluster_layer(&cluster);
    send_until_lost(&layer, &page, 0).await;
    cluster.nodes[0].kill();
    send_until_lost(&layer, &page, 1).await;
    send_until_lost(&layer, &page, 0).await;
    assert_ne!(
        cluster.nodes[3].command(&["ROLE"]).split_whitespace().next(),
        Some("slave")
    );
}

/// Without a runtime, no task can send the settlement to the server.
pub(crate) fn lose_a_settlement() {
    let policies = PolicySet::new([day(9)]).unwrap();
    let alice = Scope::new("test").partition(&PartitionKey::new("user", "alice"));
    let decision = MemoryStore::new().decide(Plan::new(policies, alice, 1)).now_or_never();
    let settlement = Settlement::new(&decision.unwrap().unwrap(), 0);
    drop(RedisStore::new("redis://127.0.0.1/").unwrap().settle(settlement));
}

#[test]
fn charges_that_are_not_settled_are_counted() {
    let page = Page::start();
    lose_a_settlement();
    assert_eq!(page.value("unsettled_total"), 1.0);
}

/// All names that begin with the name of the crate, without the suffixes of histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let names = words.filter(|word| word.starts_with("tower_quota_"));
    let suffixes = ["_bucket", "_sum", "_count"];
    names
        .map(|name| {
            let cut = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            cut.unwrap_or(name).to_owned()
        })
        .collect()
}

/// A quantile never exceeds the last finite bucket boundary, even if the measurements do.
#[tokio::test(start_paused = true)]
async fn alerts_on_quantiles_can_fire_with_the_buckets_of_the_example() {
    let page = Page::start();
    let queue = QuotaPolicy::per_minute("queue", 1).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 1 });
    let layer = builder(MemoryStore::new()).policy(queue).build().unwrap();
    for _ in 0..2 {
        send(&layer, request("alice")).await;
    }
    let page = page.text();
    let alerts = alerts();
    let alerts = alerts
        .lines()
        .filter_map(|line| line.split_once("histogram_quantile(0.99, "));
    let mut count = 0;
    for (_, alert) in alerts {
        let name = names(alert).pop_first().unwrap();
        let bound = alert.split_once(") > ").unwrap().1.split(' ').next().unwrap();
        let prefix = format!(r#"{name}_bucket{{scope="test",le=""#);
        let borders = page
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.split('"').next());
        let borders = borders
            .filter_map(|border| border.parse().ok())
            .filter(|border: &f64| border.is_finite());
        let last = borders.fold(0.0, f64::max);
        assert!(last > bound.parse().unwrap(), "{name}: {last} {bound}");
        count += 1;
    }
    assert_eq!(count, 2);
}

/// A separate layer follows rules in a file and rejects the next ones.
async fn follow_and_reject() {
    let layer = nine_a_day();
    let path = std::env::temp_dir().join(format!("tower-quota-rules-{}", std::process::id()));
    let rules = Rules::new().policy(day(8));
    fs::write(&path, RulesDocument::new(1, rules).to_json().unwrap()).unwrap();
    let follower = RulesFollower::builder(layer.limiter().rules(), FileRules::new(&path));
    let follower = follower.start().unwrap();
    follower.wait_for_rules().await;
    fs::write(&path, "no rules").unwrap();
    until("the rules are rejected", async || {
        follower.status().rejected().is_some()
    })
    .await;
    fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn decisions_outside_of_http_are_counted_as_those_of_requests_are() {
    let page = Page::start();
    let limiter = tower_quota::Limiter::builder(MemoryStore::new())
        .scope("jobs")
        .policy(day(2))
        .build()
        .unwrap();
    for _ in 0..2 {
        limiter.check("alice").await;
        let _ = limiter.caller("alice").hold().await;
    }
    for (policy, outcome) in [("", "allowed"), ("day", "rejected")] {
        let labels = format!(r#"{{scope="jobs",tier="",policy="{policy}",outcome="{outcome}"}}"#);
        assert_eq!(page.value(&format!("decisions_total{labels}")), 2.0);
    }
}

/// An operator who receives an alert needs a line for it. No alert covers what a shadow policy would reject, the origin
/// of a rejection, refunds and late charges by a job, new users that wait for a lookup, overrides of a process, or late
/// batches, because a store that does not answer has separate alerts. Requests that fail while the circuit is closed are
/// included in all requests that fail.
const WITHOUT_ALERT: [&str; 13] = [
    "tower_quota_connection_failures_total",
    "tower_quota_excess_units_total",
    "tower_quota_failed_while_closed_total",
    "tower_quota_late_batches_total",
    "tower_quota_late_charges_total",
    "tower_quota_over_quota_total",
    "tower_quota_refunds_total",
    "tower_quota_rejection_cache_hits_total",
    "tower_quota_rules_overridden",
    "tower_quota_rules_policy_version",
    "tower_quota_shadow_rejections_total",
    "tower_quota_tier_waits_total",
    "tower_quota_unread_bodies_total",
];

#[tokio::test(start_paused = true)]
async fn the_documentation_names_all_that_is_counted_and_its_alerts_nothing_else() {
    let page = Page::start();
    let layer = builder(MemoryStore::new())
        .policy(day(9))
        .policy(QuotaPolicy::per_day("planned", 1).shadow())
        .policy(window("soft", 1).with_overage(900))
        .policy(QuotaPolicy::per_day("tokens", 9).with_unit("tokens"))
        .unit_cost("tokens", |_| 1)
        .build()
        .unwrap();
    send(&layer, request("alice")).await;
    send(&layer, request("alice")).await;
    let alice = PartitionKey::new("x-user-id", "alice");
    let refund = Refund::new(1, ChargeTime::Now);
    layer.limiter().caller(&alice).refund(&refund).await.unwrap();
    layer
        .limiter()
        .caller(&alice)
        .charge(&LateCharge::new(1))
        .await
        .unwrap();
    let source = documentation();
    let rows: Vec<_> = source
        .lines()
        .filter(|line| line.starts_with("| `tower_quota_"))
        .collect();
    crate::tokens::of_every_outcome().await;
    look_up_a_tier(&layer, Ok(Some("pro"))).await;
    follow_and_reject().await;
    let counted = names(&page.text());
    assert_eq!(names(&rows.join("\n")), counted);
    let alerts = names(&alerts());
    assert!(alerts.len() > 10 && alerts.is_subset(&counted), "{alerts:?}");
    let silent: Vec<_> = counted.difference(&alerts).collect();
    assert_eq!(silent, WITHOUT_ALERT);
}

//! The log for operators: a line when something changes, however many requests there are, and never who the caller is.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{convert::Infallible, fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use test_kit::{Log, TestStore, Timing};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Direction, Limiter, LimiterBuilder, Measurement, MemoryStore, Plan, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, Settlement, Store, StoreError, StoreErrorKind, StoreFuture, Tiers,
    clock::{Clock, Timestamp},
    key::{self, KeyExtractor},
    tier::TierLayer,
};
use tracing::{Instrument, Level, field::Empty, info_span};

#[path = "telemetry/mistakes.rs"]
mod mistakes;

/// Sends `requests` requests of a user through the layer and returns the lines that were logged.
fn lines_of(layer: &RateLimitLayer, requests: usize) -> Vec<String> {
    lines_of_method(layer, Method::GET, requests)
}

fn lines_of_method(layer: &RateLimitLayer, method: Method, requests: usize) -> Vec<String> {
    lines_of_task(async {
        for _ in 0..requests {
            let request = Request::builder()
                .method(&method)
                .header("x-user-id", "alice")
                .header("x-tier", "gold")
                .body(String::new())
                .unwrap();
            layer.layer(service_fn(ok)).oneshot(request).await.unwrap();
        }
    })
}

async fn ok(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::default())
}

/// The lines that are logged by a task whose timers do not wait in real time.
fn lines_of_task(task: impl Future<Output = ()>) -> Vec<String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    lines_while(|| runtime.block_on(task))
}

/// The lines that are logged while something is done, without explanations of requests.
fn lines_while(action: impl FnOnce()) -> Vec<String> {
    let all = all_lines_while(Level::TRACE, action).into_iter();
    all.filter(|line| !line.contains(EXPLAINED)).collect()
}

const EXPLAINED: &str = "request explained";

fn all_lines_while(level: Level, action: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, action);
    log.text().lines().map(|line| line.trim().to_owned()).collect()
}

/// The last fields of the event of a mistake.
fn mistake(name: &str) -> String {
    let version = include_str!("../Cargo.toml").split("version = \"").nth(1).unwrap();
    let version = version.split('"').next().unwrap();
    format!("mistake={name} help=https://docs.rs/tower-quota/{version}/tower_quota/docs/mistakes/index.html#{name}")
}

/// The line of the event of a mistake.
fn line_of(name: &str, event: &str) -> String {
    format!("WARN tower_quota: {event} {}", mistake(name))
}

/// A store whose answers this function gives.
struct Answering<F>(F);

impl<F> fmt::Debug for Answering<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

impl<F: Fn() -> StoreFuture<Measurement> + Send + Sync + 'static> Store for Answering<F> {
    fn acquire(&self, _: Plan) -> StoreFuture<Measurement> {
        self.0()
    }

    fn settle(&self, _: Settlement) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, _: Plan) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

fn by_user(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    let builder = RateLimitLayerBuilder::from(limiter);
    builder.scope("log").key(key::header("x-user-id"))
}

fn in_memory() -> RateLimitLayerBuilder {
    by_user(Limiter::builder(MemoryStore::new()))
}

fn layer(store: impl Store) -> RateLimitLayer {
    layer_of(Limiter::builder(store))
}

fn layer_of(limiter: LimiterBuilder) -> RateLimitLayer {
    let policy = QuotaPolicy::per_hour("hourly", 1);
    by_user(limiter).policy(policy).build().unwrap()
}

#[test]
fn allowed_and_rejected_requests_are_not_logged() {
    assert_eq!(lines_of(&layer(MemoryStore::new()), 100), Vec::<String>::new());
}

#[test]
fn an_outage_is_told_once_however_many_requests_it_meets() {
    let lines = lines_of(&layer(TestStore::failing(StoreErrorKind::Unreachable)), 10_000);
    let expected = [
        "WARN tower_quota: quota store made no decision scope=log error=store unreachable: test suppressed=0",
        "ERROR tower_quota: circuit opened: quota store not responding scope=log error=store unreachable: test",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn errors_that_leave_the_circuit_closed_are_told_once_in_ten_seconds() {
    let lines = lines_of(&layer(TestStore::failing(StoreErrorKind::Failed)), 10_000);
    assert_eq!(
        lines,
        ["WARN tower_quota: quota store made no decision scope=log error=store failed: test suppressed=0"]
    );
}

/// Found with an idle Redis: half of the requests passed uncounted, and the log reported only that there were some.
#[test]
fn while_requests_stay_undecided_although_the_circuit_is_closed_it_is_told_how_many_every_ten_seconds() {
    let clock = Clock::manual(Timestamp::from_micros(1));
    let failing_later = TestStore::new(MemoryStore::new(), Timing::FailingLater(StoreErrorKind::Failed));
    let layer = layer_of(Limiter::builder(failing_later).clock(clock.clone()));
    let mut lines = Vec::new();
    for pause in [1; 25].into_iter().chain([60, 1, 1]) {
        lines.extend(lines_of(&layer, 2));
        clock.advance(Duration::from_secs(pause));
    }
    lines.retain(|line| line.contains("closed"));
    let line = "WARN quota_decision{scope=log}: tower_quota: requests undecided while the circuit is closed \
        scope=log error=store failed: test undecided=21 waited=20 seconds=10";
    let next = line.replace("=20", "=19").replace("=21", "=20");
    assert_eq!(lines, [line, &next]);
}

/// Found by killing Redis under load: the failed probe calls of an open circuit were reported as failures of a closed
/// one.
#[test]
fn failed_probe_calls_of_an_open_circuit_are_not_told_as_failures_of_a_closed_one() {
    let clock = Clock::manual(Timestamp::from_micros(1));
    let failing = TestStore::failing(StoreErrorKind::Unreachable);
    let layer = layer_of(Limiter::builder(failing).clock(clock.clone()));
    let mut lines = lines_of(&layer, 5);
    for _ in 0..30 {
        clock.advance(Duration::from_secs(1));
        lines.extend(lines_of(&layer, 2));
    }
    let opened = lines.iter().filter(|line| line.contains("circuit opened"));
    assert_eq!(opened.count(), 1);
    assert!(!lines.iter().any(|line| line.contains("closed")), "{lines:#?}");
}

/// Decision 13: a missing peer address must not throttle a whole site in silence.
#[test]
fn requests_without_a_key_or_with_an_unknown_tier_are_warned_of_once() {
    let builder = RateLimitLayer::builder(MemoryStore::new()).scope("log");
    let tiers = Tiers::from_fn(|request| request.headers.get("x-tier").and_then(|tier| tier.to_str().ok()));
    let layer = builder
        .key(key::header("x-nobody-sends"))
        .tiers(tiers.tier("free", [QuotaPolicy::per_hour("hourly", 1)]))
        .build()
        .unwrap();
    let expected = [
        line_of(
            "unknown-tier",
            "a request has an unknown tier; the first tier is used scope=log",
        ),
        line_of(
            "no-key",
            "a request has no key; is the peer address or the user ID missing from its extensions? scope=log",
        ),
    ];
    assert_eq!(lines_of(&layer, 100), expected);
    assert_eq!(lines_of(&layer, 100), Vec::<String>::new());
}

/// L30
#[test]
fn what_a_shadow_would_have_rejected_is_told_once_in_ten_seconds() {
    let layer = in_memory()
        .policy(QuotaPolicy::per_hour("hour", 1_000))
        .policy(QuotaPolicy::per_hour("planned", 2).shadow())
        .build()
        .unwrap();
    assert_eq!(
        lines_of(&layer, 100),
        ["INFO tower_quota: shadow policy would have rejected a request scope=log policy=planned suppressed=0"]
    );
}

#[test]
fn a_request_above_a_quota_with_an_overage_is_told_once_in_ten_seconds() {
    let policy = QuotaPolicy::per_hour("hour", 2).with_algorithm(Algorithm::FixedWindow);
    let layer = in_memory().policy(policy.with_overage(10_000)).build().unwrap();
    let expected = "INFO tower_quota: request admitted above the quota, within the overage scope=log policy=hour \
                    suppressed=0";
    assert_eq!(lines_of(&layer, 50), [expected]);
}

/// D11: the other tests have windows of an hour, because `tracing` might disable for good an event that one of them met
/// first, without a subscriber.
#[test]
fn a_lone_large_window_is_warned_of_when_the_layer_is_built() {
    let build = |policies: &[QuotaPolicy]| {
        let builder = RateLimitLayer::builder(MemoryStore::new())
            .scope("log")
            .key(key::client_ip());
        let builder = policies
            .iter()
            .cloned()
            .fold(builder, |builder, policy| builder.policy(policy));
        lines_while(|| drop(builder.build().unwrap()))
    };
    let day = QuotaPolicy::per_day("day", 5_000);
    assert_eq!(
        build(std::slice::from_ref(&day)),
        [line_of(
            "lone-large-window",
            "the shortest window is longer than an hour, so a caller can exhaust its quota in one burst; add a policy \
             with a short window scope=log window_seconds=86400"
        )]
    );
    assert_eq!(build(&[QuotaPolicy::per_hour("hour", 9)]), Vec::<String>::new());
    for other in [
        QuotaPolicy::per_hour("hour", 9),
        QuotaPolicy::concurrent("slots", 9),
        QuotaPolicy::per_day("even", 9).with_algorithm(Algorithm::LeakyBucketMeter),
    ] {
        assert_eq!(build(&[day.clone(), other]), Vec::<String>::new());
    }
}

/// Decision 12: never is a fault of the configuration, not of the client.
#[test]
fn a_cost_that_never_fits_is_told_once() {
    let layer = in_memory()
        .cost_by(|_| 7)
        .policy(QuotaPolicy::per_hour("hourly", 100))
        .policy(QuotaPolicy::per_second("burst", 5))
        .build()
        .unwrap();
    let expected = line_of(
        "cost-above-capacity",
        "request cost exceeds the capacity of a policy, so the request can never be admitted \
         scope=log policy=burst cost=7 capacity=5",
    );
    assert_eq!(lines_of(&layer, 100), [expected]);
}

#[test]
fn waits_in_a_queue_are_told_once_in_ten_seconds() {
    let queue = Algorithm::LeakyBucketQueue { max_waiting: 1_000 };
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let policy = QuotaPolicy::per_second("queue", 1_000).with_algorithm(queue);
    let layer = by_user(Limiter::builder(store)).policy(policy).build().unwrap();
    let expected = "DEBUG tower_quota: request queued scope=log delay_seconds=0.001 suppressed=0";
    assert_eq!(lines_of(&layer, 100), [expected]);
}

#[test]
fn content_that_nobody_counts_is_told_once() {
    let bytes = QuotaPolicy::per_hour("bytes", 1_000_000).with_content_bytes(Direction::Request);
    let layer = in_memory().policy(bytes).build().unwrap();
    assert_eq!(lines_of(&layer, 10), Vec::<String>::new(), "GET has no content");
    let expected = line_of(
        "content-not-counted",
        "a request has content of unknown length, which is not counted; is `RequestContentLayer` missing outside the \
         rate limit? scope=log",
    );
    assert_eq!(lines_of_method(&layer, Method::POST, 100), [expected]);
}

/// A rejection cannot be waited for.
#[cfg(feature = "axum")]
#[test]
fn a_rejection_with_a_stream_as_its_body_is_told_once() {
    use axum::{body::Body, response::Response};
    use futures_util::stream;

    let layer = in_memory()
        .policy(QuotaPolicy::per_hour("hourly", 1))
        .respond_with_axum(|_| Response::new(Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())))
        .build()
        .unwrap();
    let expected = line_of(
        "streamed-rejection",
        "custom rejection has a streaming body, which is not supported; the default response is sent instead",
    );
    assert_eq!(lines_of(&layer, 100), [expected]);
}

#[test]
fn tiers_that_no_layer_looks_up_are_told_once() {
    let tiers = Tiers::resolved().tier("free", [QuotaPolicy::per_minute("minute", 1_000)]);
    let layer = in_memory().tiers(tiers).build().unwrap();
    let expected = line_of(
        "no-tier-layer",
        "a request has not passed a `TierLayer`, which must look up its tier; is the layer missing outside the rate \
         limit? scope=log",
    );
    let tiers = TierLayer::from_fn(|_| Some(7_u64), async |_| Ok::<_, Infallible>(None::<&str>));
    let tiers = tiers.build().unwrap();
    let resolved = lines_of_task(async {
        let service = tiers.layer(layer.layer(service_fn(ok)));
        service.oneshot(Request::new(String::new())).await.unwrap();
    });
    let without_a_key = |line: &String| !line.contains("a request has no key");
    assert_eq!(
        resolved.iter().filter(|line| without_a_key(line)).count(),
        0,
        "{resolved:?}"
    );
    assert_eq!(lines_of(&layer, 100), [expected]);
}

#[test]
fn tiers_that_cannot_be_looked_up_are_told_once_in_ten_seconds_and_not_whose_they_are() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let layer = TierLayer::by_extension(async |_: String| Err::<Option<String>, _>("the database is down"));
    let layer = layer.clock(clock.clone()).build().unwrap();
    let send = async |user: usize| {
        let request = Request::builder().extension(format!("alice {user}"));
        let service = layer.layer(service_fn(ok));
        service.oneshot(request.body(String::new()).unwrap()).await.unwrap();
    };
    let lines = lines_of_task(async {
        for user in 0..100 {
            send(user).await;
        }
        clock.advance(Duration::from_secs(10));
        send(100).await;
    });
    let line = "WARN tower_quota: tier lookup failed error=the database is down";
    assert_eq!(lines, [format!("{line} suppressed=0"), format!("{line} suppressed=99")]);
}

/// Sends a request in a span that has fields for the decision, and returns the lines that were logged.
fn lines_in_span(layer: &RateLimitLayer) -> Vec<String> {
    let sent = async {
        let request = Request::builder().header("x-user-id", "alice").body(String::new());
        let service = layer.layer(service_fn(ok));
        service.oneshot(request.unwrap()).await.unwrap();
        tracing::info!("sent");
    };
    lines_of_task(async {
        let span = info_span!(
            "request",
            quota.scope = Empty,
            quota.policy = Empty,
            quota.outcome = Empty
        );
        sent.instrument(span).await;
    })
}

#[test]
fn a_decision_is_recorded_in_the_fields_that_the_span_around_it_has() {
    let layer = layer(MemoryStore::new());
    let line = |policy: &str, outcome: &str| {
        [format!(
            "INFO request{{quota.scope=\"log\" quota.policy=\"{policy}\" quota.outcome=\"{outcome}\"}}: \
             telemetry: sent"
        )]
    };
    assert_eq!(lines_in_span(&layer), line("", "allowed"));
    assert_eq!(lines_in_span(&layer), line("hourly", "rejected"));
}

/// Traces show how long a request has waited for its store.
#[test]
fn a_request_waits_for_its_store_in_a_span_of_its_own() {
    let hanging = Answering(|| {
        StoreFuture::boxed(async {
            tracing::info!("asked");
            std::future::pending().await
        })
    });
    let lines = lines_in_span(&layer(hanging));
    assert_eq!(lines[0], "INFO request:quota_decision{scope=log}: telemetry: asked");
    let undecided = "WARN request:quota_decision{scope=log}: tower_quota: quota store made no decision \
                     scope=log error=store timed out: no decision within 50ms suppressed=0";
    assert_eq!(lines[1], undecided);
    assert!(lines[2].contains("quota.outcome=\"failed_open\""), "{}", lines[2]);
}

/// A flood of requests makes no flood of lines.
#[test]
fn at_level_debug_one_request_in_ten_seconds_is_explained_and_at_level_info_none() {
    for (level, lines) in [(Level::DEBUG, 1), (Level::INFO, 0)] {
        let log = all_lines_while(level, || {
            let hour = QuotaPolicy::per_hour("hour", 10);
            let layer = in_memory().scope("explained").policy(hour).build().unwrap();
            tokio_test::block_on(async {
                for _ in 0..5 {
                    test_kit::send(&layer, test_kit::request("alice")).await;
                }
            });
        });
        let explained: Vec<_> = log.iter().filter(|line| line.contains(EXPLAINED)).collect();
        assert_eq!(explained.len(), lines, "{log:?}");
        for line in explained {
            let text = r#"explanation=scope "explained": its policies decide; access: no rule or exemption applies; "#;
            assert!(
                line.contains(text) && line.contains("; key: x-user-id, partition "),
                "{line}"
            );
            assert!(!line.contains("alice"), "{line}");
        }
    }
}

//! The exact responses that a client gets, and the caller that the layer counts.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};
use test_kit::{Answered, TestStore, limits, limits_of, memory, request, send};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ConfigErrorKind, FailureMode, Limiter, LimiterBuilder, MemoryStore, MissingKey, Outcome, QuotaPolicy,
    RateLimitLayer, RateLimitLayerBuilder, ResponseFields, StoreErrorKind, Tiers,
    clock::{Clock, Timestamp},
    key::{self, KeyExtractor},
};

fn json(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

fn manual_store() -> (Clock, MemoryStore) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    (clock.clone(), memory(&clock))
}

fn builder(store: MemoryStore) -> RateLimitLayerBuilder {
    builder_of(Limiter::builder(store))
}

/// A layer with these policies, and its clock.
fn limited(policies: impl IntoIterator<Item = QuotaPolicy>) -> (Clock, RateLimitLayer) {
    let (clock, store) = manual_store();
    let builder = policies.into_iter().fold(builder(store), RateLimitLayerBuilder::policy);
    (clock, builder.build().unwrap())
}

fn builder_of(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    limits_of(limiter).scope("responses")
}

/// L2, L4, L22, L23, L27, A3, B1, B2, D1, D2, D4
#[tokio::test]
async fn three_windows_are_held_at_once_and_shown_in_one_list() {
    let minute = QuotaPolicy::per_minute("minute", 3);
    let (clock, layer) = limited([
        QuotaPolicy::per_second("second", 2),
        minute,
        QuotaPolicy::per_day("day", 1_000),
    ]);
    let shown = ["ratelimit-policy", "ratelimit", "retry-after"];
    let policies = r#""second";q=2;w=1, "minute";q=3;w=60, "day";q=1000;w=86400"#;

    let first = send(&layer, request("alice")).await;
    assert_eq!((first.code(), first.body()), (200, &Bytes::from("hello")));
    let limits = r#""second";r=1;t=1, "minute";r=2;t=40, "day";r=999;t=86314"#;
    assert_eq!(first.fields(shown), [policies, limits, ""]);

    send(&layer, request("alice")).await;
    let third = send(&layer, request("alice")).await;
    let limits = r#""second";r=0;t=1, "minute";r=1;t=20, "day";r=998;t=86228"#;
    assert_eq!((third.code(), third.fields(shown)), (429, [policies, limits, "1"]));
    assert_eq!(json(&third)["violated-policies"], json!(["second"]));

    // The rejection has taken nothing, neither of the minute nor of the day.
    clock.advance(Duration::from_secs(1));
    let fourth = send(&layer, request("alice")).await;
    let limits = r#""second";r=1;t=1, "minute";r=0;t=19, "day";r=997;t=86141"#;
    assert_eq!(fourth.field("ratelimit"), limits);
    let fifth = send(&layer, request("alice")).await;
    assert_eq!((fifth.code(), fifth.field("retry-after")), (429, "19"));
    assert_eq!(json(&fifth)["violated-policies"], json!(["minute"]));
}

/// C1, C2, C3, C4, C5, C9, C10, L3
#[tokio::test]
async fn a_rejection_is_a_problem_with_all_violated_policies_and_no_others() {
    let quoted = QuotaPolicy::per_minute(r#"with "quotes""#, 1);
    let (_, layer) = limited([quoted, QuotaPolicy::per_hour("hour", 2), QuotaPolicy::per_day("day", 1)]);
    send(&layer, request("alice")).await;
    let rejected = send(&layer, request("alice")).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.field("content-type"), "application/problem+json");
    assert_eq!(
        json(&rejected),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": [r#"with "quotes""#, "day"],
        })
    );
    // The longest wait of the two.
    assert_eq!(rejected.field("retry-after"), "86400");
    assert_eq!(rejected.decision().retry_after(), Some(Duration::from_secs(86_400)));
}

/// A8, A21, E2, J31, K12: in any pattern, even all at once; each caller has a separate quota, and each response the same
/// policy.
#[tokio::test]
async fn the_whole_quota_of_a_window_may_be_used_in_its_first_second() {
    let (clock, layer) = limited([QuotaPolicy::per_minute("minute", 100)]);
    for user in ["alice", "bob"] {
        for number in 1..=101 {
            let response = send(&layer, request(user)).await;
            assert_eq!(response.code(), if number > 100 { 429 } else { 200 }, "{user} {number}");
            assert_eq!(response.field("ratelimit-policy"), r#""minute";q=100;w=60"#);
        }
    }
    clock.advance(Duration::from_secs(60));
    for _ in 0..100 {
        assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
    }
}

/// L6
#[tokio::test]
async fn a_burst_capacity_above_the_rate_passes_at_once_and_then_the_rate_holds() {
    let (clock, layer) = limited([QuotaPolicy::per_second("bursty", 1).with_burst_capacity(5)]);
    for passing in [5, 1] {
        for _ in 0..passing {
            assert_eq!(send(&layer, request("alice")).await.code(), 200);
        }
        let rejected = send(&layer, request("alice")).await;
        assert_eq!((rejected.code(), rejected.field("retry-after")), (429, "1"));
        clock.advance(Duration::from_secs(1));
    }
}

/// J27
#[tokio::test]
async fn fields_of_the_application_stand_beside_ours() {
    let (_, layer) = limited([QuotaPolicy::per_minute("minute", 9)]);
    let handler = service_fn(async |_: Request<String>| {
        let response = Response::builder()
            .header("acme-RateLimit-DayLimit", "5000")
            .header("acme-RateLimit-HourLimit", "1000");
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
    });
    let response = layer.layer(handler).oneshot(request("alice")).await.unwrap();
    let headers = response.headers();
    assert_eq!(headers["acme-ratelimit-daylimit"], "5000");
    assert_eq!(headers["acme-ratelimit-hourlimit"], "1000");
    assert_eq!(headers["ratelimit"], r#""minute";r=8;t=54"#);
}

/// C4, C5, C6, C9
#[tokio::test]
async fn a_rejection_without_a_decision_is_a_problem_of_reduced_capacity() {
    let layer = limits(TestStore::failing(StoreErrorKind::Unreachable))
        .policy(QuotaPolicy::per_minute("minute", 1))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    let rejected = send(&layer, request("alice")).await;
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected.field("content-type"), "application/problem+json");
    assert_eq!(
        json(&rejected),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "violated-policies": [],
        })
    );
    assert_eq!(rejected.field("retry-after"), "1");
}

/// C11, C12, K16
#[tokio::test]
async fn a_custom_response_keeps_the_fields_and_the_wait() {
    let (_, store) = manual_store();
    let layer = builder(store)
        .policy(QuotaPolicy::per_minute("minute", 1))
        .respond_with(|rejection| {
            assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(rejection.request().headers["x-user-id"], "alice");
            assert_eq!(rejection.retry_after(), Some(Duration::from_secs(60)));
            let mut response = Response::new("go away".into());
            *response.status_mut() = StatusCode::FORBIDDEN;
            // Neither can be taken away or made smaller.
            response.headers_mut().insert(header::RETRY_AFTER, "1".parse().unwrap());
            response
        })
        .build()
        .unwrap();
    send(&layer, request("alice")).await;
    let rejected = send(&layer, request("alice")).await;
    assert_eq!((rejected.code(), rejected.body()), (403, &Bytes::from("go away")));
    let fields = rejected.fields(["ratelimit", "ratelimit-policy", "retry-after"]);
    assert_eq!(fields, [r#""minute";r=0;t=60"#, r#""minute";q=1;w=60"#, "60"]);
    assert_eq!(rejected.outcome(), Outcome::Rejected);
}

/// A client that waits for the seconds in a body must not come back too early.
#[tokio::test]
async fn the_seconds_of_a_rejection_are_those_of_its_field() {
    for (passed, seconds) in [(0, "2"), (1, "2"), (200_000, "2"), (1_000_000, "1"), (1_999_999, "1")] {
        for lengthened in [false, true] {
            let (clock, store) = manual_store();
            let jitter = Duration::from_secs(if lengthened { 3_600 } else { 0 });
            let fields = ResponseFields::draft11().with_jitter(jitter);
            let layer = builder(store)
                .policy(QuotaPolicy::per_minute("minute", 30).with_burst_capacity(1))
                .response_fields(fields)
                .respond_with(|rejection| {
                    let own = rejection.decision().retry_after_secs().unwrap();
                    let told = rejection.retry_after_secs().unwrap();
                    Response::new(format!("{own} {told}").into())
                })
                .build()
                .unwrap();
            send(&layer, request("alice")).await;
            clock.advance(Duration::from_micros(passed));
            let rejected = send(&layer, request("alice")).await;
            let told = rejected.field("retry-after");
            assert_eq!(rejected.body(), &format!("{seconds} {told}"), "{passed}");
            assert!(lengthened || told == seconds, "{passed}: {told}");
            let decision = rejected.decision().retry_after_secs();
            assert_eq!(decision.map(|decision| decision.to_string()).as_deref(), Some(seconds));
        }
    }
}

/// G8: an application may send a client away for longer than its quota would, in seconds or until a date.
#[tokio::test]
async fn a_custom_response_may_ask_for_a_longer_wait() {
    for (asked, told) in [
        ("3600", "3600"),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"),
        ("60", "60"),
        ("59", "60"),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "60"),
        ("later", "60"),
    ] {
        let (_, store) = manual_store();
        let layer = builder(store)
            .policy(QuotaPolicy::per_minute("minute", 1))
            .respond_with(move |rejection| {
                let mut response = rejection.to_response();
                let asked = asked.parse().unwrap();
                response.headers_mut().insert(header::RETRY_AFTER, asked);
                response
            })
            .build()
            .unwrap();
        send(&layer, request("alice")).await;
        let rejected = send(&layer, request("alice")).await;
        assert_eq!(rejected.field("retry-after"), told, "{asked}");
    }
}

/// L5
#[tokio::test]
async fn tiers_have_limits_of_their_own_and_an_unlimited_one_has_none() {
    let (_, store) = manual_store();
    let tiers = Tiers::from_fn(|request| request.headers.get("x-tier").and_then(|tier| tier.to_str().ok()))
        .tier("free", [QuotaPolicy::per_minute("minute", 1)])
        .tier("premium", [QuotaPolicy::per_minute("minute", 3)])
        .unlimited("admin");
    let layer = builder(store).tiers(tiers).build().unwrap();
    let request = |user: &str, tier: &str| {
        let mut request = request(user);
        request.headers_mut().insert("x-tier", tier.parse().unwrap());
        request
    };
    let passes = async |user: &'static str, tier: &str| {
        let mut passed = 0;
        for _ in 0..10 {
            passed += u32::from(send(&layer, request(user, tier)).await.status() == StatusCode::OK);
        }
        passed
    };
    assert_eq!(passes("free user", "free").await, 1);
    assert_eq!(passes("premium user", "premium").await, 3);
    assert_eq!(passes("admin", "admin").await, 10);
    assert_eq!(
        passes("stranger", "platinum").await,
        1,
        "an unknown tier is the first one"
    );
    let nobody = send(&layer, test_kit::request("nobody")).await;
    assert_eq!(nobody.field("ratelimit-policy"), r#""minute";q=1;w=60"#);
    let unlimited = send(&layer, request("admin", "admin")).await;
    assert_eq!(unlimited.outcome(), Outcome::Unlimited);
    assert_eq!(unlimited.field("ratelimit"), "");
    // A caller that moves to another tier keeps its used units.
    assert_eq!(passes("free user", "premium").await, 2);
}

#[tokio::test]
async fn a_request_that_is_rejected_for_want_of_a_key_gets_a_problem_of_no_quota_and_no_fields() {
    let builder = builder(manual_store().1).policy(QuotaPolicy::per_minute("minute", 1));
    let layer = builder.on_missing_key(MissingKey::Reject).build().unwrap();
    let rejected = send(&layer, Request::new(String::new())).await;
    assert_eq!((rejected.code(), rejected.outcome()), (403, Outcome::MissingKey));
    assert_eq!(json(&rejected)["type"], "about:blank");
    assert_eq!((rejected.field("ratelimit"), rejected.field("retry-after")), ("", ""));
}

/// A client that sends the header of a gateway twice must not be counted as either of the two.
#[tokio::test]
async fn a_header_that_is_sent_twice_names_nobody() {
    let (_, layer) = limited([QuotaPolicy::per_day("day", 1)]);
    let mut twice = request("mallory");
    twice.headers_mut().append("x-user-id", "alice".parse().unwrap());
    send(&layer, twice).await;
    assert_eq!(send(&layer, request("alice")).await.status(), StatusCode::OK);
    assert_eq!(send(&layer, request("mallory")).await.status(), StatusCode::OK);
}

/// Gateways send an empty header for callers that they do not know.
#[tokio::test]
async fn an_empty_header_names_nobody() {
    let layer = builder(manual_store().1)
        .policy(QuotaPolicy::per_day("day", 1))
        .on_missing_key(MissingKey::Reject)
        .build()
        .unwrap();
    assert_eq!(send(&layer, request("")).await.outcome(), Outcome::MissingKey);
}

/// E3, E8
#[tokio::test]
async fn keys_together_count_each_pair_by_itself() {
    let (_, store) = manual_store();
    let method = key::from_fn(|request| Some(tower_quota::PartitionKey::new("method", request.method.as_str())));
    let builder = RateLimitLayer::builder(store)
        .scope("pairs")
        .policy(QuotaPolicy::per_day("day", 1));
    let layer = builder.key(key::header("x-user-id").and(method)).build().unwrap();
    for method in ["GET", "POST"] {
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let mut request = request("alice");
            *request.method_mut() = method.parse().unwrap();
            assert_eq!(send(&layer, request).await.status(), status, "{method}");
        }
    }
}

fn empty() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(MemoryStore::new())
}

fn second() -> QuotaPolicy {
    QuotaPolicy::per_second("p", 1)
}

#[test]
fn mistakes_in_a_layer_are_found_by_build_and_named() {
    use ConfigErrorKind as Kind;

    let keyed = || empty().scope("s").key(key::header("x-user-id"));
    let sound = || keyed().policy(second());
    let unreadable = empty().scope("s").key(key::header("no header")).policy(second());
    let twice = sound().policy(second());
    let without_key = || empty().scope("s").policy(second());
    let both = sound().tiers(Tiers::from_fn(|_| None).unlimited("t"));
    let without_tiers = keyed().tiers(Tiers::from_fn(|_| None));
    let without_scope = empty().key(key::client_ip()).policy(second());
    let long = sound().scope("s".repeat(129));
    let hasty = builder_of(Limiter::builder(MemoryStore::new()).deadline(Duration::ZERO));
    let cases = [
        (without_scope, Kind::Scope, "scope: missing or empty"),
        (sound().scope(""), Kind::Scope, "scope: missing or empty"),
        (long, Kind::Scope, "scope: length 129 exceeds 128 bytes"),
        (without_key(), Kind::Key, "key: missing"),
        (unreadable, Kind::Key, r#"key: "no header" is not a valid header name"#),
        (
            twice,
            Kind::DuplicatePolicy,
            r#"policy "p": duplicate name; names must be unique"#,
        ),
        (
            keyed(),
            Kind::Policies,
            "policies: at least one is required; add `policy` or `tiers`",
        ),
        (
            both,
            Kind::Policies,
            "policies: `policy` and `tiers` cannot be combined; add the policies to the tiers",
        ),
        (without_tiers, Kind::Policies, "tiers: at least one is required"),
        (
            hasty.policy(second()),
            Kind::Deadline,
            "deadline 0ns is outside 1ms..=60s",
        ),
    ];
    for (builder, kind, message) in cases {
        let error = builder.build().unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (kind, message.to_owned()));
    }
    assert!(sound().build().is_ok());
}

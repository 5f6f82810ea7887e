//! A tonic server, and a tonic client of it.

use std::{convert::Infallible, time::Duration};

use axum::{Router, routing::get};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Response, StatusCode};
use proptest::{collection::vec, prelude::*, sample::select};
use test_kit::TestStore;
use tonic::{
    Code, Request, Status,
    service::Routes,
    transport::{Channel, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::{QuotaViolation, StatusExt};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    AbnormalUsage, FailureMode, Limiter, MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, ResponseFields, Scope, StoreErrorKind,
    clock::{Clock, Timestamp},
    fields::draft11::{LimitItem, RateLimit},
    key::{self, ForwardingField, KeyExtractor},
};

use crate::{Server, limits, limits_by, limits_of_both_kinds, listener, remaining};

/// The health service behind a layer, and a client for it.
async fn health_behind(limits: RateLimitLayer) -> HealthClient<Channel> {
    let (listener, address) = listener().await;
    let (_, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().layer(limits).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    client_of(format!("http://{address}"))
}

pub(crate) fn client_of(url: String) -> HealthClient<Channel> {
    HealthClient::new(Channel::from_shared(url).unwrap().connect_lazy())
}

async fn check(client: &mut HealthClient<Channel>, forwarded_for: &str) -> Result<(), Status> {
    check_with(client, "x-forwarded-for", forwarded_for).await
}

async fn check_as(client: &mut HealthClient<Channel>, user: &'static str) -> Result<(), Status> {
    check_with(client, "x-user-id", user).await
}

async fn check_with(client: &mut HealthClient<Channel>, name: &'static str, value: &str) -> Result<(), Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert(name, value.parse().unwrap());
    client.check(request).await.map(drop)
}

fn metadata<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status.metadata().get(name).map(|value| value.to_str().unwrap())
}

/// A layer on a store with a manual clock. The `x-cost` field sets the cost of a call.
fn with_clock(policies: impl IntoIterator<Item = QuotaPolicy>) -> (Clock, RateLimitLayer) {
    with_dialect(ResponseFields::draft11(), policies)
}

fn with_dialect(fields: ResponseFields, policies: impl IntoIterator<Item = QuotaPolicy>) -> (Clock, RateLimitLayer) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let builder = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(Duration::from_secs(60)))
        .scope("api")
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .response_fields(fields)
        .cost_by(|request| {
            let cost = request.headers.get("x-cost").and_then(|cost| cost.to_str().ok());
            cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
        });
    let limits = policies.into_iter().fold(builder, RateLimitLayerBuilder::policy);
    (clock, limits.build().unwrap())
}

/// L32: the key is the address that tonic shows, or the layer would reject every call.
#[tokio::test]
async fn a_grpc_client_is_served_up_to_its_limit() {
    for limits in limits_of_both_kinds(2) {
        let mut client = health_behind(limits).await;
        check(&mut client, "192.0.2.1").await.unwrap();
        check(&mut client, "192.0.2.2").await.unwrap();
        let rejected = check(&mut client, "192.0.2.3").await.unwrap_err();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
    }
}

/// L31: only a peer that was found, and is 127.0.0.1, makes the forwarded addresses count.
#[tokio::test]
async fn the_peer_address_is_that_of_tcp_connect_info() {
    let by_address = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["127.0.0.1"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", 1).build().unwrap();
    let mut client = health_behind(limits).await;
    check(&mut client, "192.0.2.1").await.unwrap();
    check(&mut client, "192.0.2.2").await.unwrap();
    let rejected = check(&mut client, "192.0.2.1").await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
}

/// A served call also gets the remaining units.
#[tokio::test]
async fn the_fields_are_metadata_of_an_answer() {
    let (_, limits) = with_clock([QuotaPolicy::per_minute("minute", 4)]);
    let mut client = health_behind(limits).await;
    let mut request = Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("x-user-id", "alice".parse().unwrap());
    let answer = client.check(request).await.unwrap();
    assert_eq!(answer.metadata().get("ratelimit").unwrap(), r#""minute";r=3;t=45"#);
    assert_eq!(
        answer.metadata().get("ratelimit-policy").unwrap(),
        r#""minute";q=4;w=60"#
    );
}

/// The details are exact where the fields are rounded up.
#[tokio::test]
async fn a_rejection_is_a_status_with_message_details_and_fields() {
    let (clock, limits) = with_clock([
        QuotaPolicy::per_minute(r#"50 % of "it""#, 1),
        QuotaPolicy::per_hour("hour", 9),
        QuotaPolicy::per_minute("other, of 1", 1),
    ]);
    let mut client = health_behind(limits).await;
    check_as(&mut client, "alice").await.unwrap();
    clock.advance(Duration::from_millis(250));

    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert_eq!(rejected.message(), r#"quota exceeded: "50 % of \"it\"", "other, of 1""#);
    let wait = rejected.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_millis(59_750)));
    let violations = rejected.get_details_quota_failure().unwrap().violations;
    let violations: Vec<_> = violations.iter().map(|it| (&*it.quota_id, &*it.description)).collect();
    let description = "the quota of this policy is exceeded";
    assert_eq!(
        violations,
        [(r#"50 % of "it""#, description), ("other, of 1", description)]
    );

    assert_eq!(metadata(&rejected, "grpc-retry-pushback-ms"), Some("59750"));
    assert_eq!(metadata(&rejected, "retry-after"), Some("60"));
    assert_eq!(
        metadata(&rejected, "ratelimit"),
        Some(r#""50 % of \"it\"";r=0;t=60, "hour";r=8;t=3200, "other, of 1";r=0;t=60"#)
    );
    assert_eq!(
        metadata(&rejected, "ratelimit-policy"),
        Some(r#""50 % of \"it\"";q=1;w=60, "hour";q=9;w=3600, "other, of 1";q=1;w=60"#)
    );
}

/// A violation as the other side sees it: subject, id, metric and value.
fn violations(status: &Status) -> Vec<(String, String, String, i64)> {
    let violations = status.get_details_quota_failure().unwrap().violations;
    let parts = |it: QuotaViolation| (it.subject, it.quota_id, it.quota_metric, it.quota_value);
    violations.into_iter().map(parts).collect()
}

/// The name that the program gives it: there is no registry of metrics.
#[tokio::test]
async fn a_violation_names_a_unit_of_the_programs_own() {
    let limits = limits_by(key::header("x-user-id"), MemoryStore::new(), "api", 9)
        .policy(QuotaPolicy::per_day("most", 500).with_unit("tokens"))
        .unit_cost("tokens", |_| 600);
    let mut client = health_behind(limits.build().unwrap()).await;
    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    let text = str::to_owned;
    assert_eq!(
        violations(&rejected),
        [(text("scope:api"), text("most"), text("tokens"), 500)]
    );
}

/// The partition key is the one in the `RateLimit` field, and what clients must not see is absent here, too.
#[tokio::test]
async fn a_violation_says_whose_quota_it_is_and_which_and_how_much() {
    let policies = || {
        [
            QuotaPolicy::per_minute("minute", 1).show_partition_key(),
            QuotaPolicy::concurrent("slots", 1),
            QuotaPolicy::per_hour("hour", 1),
            QuotaPolicy::per_day("secret", 1).hidden(),
        ]
    };
    let (_, limits) = with_clock(policies());
    let mut client = health_behind(limits).await;
    check_as(&mut client, "alice").await.unwrap();
    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    let key = Scope::new("api")
        .partition(&PartitionKey::new("x-user-id", "alice"))
        .shown_key();
    let shown = LimitItem::new("minute", 0).unwrap().with_partition_key(key);
    let shown = RateLimit::new([shown]).unwrap().to_string();
    let key = shown
        .strip_prefix(r#""minute";r=0;pk=:"#)
        .unwrap()
        .strip_suffix(':')
        .unwrap();
    assert!(metadata(&rejected, "ratelimit").unwrap().contains(key));
    let text = str::to_owned;
    assert_eq!(
        violations(&rejected),
        [
            (format!("partition:{key}"), text("minute"), text("requests"), 1),
            (text("scope:api"), text("hour"), text("requests"), 1),
        ]
    );

    // In a dialect without keys, no client learns one.
    let (_, limits) = with_dialect(ResponseFields::draft06(), policies().into_iter().take(1));
    let mut client = health_behind(limits).await;
    check_as(&mut client, "alice").await.unwrap();
    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    assert_eq!(violations(&rejected)[0].0, "scope:api");
}

/// A client that tries again after `RESOURCE_EXHAUSTED` must not try this call again.
#[tokio::test]
async fn a_call_that_never_passes_is_told_apart_from_one_that_may_wait() {
    let (_, limits) = with_clock([QuotaPolicy::per_minute("minute", 3), QuotaPolicy::per_hour("hour", 9)]);
    let mut client = health_behind(limits).await;
    let dear = async |client: &mut HealthClient<Channel>, cost| check_with(client, "x-cost", cost).await;
    let never = dear(&mut client, "4").await.unwrap_err();
    assert_eq!(never.code(), Code::FailedPrecondition);
    assert_eq!(
        never.message(),
        r#"the request cost exceeds the capacity of the quota: "minute""#
    );
    assert!(never.get_details_retry_info().is_none());
    assert_eq!(metadata(&never, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(metadata(&never, "retry-after"), None);
    let violation = &never.get_details_quota_failure().unwrap().violations[0];
    assert_eq!(
        violation.description,
        "the request cost exceeds the capacity of this policy"
    );
    assert_eq!((&*violation.quota_id, violation.quota_value), ("minute", 3));

    dear(&mut client, "2").await.unwrap();
    let later = dear(&mut client, "2").await.unwrap_err();
    assert_eq!(later.code(), Code::ResourceExhausted);
    assert_eq!(later.message(), r#"quota exceeded: "minute""#);
    let wait = later.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_secs(20)));
    assert_eq!(metadata(&later, "retry-after"), Some("20"));
    assert_eq!(metadata(&later, "grpc-retry-pushback-ms"), Some("20000"));
}

/// A client that slept through the wait would report an expired deadline instead of the exhausted quota.
#[tokio::test]
async fn a_call_whose_timeout_ends_before_the_wait_is_not_retried() {
    let (_, limits) = with_clock([QuotaPolicy::per_minute("minute", 1)]);
    let mut client = health_behind(limits).await;
    check_as(&mut client, "alice").await.unwrap();
    for (seconds, pushback) in [(30, "-1"), (60, "-1"), (61, "60000"), (3_600, "60000")] {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-user-id", "alice".parse().unwrap());
        request.set_timeout(Duration::from_secs(seconds));
        let rejected = client.check(request).await.unwrap_err();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
        assert_eq!(
            metadata(&rejected, "grpc-retry-pushback-ms"),
            Some(pushback),
            "{seconds}"
        );
        let wait = rejected.get_details_retry_info().unwrap().retry_delay;
        assert_eq!(wait, Some(Duration::from_secs(60)));
    }
}

/// The field `grpc-timeout`, and its time in nanoseconds if it is well-formed.
fn timeout() -> impl Strategy<Value = (Vec<u8>, Option<u128>)> {
    let units = [
        ('H', 3_600_000_000_000),
        ('M', 60_000_000_000),
        ('S', 1_000_000_000),
        ('m', 1_000_000),
        ('u', 1_000),
        ('n', 1),
    ];
    let number = prop_oneof![0..100_u32, 0..100_000_000_u32];
    let timeout = (number, 1..=8_usize, select(units.to_vec())).prop_map(|(number, width, (unit, nanos))| {
        let field = format!("{number:0width$}{unit}").into_bytes();
        (field, Some(u128::from(number) * nanos))
    });
    let malformed = prop_oneof![
        "[0-9]{0,8}[^HMSmun0-9[:cntrl:]]",
        "[0-9]{1,9}",
        "[HMSmun]{1,3}",
        "[0-9]{9,20}[HMSmun]",
        "[0-9]{0,7}[^0-9[:cntrl:]][0-9]{0,7}[^HMSmun[:cntrl:]]",
        "[0-9]{0,3}[ +,.-][0-9]{0,3}[HMSmun]",
    ];
    let bytes = (vec(b'0'..=b'9', 0..8), 0x80..=0xff_u8).prop_map(|(mut field, other)| {
        field.extend([other, b'S']);
        field
    });
    let malformed = prop_oneof![malformed.prop_map(String::into_bytes), bytes];
    prop_oneof![3 => timeout, 1 => malformed.prop_map(|field| (field, None))]
}

proptest! {
    #[test]
    fn a_retry_is_told_the_wait_or_forbidden(
        (timeout, nanos) in timeout(),
        micros in prop_oneof![
            0..2_000_000_u64,
            0..100_000_000_u64,
            2_147_483_646_000..2_147_483_649_000_u64,
            0..=u64::MAX,
        ],
    ) {
        let layer = RateLimitLayer::builder(MemoryStore::new())
            .scope("api")
            .key(key::header("x-user-id"))
            .policy(QuotaPolicy::per_minute("minute", 1))
            .abnormal_usage(move |_| Some(AbnormalUsage::new().with_retry_after(Duration::from_micros(micros))))
            .build()
            .unwrap();
        let send = |content_type| {
            let request = http::Request::post("/")
                .header("content-type", content_type)
                .header("grpc-timeout", &*timeout)
                .body(String::new())
                .unwrap();
            let service = service_fn(async |_: http::Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
            let response = layer.layer(service).oneshot(request).now_or_never().unwrap().unwrap();
            let pushback = response.headers().get("grpc-retry-pushback-ms");
            pushback.map(|pushback| pushback.to_str().unwrap().to_owned())
        };
        let micros = u128::from(micros.max(1_000_000));
        let millis = micros.div_ceil(1_000);
        let is_forbidden = millis > 2_147_483_647 || nanos.is_some_and(|nanos| nanos <= micros * 1_000);
        let pushback = if is_forbidden { "-1".to_owned() } else { millis.to_string() };
        for content_type in ["application/grpc", "application/grpc-web+proto"] {
            prop_assert_eq!(send(content_type), Some(pushback.clone()));
        }
        prop_assert_eq!(send("application/json"), None);
    }
}

/// Neither the state of a system nor the cost of the call keeps it from passing.
#[tokio::test]
async fn a_closed_limit_exhausts_every_call_and_names_no_time_to_wait() {
    let (_, limits) = with_clock([QuotaPolicy::per_minute("minute", 0), QuotaPolicy::per_hour("hour", 9)]);
    let mut client = health_behind(limits).await;
    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    assert_eq!(
        (rejected.code(), rejected.message()),
        (Code::ResourceExhausted, r#"the limit is closed: "minute""#)
    );
    assert!(rejected.get_details_retry_info().is_none());
    assert_eq!(metadata(&rejected, "retry-after"), None);
    assert_eq!(metadata(&rejected, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(metadata(&rejected, "ratelimit"), Some(r#""minute";r=0"#));
    let violations = rejected.get_details_quota_failure().unwrap().violations;
    let described: Vec<_> = violations.iter().map(|by| (&*by.quota_id, &*by.description)).collect();
    assert_eq!(described, [("minute", "this policy is closed")]);
}

#[tokio::test]
async fn without_a_decision_a_closed_layer_is_unavailable() {
    let store = TestStore::failing(StoreErrorKind::Unreachable);
    let closed = limits_by(key::client_ip(), store, "api", 1).failure_mode(FailureMode::Closed);
    let mut client = health_behind(closed.build().unwrap()).await;
    let rejected = check_as(&mut client, "alice").await.unwrap_err();
    assert_eq!(
        (rejected.code(), rejected.message()),
        (Code::Unavailable, "capacity is temporarily reduced")
    );
    let wait = rejected.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_secs(1)));
    assert!(rejected.get_details_quota_failure().is_none());
    assert_eq!(metadata(&rejected, "retry-after"), Some("1"));
    assert_eq!(metadata(&rejected, "grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(metadata(&rejected, "ratelimit"), None);
}

#[tokio::test]
async fn a_caller_without_a_name_is_denied() {
    let by_user = limits_by(key::header("x-user-id"), MemoryStore::new(), "api", 1).on_missing_key(MissingKey::Reject);
    let mut client = health_behind(by_user.build().unwrap()).await;
    let rejected = check(&mut client, "192.0.2.1").await.unwrap_err();
    assert_eq!(rejected.code(), Code::PermissionDenied);
    assert!(rejected.details().is_empty());
    assert_eq!(metadata(&rejected, "grpc-retry-pushback-ms"), None);
    assert_eq!(metadata(&rejected, "ratelimit"), None);
}

/// The router of tonic with a route of axum beside it, under one layer.
async fn both_kinds_behind(limits: RateLimitLayer) -> Server {
    let (_, health) = tonic_health::server::health_reporter();
    let routes: Router = Routes::new(health).into_axum_router();
    Server::hyper(routes.route("/hello", get(async || "hello")).layer(limits)).await
}

async fn grpc_web(server: &Server, content_type: &str) -> Response<Bytes> {
    let request = http::Request::post("/grpc.health.v1.Health/Check")
        .header("x-user-id", "alice")
        .header("content-type", content_type);
    server.send(request.body("\0\0\0\0\0".to_owned()).unwrap()).await
}

#[tokio::test]
async fn calls_and_requests_share_one_budget() {
    let server = both_kinds_behind(limits(MemoryStore::new(), "api", 3)).await;
    let mut client = client_of(format!("http://{}", server.address));
    check_as(&mut client, "alice").await.unwrap();
    let response = server.get_as("alice", "/hello").await;
    assert_eq!((response.status(), remaining(&response)), (StatusCode::OK, 1));
    check_as(&mut client, "alice").await.unwrap();

    // Each is rejected in its own words.
    let call = check_as(&mut client, "alice").await.unwrap_err();
    assert_eq!(call.code(), Code::ResourceExhausted);
    let response = server.get_as("alice", "/hello").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert!(!response.headers().contains_key("grpc-retry-pushback-ms"));
    assert_eq!(
        metadata(&call, "ratelimit").unwrap(),
        response.headers()["ratelimit"].to_str().unwrap()
    );
    assert_eq!(
        metadata(&call, "ratelimit-policy").unwrap(),
        response.headers()["ratelimit-policy"].to_str().unwrap()
    );
}

/// Browsers send these over HTTP/1.1, too.
#[tokio::test]
async fn grpc_web_is_answered_in_its_own_type() {
    let (_, limits) = with_clock([QuotaPolicy::per_day("day", 1)]);
    let server = both_kinds_behind(limits).await;
    server.get_as("alice", "/hello").await;
    for (content_type, answer) in [
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("application/grpc; charset=utf-8", "application/grpc"),
    ] {
        let rejected = grpc_web(&server, content_type).await;
        assert_eq!(rejected.status(), StatusCode::OK, "{content_type}");
        assert_eq!(rejected.headers()["content-type"], answer);
        assert_eq!(rejected.headers()["grpc-status"], "8");
        assert_eq!(rejected.headers()["grpc-message"], r#"quota exceeded: "day""#);
        assert_eq!(rejected.headers()["ratelimit"], r#""day";r=0;t=86400"#);
        assert_eq!(rejected.headers()["retry-after"], "86400");
        assert_eq!(rejected.headers()["grpc-retry-pushback-ms"], "86400000");
        assert!(rejected.body().is_empty());
    }
}

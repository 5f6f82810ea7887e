//! A tonic server, and a tonic client of it.

use std::time::Duration;

use axum::{Router, routing::get};
use http::StatusCode;
use tonic::{
    Code, Request, Status,
    service::Routes,
    transport::{Channel, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::{QuotaViolation, StatusExt};
use tower_quota::{
    Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ResponseFields, Scope,
    clock::{Clock, Timestamp},
    fields::draft11::{LimitItem, RateLimit},
    key::{self, KeyExtractor},
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
        for _ in 0..2 {
            client.check(HealthCheckRequest::default()).await.unwrap();
        }
        let rejected = client.check(HealthCheckRequest::default()).await.unwrap_err();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
    }
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

/// The router of tonic with a route of axum beside it, under one layer.
#[tokio::test]
async fn calls_and_requests_share_one_budget() {
    let (_, health) = tonic_health::server::health_reporter();
    let routes: Router = Routes::new(health).into_axum_router();
    let routes = routes.route("/hello", get(async || "hello"));
    let server = Server::hyper(routes.layer(limits(MemoryStore::new(), "api", 3))).await;
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

//! The example `lambda`: events as Lambda gets them, without AWS.

#[path = "../../examples/lambda/src/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::net::IpAddr;

use http::{Response, StatusCode};
use lambda_http::{Body, IntoResponse};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_quota::{
    Limiter, MemoryStore, RateLimitLayer,
    clock::{Clock, Timestamp},
};

fn limits() -> RateLimitLayer {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    example::limits(Limiter::builder(store)).unwrap()
}

/// A REST API of API Gateway, and its payload format 1.0 of HTTP APIs.
fn rest_api(source: &str) -> Value {
    json!({
        "resource": "/{proxy+}",
        "path": "/items",
        "httpMethod": "GET",
        "headers": {"Host": "abc.execute-api.eu-central-1.amazonaws.com", "X-Forwarded-For": "192.0.2.66, 203.0.113.9"},
        "multiValueHeaders": {"X-Forwarded-For": ["192.0.2.66, 203.0.113.9"]},
        "queryStringParameters": null,
        "multiValueQueryStringParameters": null,
        "pathParameters": {"proxy": "items"},
        "stageVariables": null,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "abc",
            "httpMethod": "GET",
            "identity": {"sourceIp": source, "userAgent": "curl/8.5.0"},
            "path": "/prod/items",
            "protocol": "HTTP/1.1",
            "requestId": "c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
            "requestTimeEpoch": 1_700_000_000_000_i64,
            "resourceId": "123456",
            "resourcePath": "/{proxy+}",
            "stage": "prod"
        },
        "body": null,
        "isBase64Encoded": false
    })
}

/// An HTTP API of API Gateway, or a function URL: both send payload format 2.0.
fn format_2(domain: &str, source: &str) -> Value {
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/items",
        "rawQueryString": "",
        "headers": {"host": domain, "x-forwarded-for": "192.0.2.66"},
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "abc",
            "domainName": domain,
            "domainPrefix": "abc",
            "http": {
                "method": "GET",
                "path": "/items",
                "protocol": "HTTP/1.1",
                "sourceIp": source,
                "userAgent": "curl/8.5.0"
            },
            "requestId": "MIZRNhJtIAMEMDw=",
            "routeKey": "$default",
            "stage": "$default",
            "time": "14/Nov/2023:22:13:20 +0000",
            "timeEpoch": 1_700_000_000_000_i64
        },
        "isBase64Encoded": false
    })
}

fn http_api(source: &str) -> Value {
    format_2("abc.execute-api.eu-central-1.amazonaws.com", source)
}

fn function_url(source: &str) -> Value {
    format_2("abc.lambda-url.eu-central-1.on.aws", source)
}

/// The client has sent the first entry, and the load balancer has appended the second one.
fn load_balancer(source: &str) -> Value {
    json!({
        "requestContext": {"elb": {"targetGroupArn":
            "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/items/6d0ecf831eec9f09"}},
        "httpMethod": "GET",
        "path": "/items",
        "queryStringParameters": {},
        "headers": {
            "host": "items-1.eu-central-1.elb.amazonaws.com",
            "x-forwarded-for": format!("192.0.2.66, {source}"),
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https"
        },
        "body": "",
        "isBase64Encoded": false
    })
}

/// The response as Lambda sends it.
async fn send(limits: &RateLimitLayer, event: &Value) -> Response<Body> {
    let request = lambda_http::request::from_str(&event.to_string()).unwrap();
    let response = example::app(limits.clone()).oneshot(request).await.unwrap();
    response.into_response().await
}

/// The units that a client with this address has used of the hour.
async fn used(limits: &RateLimitLayer, address: &str) -> u64 {
    let address: IpAddr = address.parse().unwrap();
    let caller = limits.limiter().caller(&example::client().key_of(address));
    let decision = caller.peek().await.unwrap().unwrap();
    let hour = decision
        .allowances()
        .find(|allowance| allowance.policy().name() == "hour");
    1_000 - hour.unwrap().remaining()
}

#[tokio::test]
async fn the_key_is_the_address_of_the_client_in_events_of_every_kind() {
    for event in [rest_api, http_api, function_url, load_balancer] {
        for client in ["203.0.113.9", "2001:db8:7:1::9"] {
            let limits = limits();
            let response = send(&limits, &event(client)).await;
            assert_eq!(response.status(), StatusCode::OK, "{}", event(client));
            assert!(matches!(response.body(), Body::Text(text) if text == "Hello!\n"));
            assert_eq!(used(&limits, client).await, 1, "{}", event(client));
            // The address that the client has sent itself.
            assert_eq!(used(&limits, "192.0.2.66").await, 0, "{}", event(client));
        }
    }
}

#[tokio::test]
async fn a_client_is_rejected_after_its_quota_and_other_clients_are_not() {
    for event in [rest_api, http_api, function_url, load_balancer] {
        let limits = limits();
        for _ in 0..10 {
            assert_eq!(send(&limits, &event("203.0.113.9")).await.status(), StatusCode::OK);
        }
        let rejected = send(&limits, &event("203.0.113.9")).await;
        assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.headers()["retry-after"], "1");
        assert!(matches!(rejected.body(), Body::Text(text) if text.contains("quota-exceeded")));
        assert_eq!(send(&limits, &event("203.0.113.10")).await.status(), StatusCode::OK);
    }
}

/// The console of API Gateway sends such an event.
#[tokio::test]
async fn an_event_without_an_address_has_no_key() {
    let response = send(&limits(), &rest_api("test-invoke-source-ip")).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

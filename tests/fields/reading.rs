//! A client reads what the layer writes.

use std::{convert::Infallible, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Scope,
    fields::{Dialect, Hints},
    key,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hints(lines: &[(&str, &str)]) -> Hints {
    let line = |(name, value): &(&str, &str)| {
        (
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::try_from(*value).unwrap(),
        )
    };
    Hints::read(&lines.iter().map(line).collect::<HeaderMap>())
}

/// E4, E9, E10: the rule is public, so a client can determine which limit applies to its next request.
#[test]
fn a_client_that_knows_the_rule_finds_its_own_limit_by_the_partition_key() {
    let layer = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        .key(key::header("user"))
        .policy(QuotaPolicy::per_minute("peruser", 10).show_partition_key())
        .build()
        .unwrap();
    let told_to = |user: &str| {
        let service = layer.layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new()))));
        let request = Request::get("/").header("user", user).body(String::new()).unwrap();
        let response = tokio_test::block_on(service.oneshot(request)).unwrap();
        response.headers()["ratelimit"].to_str().unwrap().to_owned()
    };
    // The server has reported the limits of both callers, and a gateway merges the lists.
    told_to("alice");
    let hints = hints(&[("ratelimit", &told_to("alice")), ("ratelimit", &told_to("bob"))]);
    let key_of = |user| {
        Scope::new("api")
            .partition(&PartitionKey::new("user", user))
            .shown_key()
    };
    let left_to = |user| {
        let mut limits = hints.limits().iter();
        limits
            .find(|limit| limit.partition_key() == Some(&key_of(user)))
            .and_then(|limit| limit.remaining())
    };
    assert_eq!(
        (left_to("alice"), left_to("bob"), left_to("carol")),
        (Some(8), Some(9), None)
    );
}

/// A2, A24, B1, B2: what one side of the crate writes, the other understands.
#[test]
fn what_the_layer_writes_is_read() {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("test")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_minute(r#"a "quoted" name"#, 60))
        .policy(QuotaPolicy::per_day("daily", 5_000))
        .build()
        .unwrap();
    let service = limits.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let request = Request::get("/")
        .header("x-user-id", "alice")
        .body(String::new())
        .unwrap();
    let response = tokio_test::block_on(service.oneshot(request)).unwrap();

    let hints = Hints::read(response.headers());
    let limits: Vec<_> = hints
        .limits()
        .iter()
        .map(|limit| (limit.name(), limit.remaining()))
        .collect();
    let (first, second) = (Some(r#"a "quoted" name"#), Some("daily"));
    assert_eq!(limits, [(first, Some(59)), (second, Some(4_999))]);
    let policies: Vec<_> = hints
        .policies()
        .iter()
        .map(|policy| (policy.name(), policy.quota()))
        .collect();
    assert_eq!(policies, [(first, 60), (second, 5_000)]);
    assert_eq!(hints.policies()[1].window(), Some(seconds(86_400)));
    assert_eq!(hints.dialect(), Some(Dialect::Draft11));
    assert!(hints.ignored().is_empty());
}

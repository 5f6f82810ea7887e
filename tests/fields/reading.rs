//! A client reads what the layer writes.

use std::time::Duration;

use http::HeaderName;
use test_kit::{limits, request, send};
use tower_quota::{
    MemoryStore, PartitionKey, QuotaPolicy, Scope,
    fields::{Dialect, Hints},
};

/// E4, E9, E10: the rule is public, so a client can determine which limit applies to its next request.
#[test]
fn a_client_that_knows_the_rule_finds_its_own_limit_by_the_partition_key() {
    let policy = QuotaPolicy::per_minute("peruser", 10).show_partition_key();
    let layer = limits(MemoryStore::new()).policy(policy).build().unwrap();
    let told_to = |user: &str| tokio_test::block_on(send(&layer, request(user))).headers()["ratelimit"].clone();
    // The server has reported the limits of both callers, and a gateway merges the lists.
    told_to("alice");
    let lines = ["alice", "bob"].map(|user| (HeaderName::from_static("ratelimit"), told_to(user)));
    let hints = Hints::read(&lines.into_iter().collect());
    let key_of = |user| {
        let key = PartitionKey::new("x-user-id", user);
        Scope::new("test").partition(&key).shown_key()
    };
    let left_to = |user| {
        let mut limits = hints.limits().iter();
        limits
            .find(|limit| limit.partition_key() == Some(&key_of(user)))?
            .remaining()
    };
    assert_eq!(["alice", "bob", "carol"].map(left_to), [Some(8), Some(9), None]);
}

/// A2, A24, B1, B2: what one side of the crate writes, the other understands.
#[test]
fn what_the_layer_writes_is_read() {
    let layer = limits(MemoryStore::new())
        .policy(QuotaPolicy::per_minute(r#"a "quoted\" name"#, 60))
        .policy(QuotaPolicy::per_day("daily", 5_000))
        .build()
        .unwrap();
    let response = tokio_test::block_on(send(&layer, request("alice")));

    let hints = Hints::read(response.headers());
    let limits: Vec<_> = hints
        .limits()
        .iter()
        .map(|limit| (limit.name(), limit.remaining()))
        .collect();
    let (first, second) = (Some(r#"a "quoted\" name"#), Some("daily"));
    assert_eq!(limits, [(first, Some(59)), (second, Some(4_999))]);
    let policies: Vec<_> = hints
        .policies()
        .iter()
        .map(|policy| (policy.name(), policy.quota()))
        .collect();
    assert_eq!(policies, [(first, 60), (second, 5_000)]);
    assert_eq!(hints.policies()[1].window(), Some(Duration::from_secs(86_400)));
    assert_eq!(hints.dialect(), Some(Dialect::Draft11));
    assert!(hints.ignored().is_empty());
}

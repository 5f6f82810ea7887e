//! The dialect between -07 and -08.

use std::time::Duration;

use ratelimit_fields::{
    FieldErrorKind as Kind, Unit,
    in_between::{LimitItem, PolicyItem, RateLimit, RateLimitPolicy},
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn policy(value: &str) -> RateLimitPolicy {
    RateLimitPolicy::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn limit(value: &str) -> RateLimit {
    RateLimit::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

/// K2, K5, K11, X3, X29: `l` is read where `q` is absent, as the examples show, and never written.
#[test]
fn a_quota_named_l_counts_only_where_there_is_no_q() {
    let both = policy("a;l=5;q=3");
    assert_eq!(both.items()[0].quota(), 3);
    assert_eq!(both.items()[0].extension("l").unwrap().as_integer(), Some(5));
    assert_eq!(RateLimitPolicy::parse(["a;l=x"]).unwrap_err().kind(), Kind::Type);
    assert_eq!(RateLimitPolicy::parse(["a;w=1"]).unwrap_err().kind(), Kind::Missing);
    let error = PolicyItem::new("a", 1)
        .unwrap()
        .with_unprefixed_extension("l", 1)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Extension);
}

/// K6, K7, K8, K11, X6
#[test]
fn a_limit_needs_no_remaining_units() {
    assert_eq!(limit("quota;t=1").items()[0].remaining(), None);
    assert_eq!(limit("default;r=50;t=30").items()[0].reset(), Some(seconds(30)));
}

/// K13
#[test]
fn the_redirect_example_of_the_draft_is_malformed() {
    let error = RateLimit::parse(["problemPolicy;r=0, t=10"]).unwrap_err();
    assert_eq!(error.kind(), Kind::Syntax);
}

/// K3, X2
#[test]
fn units_are_tokens_and_requests_are_left_out() {
    for (read, unit, written) in [
        ("a;q=1;qu=request", Unit::Requests, "a;q=1"),
        ("a;q=1;qu=requests", Unit::Requests, "a;q=1"),
        (r#"a;q=1;qu="bytes""#, Unit::ContentBytes, "a;q=1;qu=bytes"),
        ("a;q=1;qu=content-bytes", Unit::ContentBytes, "a;q=1;qu=bytes"),
    ] {
        assert_eq!(policy(read).items()[0].unit(), &unit, "{read}");
        assert_eq!(policy(read).to_string(), written);
    }
    let unknown = policy(r#"a;q=1;qu="two words""#);
    assert!(!unknown.items()[0].unit().is_known());
    assert_eq!(unknown.to_string(), r#"a;q=1;qu="two words""#);
    assert_eq!(RateLimitPolicy::parse(["a;q=1;qu=1"]).unwrap_err().kind(), Kind::Type);
}

/// K5, X1
#[test]
fn partition_keys_are_tokens_where_they_fit() {
    for value in ["a;q=1;pk=user123", r#"a;q=1;pk="user123""#, "a;q=1;pk=:dXNlcjEyMw==:"] {
        assert_eq!(
            policy(value).items()[0].partition_key(),
            Some(&b"user123"[..]),
            "{value}"
        );
        assert_eq!(policy(value).to_string(), "a;q=1;pk=user123");
    }
    let keyed = |key: &[u8]| LimitItem::new("a").unwrap().with_partition_key(key);
    let written = |key| RateLimit::new([keyed(key)]).unwrap().to_string();
    assert_eq!(written(b"1"), "a;pk=:MQ==:");
    assert_eq!(written(b""), "a;pk=::");
    assert_eq!(written(&[0xff]), "a;pk=:/w==:");
    assert_eq!(RateLimit::parse(["a;r=1;pk=1"]).unwrap_err().kind(), Kind::Type);
}

/// K4, X4
#[test]
fn a_window_of_zero_is_read_but_not_made() {
    assert_eq!(policy("a;q=1;w=0").items()[0].window(), Some(Duration::ZERO));
    let item = PolicyItem::new("a", 1).unwrap();
    assert_eq!(item.with_window(Duration::ZERO).unwrap_err().kind(), Kind::Range);
    assert_eq!(RateLimitPolicy::parse(["a;q=1;w=-1"]).unwrap_err().kind(), Kind::Range);
}

/// K15
#[test]
fn names_that_are_not_tokens_are_rejected() {
    for name in ["1st", "a b", "", "ü", "a\"b", "a,b"] {
        assert_eq!(PolicyItem::new(name, 1).unwrap_err().kind(), Kind::Name, "{name}");
        assert_eq!(LimitItem::new(name).unwrap_err().kind(), Kind::Name, "{name}");
    }
    assert!(PolicyItem::new("burst", 1).is_ok());
}

/// K11: dates came with RFC 9651 only.
#[test]
fn types_that_rfc_8941_does_not_have_are_malformed() {
    for value in ["a;r=1;x=@7", r#"a;r=1;x=%"a""#] {
        assert_eq!(RateLimit::parse([value]).unwrap_err().kind(), Kind::Syntax, "{value}");
    }
    assert_eq!(RateLimitPolicy::parse(["a;q=1;x=@7"]).unwrap_err().kind(), Kind::Syntax);
    let dated = ratelimit_fields::draft11::RateLimit::parse([r#""a";r=1;acme-x=@7"#]).unwrap();
    let date = dated.items()[0].extension("acme-x").unwrap().clone();
    let error = LimitItem::new("a").unwrap().with_extension("acme-x", date).unwrap_err();
    assert_eq!(error.kind(), Kind::Extension);
}

//! The dialect of draft-06.

use std::time::Duration;

use ratelimit_fields::{
    FieldErrorKind as Kind, MAX_INTEGER,
    draft06::{PolicyItem, RateLimitLimit, RateLimitPolicy, RateLimitRemaining, RateLimitReset},
};

fn policy(value: &str) -> RateLimitPolicy {
    RateLimitPolicy::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn malformed_policy(value: &str) -> Kind {
    RateLimitPolicy::parse([value]).expect_err(value).kind()
}

/// J2
#[test]
fn parameters_of_the_numbers_are_ignored() {
    assert_eq!(RateLimitLimit::parse(["100;foo=bar"]).unwrap().get(), 100);
    assert_eq!(RateLimitLimit::parse(["100;foo=bar"]).unwrap().to_string(), "100");
}

/// J1, J8, J9, J25
#[test]
fn a_number_that_is_not_one_integer_is_malformed() {
    for (value, kind) in [
        ("100, 100;w=60", Kind::Syntax),
        ("-1", Kind::Range),
        ("1.5", Kind::Item),
        ("\"100\"", Kind::Item),
        ("", Kind::Empty),
        ("1000000000000000", Kind::Syntax),
    ] {
        assert_eq!(RateLimitLimit::parse([value]).unwrap_err().kind(), kind, "{value}");
        assert_eq!(RateLimitRemaining::parse([value]).unwrap_err().kind(), kind, "{value}");
        assert_eq!(RateLimitReset::parse([value]).unwrap_err().kind(), kind, "{value}");
    }
    assert_eq!(RateLimitLimit::parse(["1", "1"]).unwrap_err().kind(), Kind::Syntax);
}

/// J20
#[test]
fn field_names_are_read_without_regard_to_case() {
    let headers = crate::headers(&[("Ratelimit-Remaining", "99"), ("RATELIMIT-POLICY", "10;w=1")]);
    assert_eq!(RateLimitRemaining::read(&headers).unwrap().unwrap().get(), 99);
    assert_eq!(RateLimitPolicy::read(&headers).unwrap().unwrap().items()[0].quota(), 10);
    assert_eq!(RateLimitLimit::read(&headers), Ok(None));
}

/// J6, J19, X4
#[test]
fn every_policy_has_a_window_and_zero_is_read_but_not_made() {
    assert_eq!(malformed_policy("100"), Kind::Missing);
    assert_eq!(malformed_policy("100;w=60, 10"), Kind::Missing);
    assert_eq!(malformed_policy("100;w=-1"), Kind::Range);
    assert_eq!(malformed_policy("100;w=1.5"), Kind::Type);
    assert_eq!(policy("100;w=0").items()[0].window(), Duration::ZERO);
    for window in [Duration::ZERO, Duration::from_millis(500)] {
        assert_eq!(PolicyItem::new(100, window).unwrap_err().kind(), Kind::Range);
    }
}

/// J7, X32
#[test]
fn two_policies_with_one_quota_are_neither_read_nor_written() {
    assert_eq!(malformed_policy("10;w=1, 10;w=60"), Kind::Duplicate);
    assert_eq!(malformed_policy("10;w=1, 5;w=7, 10;w=60"), Kind::Duplicate);
    let items = [(); 2].map(|()| PolicyItem::new(10, Duration::from_secs(1)).unwrap());
    assert_eq!(RateLimitPolicy::new(items).unwrap_err().kind(), Kind::Duplicate);
}

/// J5, K18
#[test]
fn a_list_of_anything_but_integers_is_malformed() {
    for value in ["", "a;w=1", "\"a\";w=1", "10;w=1, a;w=1", "1.5;w=1"] {
        let kind = malformed_policy(value);
        assert!(matches!(kind, Kind::Empty | Kind::Item), "{value}: {kind:?}");
    }
    assert_eq!(malformed_policy("-1;w=1"), Kind::Range);
}

/// J14, J29: names, units and partition keys have no place here.
#[test]
fn parameters_of_later_drafts_are_not_written() {
    let item = || PolicyItem::new(10, Duration::from_secs(1)).unwrap();
    for name in ["q", "qu", "pk", "w"] {
        let error = item().with_unprefixed_extension(name, 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Extension, "{name}");
    }
    let scoped = item().with_extension("acme-auth-scope", true).unwrap();
    let written = RateLimitPolicy::new([scoped]).unwrap().to_string();
    assert_eq!(written, "10;w=1;acme-auth-scope");
}

/// J9: a client that waits that long has waited long enough.
#[test]
fn a_reset_is_rounded_up_to_whole_seconds() {
    assert_eq!(RateLimitReset::after(Duration::from_millis(200)).get(), 1);
    assert_eq!(RateLimitReset::after(Duration::ZERO).get(), 0);
    assert_eq!(RateLimitReset::after(Duration::MAX).get(), MAX_INTEGER);
    assert!(RateLimitReset::new(MAX_INTEGER + 1).is_err());
}

/// J2, J15: dates came with RFC 9651 only.
#[test]
fn types_that_rfc_8941_does_not_have_are_malformed() {
    assert_eq!(malformed_policy("10;w=1;x=@7"), Kind::Syntax);
    assert_eq!(RateLimitLimit::parse(["100;x=@7"]).unwrap_err().kind(), Kind::Syntax);
}

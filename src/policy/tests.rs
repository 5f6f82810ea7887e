use std::time::Duration;

use super::{set::policy_id, *};
use crate::error::ConfigErrorKind;

fn build_error(policy: QuotaPolicy) -> (ConfigErrorKind, String) {
    let error = PolicySet::new([policy]).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn mistakes_in_a_policy_are_named_with_value_and_bound() {
    use ConfigErrorKind::{BurstCapacity, PolicyName, Quota, Window};

    let named = |name: &'static str| QuotaPolicy::per_second(name, 1);
    let quota = |quota| QuotaPolicy::per_second("p", quota);
    let window = |window| QuotaPolicy::new("p", 1, window);
    let seconds = Duration::from_secs;
    let only_ascii = "only printable ASCII is allowed";
    let cases = [
        (named(""), PolicyName, r#""": the name is empty"#.to_owned()),
        (
            named("käse"),
            PolicyName,
            format!(r#""käse": the name contains 'ä'; {only_ascii}"#),
        ),
        (
            named("a\r\nb"),
            PolicyName,
            format!(r#""a\r\nb": the name contains '\r'; {only_ascii}"#),
        ),
        (
            quota(MAX_QUOTA + 1),
            Quota,
            format!(r#""p": quota {} is outside 0..={MAX_QUOTA}"#, MAX_QUOTA + 1),
        ),
        (
            quota(1).with_burst_capacity(0),
            BurstCapacity,
            format!(r#""p": burst capacity 0 is outside 1..={MAX_QUOTA}"#),
        ),
    ];
    for (policy, kind, message) in cases {
        assert_eq!(build_error(policy), (kind, format!("policy {message}")));
    }
    for (duration, shown) in [
        (seconds(0), "0ns"),
        (Duration::from_millis(1_500), "1.5s"),
        (seconds(MAX_WINDOW + 1), "1000000001s"),
    ] {
        let message = format!(r#"policy "p": window {shown} is not a whole number of seconds in 1..={MAX_WINDOW}"#);
        assert_eq!(build_error(window(duration)), (Window, message));
    }
}

#[test]
fn a_name_has_at_most_128_bytes_and_an_error_shows_the_beginning_of_a_longer_one() {
    let named = |name: String| QuotaPolicy::per_second("", 1).with_name(name);
    assert!(PolicySet::new([named("n".repeat(128))]).is_ok());
    for length in [129, 100_000] {
        let message = format!(
            r#"policy "{}…": name length {length} exceeds 128 bytes"#,
            "n".repeat(32)
        );
        let error = build_error(named("n".repeat(length)));
        assert_eq!(error, (ConfigErrorKind::PolicyName, message));
    }
    let (kind, message) = build_error(named("ä".repeat(100_000)));
    let expected = format!(
        r#"policy "{}…": the name contains 'ä'; only printable ASCII is allowed"#,
        "ä".repeat(32)
    );
    assert_eq!((kind, message), (ConfigErrorKind::PolicyName, expected));
}

#[test]
fn a_capacity_far_beyond_its_rate_is_rejected_rather_than_counted_wrongly() {
    let (kind, message) = build_error(QuotaPolicy::per_day("p", 1).with_burst_capacity(MAX_QUOTA));
    assert_eq!(kind, ConfigErrorKind::BurstCapacity);
    assert!(
        message.starts_with(r#"policy "p": burst capacity 999999999999999 with 1 units per 86400 s"#),
        "{message}"
    );
}

#[test]
fn initial_units_are_between_none_and_the_burst_capacity_of_a_token_bucket() {
    let minute = |quota| QuotaPolicy::per_minute("p", quota);
    let strict = minute(10).with_algorithm(Algorithm::StrictTokenBucket);
    for policy in [
        minute(10).with_initial_units(0),
        minute(10).with_initial_units(10),
        minute(10).with_burst_capacity(20).with_initial_units(20),
        strict.clone().with_initial_units(5),
        minute(0).with_initial_units(7),
    ] {
        assert!(PolicySet::new([policy]).is_ok());
    }
    let range = |units, most| format!(r#"policy "p": initial units {units} is outside 0..={most}"#);
    let other =
        |units, name| format!(r#"policy "p": initial units {units}: not supported for {name}, only for token buckets"#);
    for (policy, message) in [
        (minute(10).with_initial_units(11), range(11, 10)),
        (strict.with_initial_units(6), range(6, 5)),
        (minute(0).with_initial_units(u64::MAX), range(u64::MAX, MAX_QUOTA)),
        (
            minute(10).with_algorithm(Algorithm::FixedWindow).with_initial_units(1),
            other(1, "FixedWindow"),
        ),
        (
            minute(10)
                .with_algorithm(Algorithm::LeakyBucketMeter)
                .with_initial_units(1),
            other(1, "LeakyBucketMeter"),
        ),
        (
            QuotaPolicy::concurrent("p", 10).with_initial_units(1),
            other(1, "concurrency limits"),
        ),
        (
            QuotaPolicy::per_calendar_month("p", 10, "UTC").with_initial_units(1),
            other(1, "FixedWindow"),
        ),
    ] {
        if policy.calendar.is_none() || cfg!(feature = "calendar") {
            assert_eq!(build_error(policy), (ConfigErrorKind::BurstCapacity, message));
        }
    }
}

#[test]
fn names_are_used_once_and_policies_are_between_1_and_16() {
    let policy = |index: usize| QuotaPolicy::new(format!("policy {index}"), 1, Duration::from_secs(1));
    let kind = |policies: Vec<QuotaPolicy>| PolicySet::new(policies).map_err(|error| error.kind()).err();
    assert_eq!(kind(vec![policy(1), policy(1)]), Some(ConfigErrorKind::DuplicatePolicy));
    assert_eq!(kind(vec![]), Some(ConfigErrorKind::Policies));
    assert_eq!(kind((0..16).map(policy).collect()), None);
    assert_eq!(kind((0..17).map(policy).collect()), Some(ConfigErrorKind::Policies));
}

/// The policies of a document are from outside, and comparing each with all others would take time with their square.
#[test]
fn policies_beyond_the_sixteenth_are_counted_and_not_checked() {
    let good = (0..16).map(|index| QuotaPolicy::new(format!("policy {index}"), 1, Duration::from_secs(1)));
    let others = [QuotaPolicy::per_second("", 1), QuotaPolicy::per_second("policy 0", 1)];
    let error = PolicySet::new(good.chain(others)).unwrap_err();
    assert_eq!(error.to_string(), "number of policies 18 is outside 1..=16");
}

/// IDs have 32 bits, so some names collide. A birthday search finds a pair.
#[test]
fn names_that_a_store_cannot_tell_apart_are_rejected() {
    let mut seen = std::collections::HashMap::new();
    let (first, second) = (0..)
        .find_map(|number: u32| {
            let name = format!("p{number}");
            seen.insert(
                policy_id(&QuotaPolicy::new(name.clone(), 1, Duration::from_secs(1))),
                name.clone(),
            )
            .map(|other| (other, name))
        })
        .unwrap();
    let policies = [&first, &second].map(|name| QuotaPolicy::new(name.clone(), 1, Duration::from_secs(1)));
    let error = PolicySet::new(policies).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::DuplicatePolicy);
    let expected = format!("policy {second:?}: ID collides with policy {first:?}; rename one of them");
    assert_eq!(error.to_string(), expected);
}

#[cfg(not(feature = "calendar"))]
#[test]
fn calendar_windows_name_the_feature_that_they_need() {
    let (kind, message) = build_error(QuotaPolicy::per_calendar_month("month", 10, "Europe/Berlin"));
    assert_eq!(kind, ConfigErrorKind::Window);
    let needed = "calendar windows require the feature `calendar` for the time-zone data";
    assert_eq!(message, format!(r#"policy "month": {needed}"#));
}

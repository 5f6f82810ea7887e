//! The fields that a server writes for its own limits, with arbitrary input from the program and the inner service.

use std::time::{Duration, SystemTime};

use http::Response;
use proptest::{collection::vec, prelude::*};
use ratelimit_fields::{
    Dialect, LegacyReset, LimitNumbers, MAX_ITEMS, Prepared, PreparedPolicy, Report, Unit, draft07, draft11,
    draft11::PolicyItem, in_between,
};

fn daily(quota: u64) -> PolicyItem {
    let day = Duration::from_secs(86_400);
    PolicyItem::new("daily", quota).unwrap().with_window(day).unwrap()
}

fn with(lines: &[(&str, &str)]) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = crate::headers(lines);
    response
}

/// The only limit, without a reset.
fn left(remaining: u64) -> LimitNumbers {
    LimitNumbers {
        remaining,
        ..LimitNumbers::default()
    }
}

#[test]
fn a_list_that_readers_would_not_accept_is_not_written() {
    let many = vec![left(1); MAX_ITEMS + 1];
    for dialect in [Dialect::Draft11, Dialect::EditorsCopy] {
        let item = || PolicyItem::new("a", 1).unwrap();
        let prepared = Prepared::limits_only(dialect, [item()]);
        let mut response = Response::new(());
        prepared.write(&mut response, &Report::new(&many[1..]));
        assert!(response.headers().contains_key("ratelimit"), "{dialect:?}");
        assert!(
            prepared.list(&many[1..]).is_some() && prepared.list(&many).is_none(),
            "{dialect:?}"
        );
        let mut response = Response::new(());
        prepared.write(&mut response, &Report::new(&many));
        assert!(response.headers().is_empty(), "{dialect:?}");
        let keyed = Prepared::limits_only(dialect, [PreparedPolicy::from(item()).with_partition_key()]);
        let long = Report {
            partition_key: &|_| Some(vec![7; 100_000]),
            ..Report::new(&many[..1])
        };
        keyed.write(&mut response, &long);
        assert!(response.headers().is_empty(), "{dialect:?}");
    }
}

#[test]
fn policies_left_out_twice_still_tell_the_units_of_limits() {
    let bytes = daily(5_000).with_unit(Unit::ContentBytes);
    let prepared = Prepared::new(Dialect::Draft11, [bytes]).unwrap();
    let mut response = with(&[("ratelimit", r#""daily";r=50"#)]);
    let prepared = prepared.without_policies().without_policies();
    prepared.write(&mut response, &Report::new(&[left(40)]));
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=50, "daily";r=40"#);
}

#[test]
fn a_limit_in_a_custom_unit_is_not_taken_for_one_of_requests_of_the_inner_service() {
    let credits = PreparedPolicy::from(daily(5_000)).with_custom_unit();
    let prepared = Prepared::new(Dialect::Draft11, [credits]).unwrap();
    let mut response = with(&[("ratelimit", r#""daily";r=50"#)]);
    prepared.write(&mut response, &Report::new(&[left(40)]));
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=50, "daily";r=40"#);
}

#[test]
fn a_limit_of_another_unit_is_not_the_closest_in_a_dialect_without_units() {
    let tokens = PreparedPolicy::from(PolicyItem::new("tokens", 1_000).unwrap()).with_custom_unit();
    let prepared = Prepared::new(Dialect::Draft06, [tokens, daily(60).into()]).unwrap();
    let limits = [(0, 2), (1, 7)].map(|(policy, remaining)| LimitNumbers {
        policy,
        ..left(remaining)
    });
    let mut response = Response::new(());
    prepared.write(&mut response, &Report::new(&limits));
    assert_eq!(response.headers()["ratelimit-remaining"], "7");
    assert_eq!(response.headers()["ratelimit-reset"], "86400");
}

#[test]
fn limits_of_unprepared_policies_are_not_reported() {
    let prepared = Prepared::limits_only(Dialect::Draft11, [daily(5_000)]).with_draft06_limit();
    let unknown = LimitNumbers { policy: 1, ..left(1) };
    let mut response = Response::new(());
    prepared.write(&mut response, &Report::new(&[unknown]));
    assert!(response.headers().is_empty());
    prepared.write(&mut response, &Report::new(&[unknown, left(9)]));
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=9"#);
    assert_eq!(response.headers()["ratelimit-remaining"], "9");
}

#[test]
fn the_policies_of_another_writer_replace_those_of_the_limits() {
    let prepared = |quota| Prepared::new(Dialect::Draft06, [daily(quota)]).unwrap();
    let mut response = Response::new(());
    let reduced = prepared(50).with_policies_of(&prepared(100));
    reduced.write(&mut response, &Report::new(&[left(9)]));
    assert_eq!(response.headers()["ratelimit-limit"], "50");
    assert_eq!(response.headers()["ratelimit-policy"], "100;w=86400");
}

proptest! {
    /// The numbers alone give the fields of a whole report, also next to the fields of an inner service.
    #[test]
    fn numbers_give_the_fields_of_a_report(
        numbers in vec((any::<u64>(), any::<u64>()), 1..16),
        long in any::<bool>(),
        inner in prop::sample::select(vec!["", r#""a";r=1;t=9"#, "a;r=1;t=9", "limit=5, remaining=3, reset=60"]),
        retry_after in any::<bool>(),
    ) {
        let names = (0..numbers.len()).map(|name| "n".repeat(if long { 30 } else { 0 }) + &format!("a{name}"));
        let policies: Vec<_> = names.map(|name| PolicyItem::new(&name, 10).unwrap()).collect();
        let limits: Vec<_> = numbers.iter().enumerate().map(|(policy, (remaining, reset))| {
            LimitNumbers { policy, remaining: *remaining, reset: Some(*reset), is_violated: false }
        }).collect();
        let mut lines = vec![("ratelimit", inner)];
        lines.retain(|(_, value)| !value.is_empty());
        lines.extend(retry_after.then_some(("retry-after", "5")));
        for dialect in [Dialect::Draft11, Dialect::EditorsCopy] {
            let prepared = Prepared::new(dialect, policies.clone()).unwrap();
            prop_assert!(prepared.takes_numbers(numbers.len()));
            let (mut expected, mut response) = (with(&lines), with(&lines));
            prepared.write(&mut expected, &Report { retry_after: retry_after.then_some(5), ..Report::new(&limits) });
            let is_written = prepared.write_numbers(response.headers_mut(), &numbers);
            prop_assert_eq!(is_written, dialect == Dialect::Draft11 || !retry_after);
            if is_written {
                prop_assert_eq!(response.headers(), expected.headers());
            }
            if dialect == Dialect::Draft11 && inner.is_empty() {
                let list = prepared.list(&limits);
                prop_assert_eq!(list.as_ref(), expected.headers().get("ratelimit"));
            }
        }
    }
}

#[test]
fn fields_that_numbers_do_not_determine_are_not_written_from_numbers() {
    let keyed = || PreparedPolicy::from(daily(60)).with_partition_key();
    let draft11 = |policy: PreparedPolicy| Prepared::new(Dialect::Draft11, [policy]).unwrap();
    assert!(draft11(daily(60).into()).takes_numbers(1));
    assert!(!draft11(daily(60).into()).takes_numbers(2));
    assert!(!draft11(daily(60).into()).with_draft06_limit().takes_numbers(1));
    assert!(!draft11(keyed()).takes_numbers(1));
    for dialect in [Dialect::Draft06, Dialect::Draft07] {
        assert!(!Prepared::new(dialect, [daily(60)]).unwrap().takes_numbers(1));
    }
    assert!(!Prepared::legacy(LegacyReset::UnixTime, [daily(60)]).takes_numbers(1));
}

/// The largest numbers, with and without a reset and `Retry-After`.
fn with_extremes(test: impl Fn(PreparedPolicy, &Report<'_>)) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_000);
    for reset in [Some(u64::MAX), None] {
        let limits = [LimitNumbers {
            reset,
            is_violated: true,
            ..left(u64::MAX)
        }];
        for retry_after in [None, Some(0), Some(u64::MAX)] {
            let policy = PreparedPolicy::from(PolicyItem::new("daily", 1).unwrap());
            let report = Report {
                retry_after,
                now: Some(now),
                ..Report::new(&limits)
            };
            test(policy.with_limit(u64::MAX).with_reset(u64::MAX), &report);
        }
    }
}

#[test]
fn numbers_of_any_size_give_fields_that_readers_accept() {
    with_extremes(|policy, report| {
        for dialect in [
            Dialect::Draft06,
            Dialect::Draft07,
            Dialect::Draft11,
            Dialect::EditorsCopy,
        ] {
            let mut response = Response::new(());
            for _ in 0..2 {
                let prepared = Prepared::limits_only(dialect, [policy.clone()]);
                prepared.with_draft06_limit().write(&mut response, report);
            }
            match dialect {
                Dialect::Draft07 => assert!(draft07::RateLimit::read(response.headers()).unwrap().is_some()),
                Dialect::Draft11 => assert!(draft11::RateLimit::read(response.headers()).unwrap().is_some()),
                Dialect::EditorsCopy => assert!(in_between::RateLimit::read(response.headers()).unwrap().is_some()),
                _ => assert_eq!(response.headers().len(), 3),
            }
        }
    });
}

#[test]
fn numbers_of_any_size_give_all_legacy_fields() {
    with_extremes(|policy, report| {
        for reset in [LegacyReset::DeltaSeconds, LegacyReset::UnixTime] {
            let mut response = Response::new(());
            for _ in 0..2 {
                Prepared::legacy(reset, [policy.clone()]).write(&mut response, report);
            }
            assert_eq!(response.headers().len(), 3);
        }
    });
}

//! The fields that a server writes for its own limits, with arbitrary input from the program and the inner service.

use std::time::{Duration, SystemTime};

use http::Response;
use ratelimit_fields::{
    Dialect, LegacyReset, LimitReport, MAX_ITEMS, Prepared, PreparedPolicy, ReportedLimit, Unit, draft07, draft11,
    draft11::PolicyItem, in_between,
};

fn prepared(dialect: Dialect) -> Prepared {
    Prepared::new(dialect, [] as [PreparedPolicy; 0]).unwrap()
}

fn daily(quota: u64) -> PolicyItem {
    let day = Duration::from_secs(86_400);
    PolicyItem::new("daily", quota).unwrap().with_window(day).unwrap()
}

fn with(lines: &[(&str, &str)]) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = crate::headers(lines);
    response
}

struct Keyed(usize);

impl LimitReport for Keyed {
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
        [ReportedLimit::new("daily", 9, 4).with_partition_key()].into_iter()
    }

    fn partition_key(&self, _: &str) -> Option<Vec<u8>> {
        Some(vec![7; self.0])
    }
}

#[test]
fn a_list_that_readers_would_not_accept_is_not_written() {
    let many = vec![ReportedLimit::new("a", 1, 1); MAX_ITEMS + 1];
    for dialect in [Dialect::Draft11, Dialect::EditorsCopy] {
        let prepared = prepared(dialect);
        let mut response = Response::new(());
        prepared.write(&mut response, &many[1..]);
        assert!(response.headers().contains_key("ratelimit"), "{dialect:?}");
        let mut response = Response::new(());
        prepared.write(&mut response, &many[..]);
        assert!(response.headers().is_empty(), "{dialect:?}");
        prepared.write(&mut response, &Keyed(100_000));
        assert!(response.headers().is_empty(), "{dialect:?}");
    }
}

#[test]
fn policies_left_out_twice_still_tell_the_units_of_limits() {
    let bytes = daily(5_000).with_unit(Unit::ContentBytes);
    let prepared = Prepared::new(Dialect::Draft11, [bytes]).unwrap();
    let mut response = with(&[("ratelimit", r#""daily";r=50"#)]);
    let prepared = prepared.without_policies().without_policies();
    prepared.write(&mut response, &[ReportedLimit::new("daily", 5_000, 40)][..]);
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=50, "daily";r=40"#);
}

#[test]
fn a_limit_in_a_custom_unit_is_not_taken_for_one_of_requests_of_the_inner_service() {
    let credits = PreparedPolicy::from(daily(5_000)).with_custom_unit();
    let prepared = Prepared::new(Dialect::Draft11, [credits]).unwrap();
    let mut response = with(&[("ratelimit", r#""daily";r=50"#)]);
    let limit = ReportedLimit::new("daily", 5_000, 40).with_custom_unit();
    prepared.write(&mut response, &[limit][..]);
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=50, "daily";r=40"#);
}

struct Extreme(Option<u64>);

impl LimitReport for Extreme {
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
        let limit = ReportedLimit::new("daily", u64::MAX, u64::MAX);
        [limit.with_reset(u64::MAX).with_window(u64::MAX).violated()].into_iter()
    }

    fn retry_after(&self) -> Option<u64> {
        self.0
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_000)
    }
}

#[test]
fn numbers_of_any_size_give_fields_that_readers_accept() {
    let all = [
        Dialect::Draft06,
        Dialect::Draft07,
        Dialect::Draft11,
        Dialect::EditorsCopy,
    ];
    for retry_after in [None, Some(0), Some(u64::MAX)] {
        for dialect in all {
            let mut response = Response::new(());
            for _ in 0..2 {
                prepared(dialect)
                    .with_draft06_limit()
                    .write(&mut response, &Extreme(retry_after));
            }
            match dialect {
                Dialect::Draft07 => assert!(draft07::RateLimit::read(response.headers()).unwrap().is_some()),
                Dialect::Draft11 => assert!(draft11::RateLimit::read(response.headers()).unwrap().is_some()),
                Dialect::EditorsCopy => assert!(in_between::RateLimit::read(response.headers()).unwrap().is_some()),
                _ => assert_eq!(response.headers().len(), 3),
            }
        }
        for reset in [LegacyReset::DeltaSeconds, LegacyReset::UnixTime] {
            let mut response = Response::new(());
            for _ in 0..2 {
                Prepared::legacy(reset).write(&mut response, &Extreme(retry_after));
            }
            assert_eq!(response.headers().len(), 3);
        }
    }
}

//! The fields as typed headers.

use std::time::Duration;

use headers::{Header, HeaderMapExt};
use http::HeaderMap;
use ratelimit_fields::{RetryAfter, draft06, draft07, draft11, in_between};

fn limit() -> draft11::RateLimit {
    let item = draft11::LimitItem::new("daily", 4_999).unwrap();
    draft11::RateLimit::new([item.with_reset(Duration::from_secs(60))]).unwrap()
}

/// Writes a field, reads it again, and returns its line.
fn through_a_map<T: Header + PartialEq + std::fmt::Debug>(field: T) -> (String, String) {
    let mut headers = HeaderMap::new();
    headers.typed_insert(field);
    let line = headers[T::name()].to_str().unwrap().to_owned();
    let read: T = headers.typed_try_get().unwrap().unwrap();
    let mut again = HeaderMap::new();
    again.typed_insert(read);
    assert_eq!(headers, again);
    (T::name().to_string(), line)
}

#[test]
fn every_field_that_is_read_and_written_is_a_typed_header() {
    let minute = Duration::from_secs(60);
    let policy = draft11::PolicyItem::new("daily", 5_000).unwrap();
    let older = in_between::PolicyItem::new("daily", 5_000).unwrap();
    let lines = [
        through_a_map(limit()),
        through_a_map(draft11::RateLimitPolicy::new([policy.with_window(minute).unwrap()]).unwrap()),
        through_a_map(in_between::RateLimit::parse(["daily;r=9;t=1"]).unwrap()),
        through_a_map(in_between::RateLimitPolicy::new([older.with_window(minute).unwrap()]).unwrap()),
        through_a_map(draft06::RateLimitLimit::new(100).unwrap()),
        through_a_map(draft06::RateLimitRemaining::new(7).unwrap()),
        through_a_map(draft06::RateLimitReset::new(58).unwrap()),
        through_a_map(draft06::RateLimitPolicy::parse(["100;w=60"]).unwrap()),
        through_a_map(draft07::RateLimit::parse(["limit=100, remaining=7, reset=58"]).unwrap()),
        through_a_map(RetryAfter::after(minute)),
    ];
    let expected = [
        ("ratelimit", r#""daily";r=4999;t=60"#),
        ("ratelimit-policy", r#""daily";q=5000;w=60"#),
        ("ratelimit", "daily;r=9;t=1"),
        ("ratelimit-policy", "daily;q=5000;w=60"),
        ("ratelimit-limit", "100"),
        ("ratelimit-remaining", "7"),
        ("ratelimit-reset", "58"),
        ("ratelimit-policy", "100;w=60"),
        ("ratelimit", "limit=100, remaining=7, reset=58"),
        ("retry-after", "60"),
    ];
    assert_eq!(lines, expected.map(|(name, line)| (name.to_owned(), line.to_owned())));
}

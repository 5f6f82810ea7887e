//! Quotas of calendar windows, as clients and operators see them.

use http::HeaderMap;
use test_kit::{Answered, limits, memory, request, rows};
use tower_quota::{
    Algorithm, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ResponseFields, Rules,
    calendar::{CalendarPeriod, CalendarWindow, Weekday},
    clock::{Clock, Timestamp},
};

/// 20 November 2026, 23:00 in Berlin: ten days and an hour of the month are left.
const NOW: Timestamp = Timestamp::from_micros(1_795_212_000_000_000);
const LEFT: u64 = (10 * 24 + 1) * 3_600;

fn month(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_calendar_month("month", quota, "Europe/Berlin")
}

fn layer(fields: ResponseFields, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
    let builder = limits(memory(&Clock::manual(NOW))).response_fields(fields);
    let builder = policies.into_iter().fold(builder, RateLimitLayerBuilder::policy);
    builder.build().unwrap()
}

async fn send(layer: &RateLimitLayer) -> HeaderMap {
    test_kit::send(layer, request("alice")).await.into_parts().0.headers
}

/// A8, A14
#[tokio::test]
async fn a_calendar_quota_has_no_length_and_says_when_its_window_ends() {
    let policies = [month(2), QuotaPolicy::per_minute("minute", 60)];
    let layer = layer(ResponseFields::draft11(), policies);
    let headers = send(&layer).await;
    assert_eq!(headers["ratelimit-policy"], r#""month";q=2, "minute";q=60;w=60"#);
    let limits = |month, minute| format!(r#""month";r={month};t={LEFT}, "minute";r={minute};t={minute}"#);
    assert_eq!(headers["ratelimit"], limits(1, 59));
    send(&layer).await;
    let rejected = send(&layer).await;
    assert_eq!(rejected["retry-after"], LEFT.to_string());
    assert_eq!(rejected["ratelimit"], limits(0, 58));
}

/// D6: 3 000 units for the last third of a month are more than twice the rate, and 30 days long enough for all of them.
#[tokio::test]
async fn the_end_of_a_month_does_not_invite_to_more_than_twice_the_rate() {
    let headers = send(&layer(ResponseFields::draft11(), [month(3_001)])).await;
    let half_a_month = 30 * 86_400 / 2;
    let t = u64::div_ceil(3_000 * half_a_month, 3_001);
    assert_eq!(headers["ratelimit"], format!(r#""month";r=3000;t={t}"#));
    let capped = ResponseFields::draft11().within_rate();
    let headers = send(&layer(capped, [month(3_001)])).await;
    let t = u64::div_ceil(3_000 * 2 * half_a_month, 3_001);
    assert_eq!(headers["ratelimit"], format!(r#""month";r=3000;t={t}"#));
}

/// J6, J32
#[tokio::test]
async fn older_dialects_tell_its_numbers_and_no_policy_where_a_policy_needs_a_length() {
    let draft06 = send(&layer(ResponseFields::draft06(), [month(2)])).await;
    let numbers = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"].map(|name| draft06[name].clone());
    assert_eq!(numbers, ["2", "1", &LEFT.to_string()]);
    assert!(!draft06.contains_key("ratelimit-policy"));
    let policies = [month(2), QuotaPolicy::per_minute("minute", 9)];
    let both = send(&layer(ResponseFields::draft06(), policies)).await;
    assert_eq!(both["ratelimit-policy"], "9;w=60");

    let in_between = send(&layer(ResponseFields::in_between(), [month(2)])).await;
    assert_eq!(in_between["ratelimit-policy"], "month;q=2");
    let legacy = send(&layer(ResponseFields::legacy(LegacyReset::UnixTime), [month(2)])).await;
    let end = NOW.as_micros() / 1_000_000 + LEFT;
    assert_eq!(legacy["x-ratelimit-reset"], end.to_string());
}

#[test]
fn rules_from_a_file_have_windows_of_a_calendar() {
    let read: Rules = serde_json::from_str(
        r#"{"policies": [
            {"name": "month", "quota": 10000, "calendar": {"period": "month", "time_zone": "Europe/Berlin"}},
            {"name": "day", "quota": 500, "algorithm": "fixed_window", "unit": "content_bytes",
             "calendar": {"period": "day", "time_zone": "UTC"}},
            {"name": "iso", "quota": 1, "calendar": {"period": "week", "time_zone": "UTC"}},
            {"name": "week", "quota": 1, "calendar": {"period": "week", "week_begins": "sunday", "time_zone": "UTC"}},
            {"name": "billed", "quota": 1, "calendar": {"period": "month", "month_begins": 15, "time_zone": "UTC"}}
        ]}"#,
    )
    .unwrap();
    let begins = Weekday::Sunday;
    let periods = [CalendarPeriod::Week { begins }, CalendarPeriod::Month { begins: 15 }];
    let [sunday, billed] = periods.map(|period| CalendarWindow::new(period, "UTC"));
    let expected = Rules::new()
        .policy(month(10_000))
        .policy(QuotaPolicy::per_calendar_day("day", 500, "UTC").with_content_bytes(tower_quota::Direction::Both))
        .policy(QuotaPolicy::per_calendar_week("iso", 1, "UTC"))
        .policy(QuotaPolicy::per_calendar("week", 1, sunday))
        .policy(QuotaPolicy::per_calendar("billed", 1, billed));
    assert_eq!(read, expected);
    let written = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<Rules>(&written).unwrap(), read);
    for day in [0, 32, 257] {
        let json = format!(
            r#"{{"policies": [{{"name": "a", "quota": 1,
                "calendar": {{"period": "month", "month_begins": {day}, "time_zone": "UTC"}}}}]}}"#
        );
        let error = match serde_json::from_str::<Rules>(&json) {
            Ok(rules) => built(rules).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("is outside 1..=31"), "{error}");
    }
}

fn built(rules: Rules) -> Result<RateLimitLayer, tower_quota::ConfigError> {
    limits(MemoryStore::new()).rules(rules).build()
}

#[test]
fn mistakes_in_a_calendar_of_a_file_are_named() {
    let mistakes = r#"
        "calendar": {"period": "year", "time_zone": "UTC"} | calendar: unknown variant `year`, expected one of `day`
        "calendar": {"period": "day"} | calendar: missing field `time_zone`
        "calendar": {"time_zone": "UTC"} | calendar: missing field `period`
        "calendar": {"period": "day", "time_zone": "UTC", "week_begins": "monday"} |
            policy "a": calendar: `week_begins` requires the period week
        "calendar": {"period": "week", "time_zone": "UTC", "month_begins": 1} |
            policy "a": calendar: `month_begins` requires the period month
        "calendar": "month" | calendar: invalid type: string "month", expected a map with `period` and
        "window_seconds": 1, "calendar": {"period": "day", "time_zone": "UTC"} |
            policy "a": `window_seconds` and `calendar` cannot be combined
        "unit": "concurrent_requests", "calendar": {"period": "day", "time_zone": "UTC"} |
            policy "a": a concurrency limit has no `calendar`
    "#;
    for [fields, message] in rows(mistakes) {
        let json = format!(r#"{{"policies": [{{"name": "a", "quota": 1, {fields}}}]}}"#);
        let error = serde_json::from_str::<Rules>(&json).unwrap_err().to_string();
        assert!(error.contains(&message), "{error}");
    }
}

#[test]
fn what_does_not_go_with_a_calendar_is_rejected_with_its_name() {
    let zoned = |zone| QuotaPolicy::per_calendar_month("month", 9, zone);
    let only = "a calendar window takes neither another algorithm nor a burst capacity";
    for (policy, message) in [
        (month(9).with_algorithm(Algorithm::TokenBucket), only),
        (month(9).with_algorithm(Algorithm::SlidingWindowLog), only),
        (month(9).with_burst_capacity(2), only),
        (
            month(9).with_prefetch(2),
            "prefetch 2: not supported for calendar windows, only for token buckets and fixed windows of constant",
        ),
        (
            zoned("europe/berlin"),
            r#"time zone "europe/berlin" is not canonical; use "Europe/Berlin""#,
        ),
        (
            zoned("Berlin"),
            r#"time zone "Berlin" is not in the IANA time-zone data"#,
        ),
    ] {
        let error = built(Rules::new().policy(policy)).unwrap_err().to_string();
        assert!(error.starts_with(&format!(r#"policy "month": {message}"#)), "{error}");
    }
}

/// A plan that is changed resets only where its windows change.
#[tokio::test]
async fn another_quota_keeps_what_was_used_and_another_time_zone_does_not() {
    let store = memory(&Clock::manual(NOW));
    let left = async |policy: QuotaPolicy| {
        let layer = limits(store.clone()).policy(policy).build().unwrap();
        test_kit::send(&layer, request("alice")).await.remaining()[0].1
    };
    let (tokyo, week) = (
        QuotaPolicy::per_calendar_month("month", 20, "Asia/Tokyo"),
        QuotaPolicy::per_calendar_week("month", 20, "Europe/Berlin"),
    );
    for (policy, expected) in [(month(10), 9), (month(20), 18), (tokyo, 19), (week, 19)] {
        assert_eq!(left(policy).await, expected);
    }
}

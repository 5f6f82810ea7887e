//! The advice of a response, and how much of it is trusted.

use http::HeaderValue;
use ratelimit_fields::{Dialect, RetryAfter, Unit};

use super::*;

/// F1, F2, X5: nothing of a malformed field counts, and all of the other one.
#[test]
fn a_malformed_field_is_ignored_as_a_whole_and_the_other_is_used() {
    let advice = advice_of(
        200,
        &lines(r#"ratelimit: "a";r=1, "b";r=x | ratelimit-policy: "a";q=9;w=1"#),
    );
    assert_eq!(advice.limits(), []);
    assert_eq!(advice.ignored()[0].field(), "RateLimit");
    assert_eq!(advice.dialect(), Some(Dialect::Draft11), "the policy is read");
    let advice = advice_of(200, &[r#"ratelimit: "a";r=1;t=1"#, "ratelimit-policy: ("]);
    assert_eq!(advice.limits()[0].remaining(), Some(1));
    assert_eq!(advice.ignored()[0].field(), "RateLimit-Policy");
}

/// F9: both forms, the date by the server's own clock.
#[test]
fn retry_after_is_read_as_seconds_and_as_a_date() {
    let wait = |lines: &[&str]| advice_of(429, lines).retry_after();
    assert_eq!(wait(&["retry-after: 20"]), Some(seconds(20)));
    let date = "date: Mon, 05 Aug 2019 09:27:00 GMT";
    let until = "retry-after: Mon, 05 Aug 2019 09:27:05 GMT";
    assert_eq!(wait(&[date, until]), Some(seconds(5)));
    // Without a `Date`, this computer's time has to do.
    assert_eq!(wait(&["retry-after: Tue, 14 Nov 2023 22:13:30 GMT"]), Some(seconds(10)));
    assert_eq!(wait(&[until]), Some(seconds(0)), "that was years ago");
    assert_eq!(wait(&["retry-after: soon"]), None);
    assert_eq!(wait(&["retry-after: 1", "retry-after: 60"]), Some(seconds(60)));
    // By the server's clock, the date is the later of the two.
    assert_eq!(wait(&["retry-after: 1", date, until]), Some(seconds(5)));
}

/// F9: several servers send them.
#[test]
fn a_fraction_in_retry_after_is_rounded_up_by_the_client_alone() {
    let wait = |lines: &[&str]| advice_of(429, lines).retry_after();
    for (line, expected) in [
        ("retry-after: 299.997", 300),
        ("retry-after: 292.052427053", 293),
        ("retry-after: 0.493", 1),
        ("retry-after: 0.0000000000000000001", 1),
        ("retry-after: 2.0", 2),
        ("retry-after: 0.0", 0),
        ("retry-after: 99999999999999999999.5", 600),
    ] {
        assert_eq!(wait(&[line]), Some(seconds(expected)), "{line}");
        assert!(advice_of(429, &[line]).ignored().is_empty(), "{line}");
        assert!(RetryAfter::parse([line.trim_start_matches("retry-after: ")]).is_err());
    }
    for line in "1.|.5|1.5.2|1e3|-1.5|+1.5|1,5|1.5s|inf|NaN|0x1.8|1 .5|１.5".split('|') {
        let value = HeaderValue::from_bytes(line.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, value)]);
        let status = StatusCode::TOO_MANY_REQUESTS;
        let advice = Advice::read(status, &headers, exchange(0, 0), &Caps::default());
        assert_eq!(advice.retry_after(), None, "{line}");
        assert_eq!(advice.ignored()[0].field(), "Retry-After");
    }
    assert_eq!(wait(&["retry-after: 1.5", "retry-after: 60"]), Some(seconds(60)));
    let date = "retry-after: Tue, 14 Nov 2023 22:13:30 GMT";
    assert_eq!(wait(&["retry-after: 1.5", date]), Some(seconds(10)));
    assert_eq!(wait(&["retry-after: 1.5", "retry-after: soon"]), None);
}

/// Moneybird and others send a Unix time. Any other large number is a number of seconds.
#[test]
fn a_retry_after_that_is_a_unix_time_lasts_until_then() {
    let wait = |line: &str| advice_of(429, &["date: Tue, 14 Nov 2023 22:13:00 GMT", line]).retry_after();
    for (line, expected) in [
        ("retry-after: 1700000030", 50),
        ("retry-after: 1700000030000", 50),
        ("retry-after: 1699999979", 0),
        ("retry-after: 1600000000", 600),
        ("retry-after: 1800000000", 600),
        ("retry-after: 999999999", 600),
    ] {
        assert_eq!(wait(line), Some(seconds(expected)), "{line}");
    }
}

/// The dictionary of draft-07, and the fields of the drafts before.
fn unnamed(reset: &str) -> [String; 2] {
    [
        format!("ratelimit: limit=9, remaining=0, reset={reset}"),
        format!("ratelimit-limit: 9 | ratelimit-remaining: 0 | ratelimit-reset: {reset}"),
    ]
}

fn read(fields: &str, date: Option<&str>) -> Advice {
    advice_of(429, &lines(fields).into_iter().chain(date).collect::<Vec<_>>())
}

/// GitLab and others send Unix times in the fields of the drafts.
#[test]
fn a_reset_that_is_a_unix_time_lasts_until_then() {
    const DATE: &str = "date: Tue, 14 Nov 2023 22:13:00 GMT"; // 1,699,999,980
    for (reset, expected) in [
        ("1700000030", Duration::from_secs(50)),
        ("1700000030500", Duration::from_millis(50_500)),
        ("1699999980", Duration::ZERO),
        ("1699999979", Duration::ZERO),
        ("1699913580", Duration::ZERO),           // a day earlier
        ("1731622380", Duration::from_secs(600)), // 366 days later
        ("999999999", Duration::from_secs(600)),  // seconds
    ] {
        for lines in unnamed(reset) {
            let advice = read(&lines, Some(DATE));
            assert_eq!(advice.limits()[0].reset(), Some(expected), "{lines:?}");
            assert!(advice.ignored().is_empty());
        }
    }
    // Without a `Date`, the local clock has to do.
    for lines in unnamed("1700000030") {
        assert_eq!(read(&lines, None).limits()[0].reset(), Some(seconds(30)));
    }
}

#[test]
fn a_reset_that_is_a_time_of_another_year_is_malformed() {
    const DATE: &str = "date: Tue, 14 Nov 2023 22:13:00 GMT";
    let resets = "1000000000 1699913579 1731622381 1699913579999 1731622380001 999999999999 999999999999999";
    for reset in resets.split(' ') {
        let [dictionary, fields] = unnamed(reset).map(|lines| read(&lines, Some(DATE)));
        let limit = &fields.limits()[0];
        assert_eq!((limit.remaining(), limit.reset()), (Some(0), None), "{reset}");
        assert_eq!(fields.ignored()[0].field(), "RateLimit-Reset");
        assert_eq!(dictionary.limits(), [], "{reset}");
        assert_eq!(dictionary.ignored()[0].field(), "RateLimit", "{reset}");
    }
}

/// Draft-11 defines `t` as a number of seconds, which may be large.
#[test]
fn a_large_t_of_a_named_limit_is_a_number_of_seconds() {
    for field in [r#"ratelimit: "a";r=0;t=1700000030"#, "ratelimit: a;r=0;t=1700000030"] {
        let advice = advice_of(429, &[field]);
        assert_eq!(advice.limits()[0].reset(), Some(seconds(600)), "{field}");
        assert!(advice.ignored().is_empty());
    }
}

/// `Date` and the reset are times of the same clock, so transit does not shorten their difference.
#[test]
fn nothing_is_subtracted_from_a_time() {
    let fields = |reset| headers(&["date: Tue, 14 Nov 2023 22:13:20 GMT", "ratelimit-remaining: 0", reset]);
    let caps = Caps::default().trust_dates(true);
    let reset = |reset| Advice::read(StatusCode::OK, &fields(reset), exchange(2, 2), &caps).limits()[0].reset();
    assert_eq!(reset("ratelimit-reset: 30"), Some(seconds(28)));
    assert_eq!(reset("ratelimit-reset: 1700000030"), Some(seconds(30)));
}

/// F12, F13, I7, J23: in every field.
#[test]
fn absurd_values_are_cut_to_the_caps() {
    let limit = |lines: &[&str]| {
        let advice = advice_of(200, lines);
        let limit = &advice.limits()[0];
        (limit.remaining(), limit.reset())
    };
    let (ten_minutes, cap) = (Some(seconds(600)), Some(10_000));
    let huge = [r#"ratelimit: "a";r=999999999999999;t=999999999999999"#];
    assert_eq!(limit(&huge), (cap, ten_minutes));
    assert_eq!(limit(&["ratelimit: a;r=999999;t=1000000"]), (cap, ten_minutes));
    let numbers = ["ratelimit-remaining: 999999", "ratelimit-reset: 1000000"];
    assert_eq!(limit(&numbers), (cap, ten_minutes));
    assert_eq!(advice_of(429, &["retry-after: 1000000"]).retry_after(), ten_minutes);
    let centuries = "retry-after: Fri, 31 Dec 9999 23:59:59 GMT";
    assert_eq!(advice_of(429, &[centuries]).retry_after(), ten_minutes);
    let digits = format!("retry-after: {}", "9".repeat(10_000));
    assert_eq!(advice_of(429, &[&digits]).retry_after(), ten_minutes);
    // The quota, too, or a big one would look used up.
    let big = advice_of(
        200,
        &lines(r#"ratelimit: "a";r=50000;t=60 | ratelimit-policy: "a";q=60000;w=60"#),
    );
    assert_eq!(big.limits()[0].quota(), big.limits()[0].remaining());
}

/// F11: only where the clocks agree, and never by more than the exchange has taken.
#[test]
fn the_time_on_the_way_is_taken_off_if_dates_are_trusted() {
    let fields = r#"date: Tue, 14 Nov 2023 22:13:20 GMT | ratelimit: "a";r=5;t=10 | retry-after: 12"#;
    let fields = headers(&lines(fields));
    let read = |sent, received, trusts| {
        let caps = Caps::default().trust_dates(trusts);
        let exchange = exchange(received, received - sent);
        let advice = Advice::read(StatusCode::OK, &fields, exchange, &caps);
        let reset = advice.limits().first().map(|limit| limit.reset().unwrap().as_secs());
        (reset, advice.retry_after().map(|wait| wait.as_secs()))
    };
    // Made at once, and two seconds on the way.
    assert_eq!(read(0, 2, true), (Some(8), Some(10)));
    assert_eq!(read(0, 2, false), (Some(10), Some(12)));
    assert_eq!(read(1, 2, true), (Some(9), Some(11)), "a date has whole seconds");
    // Older than the exchange: from a cache.
    assert_eq!(read(50, 51, true), (None, None));
    assert_eq!(read(50, 51, false), (Some(10), Some(12)));
}

/// H1, H2
#[test]
fn what_comes_from_a_cache_is_no_news() {
    let with_age = |age: &str| {
        let age = format!("age: {age}");
        advice_of(429, &[&age, r#"ratelimit: "default";r=0;t=50"#, "retry-after: 50"])
    };
    for age in ["30", "1", "99999999999999999999999999"] {
        assert_eq!(with_age(age).limits(), [], "{age}");
    }
    // It has been waited for already.
    assert_eq!(with_age("30").retry_after(), Some(seconds(20)));
    assert_eq!(with_age("99999999999999999999999999").retry_after(), Some(seconds(0)));
    for fresh in ["0", "00", "", "soon", "-1"] {
        assert_eq!(with_age(fresh).limits().len(), 1, "{fresh}");
        assert_eq!(with_age(fresh).retry_after(), Some(seconds(50)), "{fresh}");
    }
}

/// `202 Accepted` specifies when to request the result, and a redirection when to follow it.
#[test]
fn retry_after_counts_where_it_is_about_the_server() {
    let wait = |status, lines: &[&str]| advice_of(status, lines).retry_after();
    for status in [200, 202, 301] {
        assert_eq!(wait(status, &["retry-after: 9"]), None, "{status}");
        // F8: beside rate limit fields, `Retry-After` applies to the limits.
        let beside = ["retry-after: 9", r#"ratelimit: "a";r=1"#];
        assert_eq!(wait(status, &beside), Some(seconds(9)), "{status}");
    }
    for status in [403, 413, 429, 500, 503] {
        assert_eq!(wait(status, &["retry-after: 9"]), Some(seconds(9)), "{status}");
    }
    // gRPC reports a rejected call in a separate field.
    for (grpc_status, expected) in [("0", None), ("8", Some(seconds(9))), ("14", Some(seconds(9)))] {
        let status = format!("grpc-status: {grpc_status}");
        assert_eq!(wait(200, &[&status, "retry-after: 9"]), expected);
    }
}

/// F17, X2: the unit comes from the policy with the same name, preferably of the same partition.
#[test]
fn units_are_told_by_the_policy_of_the_same_name() {
    let advice = advice_of(
        200,
        &[
            r#"ratelimit: "r";r=1, "b";r=2, "x";r=3, "none";r=4, "u";r=5;pk=:Yg==:"#,
            r#"ratelimit-policy: "b";q=9;qu="content-bytes", "x";q=9;qu="tokens", "r";q=9;qu="request""#,
            r#"ratelimit-policy: "u";q=1;pk=:YQ==:, "u";q=2;pk=:Yg==:"#,
        ],
    );
    let limits = advice.limits();
    assert_eq!([limits[0].unit(), limits[3].unit()], [&Unit::Requests, &Unit::Requests]);
    assert_eq!(limits[1].unit(), &Unit::ContentBytes);
    assert_eq!(limits[2].unit().as_str(), "tokens");
    let quotas = limits[2..].iter().map(|limit| limit.quota());
    assert!(quotas.eq([Some(9), None, Some(2)]), "{limits:?}");
}

#[test]
fn caps_out_of_their_range_are_rejected() {
    let error = |wait, units| Caps::new(wait, units).unwrap_err().to_string();
    let (wait, units) = (error(seconds(86_401), 1), error(seconds(1), 0));
    assert_eq!(wait, "client: max_wait 86401s is outside 1s..=86400s");
    assert_eq!(units, "client: max_units 0 is outside 1..=999999999999999");
}

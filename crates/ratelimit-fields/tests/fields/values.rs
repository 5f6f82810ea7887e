//! `Retry-After` and the fields `X-RateLimit-*`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratelimit_fields::{
    FieldErrorKind as Kind, MAX_LENGTH, RetryAfter,
    legacy::{XRateLimitLimit, XRateLimitRemaining, XRateLimitReset},
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// 1994-11-06T08:49:37Z
const MOMENT: u64 = 784_111_777;

/// D13, D18, D19, F8, F9, F13, G8, I7, J12, J24
#[test]
fn the_examples_are_read_and_written_letter_by_letter() {
    for value in ["20", "5", "3", "1", "30", "1000000", "120"] {
        let field = RetryAfter::parse([value]).unwrap();
        assert_eq!(field.to_header_value(), value);
        assert_eq!(field.to_string(), value);
        assert_eq!(field.wait(at(0)), seconds(value.parse().unwrap()));
        assert_eq!(field.date(), None);
    }
    for value in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Tue, 15 Nov 1994 08:00:00 GMT",
        "Mon, 05 Aug 2019 09:27:05 GMT",
    ] {
        let field = RetryAfter::parse([value]).unwrap();
        assert_eq!(field.to_header_value(), value);
        assert_eq!(field.to_string(), value);
    }
}

/// D18: all three forms of RFC 9110.
#[test]
fn a_date_is_read_in_every_form_of_http() {
    for value in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "  Sun, 06 Nov 1994 08:49:37 GMT\t",
    ] {
        assert_eq!(RetryAfter::parse([value]).unwrap().date(), Some(at(MOMENT)), "{value}");
    }
}

/// F9: Date 09:27:00, Retry-After 09:27:05.
#[test]
fn a_date_is_a_wait_from_now_and_nothing_once_it_has_passed() {
    let field = RetryAfter::parse(["Tue, 15 Nov 1994 09:27:05 GMT"]).unwrap();
    let sent = RetryAfter::parse(["Tue, 15 Nov 1994 09:27:00 GMT"]).unwrap();
    let sent = sent.date().unwrap();
    assert_eq!(field.wait(sent), seconds(5));
    assert_eq!(field.wait(sent + seconds(5)), Duration::ZERO);
    assert_eq!(field.wait(sent + seconds(3600)), Duration::ZERO);
}

/// D18
#[test]
fn what_is_written_is_rounded_up_and_never_zero() {
    assert_eq!(RetryAfter::after(Duration::from_millis(200)).to_string(), "1");
    assert_eq!(RetryAfter::after(Duration::ZERO).to_string(), "1");
    assert_eq!(RetryAfter::after(Duration::from_millis(1_001)).to_string(), "2");
    assert_eq!(RetryAfter::after(Duration::MAX).to_string(), u64::MAX.to_string());
    let date = RetryAfter::at(at(MOMENT) - Duration::from_millis(999)).unwrap();
    assert_eq!(date.to_string(), "Sun, 06 Nov 1994 08:49:37 GMT");
}

/// D18, F12, I7
#[test]
fn numbers_of_any_length_are_read_and_dates_end_with_the_year_9999() {
    let field = RetryAfter::parse(["99999999999999999999999999"]).unwrap();
    assert_eq!(field.wait(at(0)), seconds(u64::MAX));
    assert_eq!(RetryAfter::parse(["0"]).unwrap().wait(at(0)), Duration::ZERO);

    assert!(RetryAfter::at(at(253_402_300_799)).is_ok());
    for moment in [at(253_402_300_800), UNIX_EPOCH - seconds(1)] {
        assert_eq!(RetryAfter::at(moment).unwrap_err().kind(), Kind::Range);
    }
}

/// F8, F9: a gateway and the service behind it each send a wait.
#[test]
fn of_several_lines_the_longest_wait_counts() {
    let (earlier, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:37 GMT");
    let before_both = at(MOMENT) - Duration::from_secs(30);
    for (lines, seconds) in [
        (["5", "60"], 60),
        (["60", "5"], 60),
        ([earlier, later], 90),
        ([later, earlier], 90),
        ([earlier, "60"], 60),
        (["5", earlier], 30),
    ] {
        let wait = RetryAfter::parse(lines).unwrap().wait(before_both);
        assert_eq!(wait, Duration::from_secs(seconds), "{lines:?}");
    }
}

/// D18
#[test]
fn what_is_neither_a_number_nor_a_date_is_malformed() {
    let wrong_day = "Sun, 07 Nov 1994 08:49:37 GMT";
    for value in ["", "soon", "-1", "+1", "1.5", "1, 2", "1 2", wrong_day, "ü"] {
        assert!(RetryAfter::parse([value]).is_err(), "{value}");
    }
    // Joined with a comma, these two would be a date.
    let error = RetryAfter::parse(["Sun", "06 Nov 1994 08:49:37 GMT"]).unwrap_err();
    let problem = "Retry-After: neither a number of seconds nor a date";
    assert_eq!(error.to_string(), problem);
    assert_eq!(RetryAfter::parse(["1", "soon"]).unwrap_err().to_string(), problem);
    assert_eq!(RetryAfter::parse([""; 0]).unwrap_err().kind(), Kind::Empty);
    let long = "1".repeat(MAX_LENGTH + 1);
    assert_eq!(RetryAfter::parse([long]).unwrap_err().kind(), Kind::Size);
}

/// J30: written for old clients, in both meanings of the reset.
#[test]
fn legacy_fields_are_written_with_seconds_or_with_a_unix_time() {
    assert_eq!(XRateLimitLimit::NAME, "x-ratelimit-limit");
    assert_eq!(XRateLimitLimit::new(100).to_header_value(), "100");
    assert_eq!(XRateLimitLimit::new(100).to_string(), "100");
    assert_eq!(XRateLimitRemaining::NAME, "x-ratelimit-remaining");
    assert_eq!(XRateLimitRemaining::new(60).to_header_value(), "60");
    assert_eq!(XRateLimitRemaining::new(u64::MAX).to_string(), u64::MAX.to_string());
    assert_eq!(XRateLimitReset::NAME, "x-ratelimit-reset");
    let reset = XRateLimitReset::after(Duration::from_millis(57_001));
    assert_eq!(reset.to_header_value(), "58");
    assert_eq!(XRateLimitReset::after(Duration::MAX).to_string(), u64::MAX.to_string());
    assert_eq!(XRateLimitReset::at(at(1_700_000_000)).to_header_value(), "1700000000");
    assert_eq!(XRateLimitReset::at(UNIX_EPOCH - seconds(9)).to_string(), "0");
}

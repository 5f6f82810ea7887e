use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
use ratelimit_fields::RetryAfter;

const MAX_LENGTH: usize = 64;

const NANOS: u128 = 1_000_000_000;

pub(super) struct Clock {
    /// According to the server's clock, or without `Date`, the local clock.
    pub(super) now: SystemTime,
    pub(super) in_transit: Duration,
}

impl Clock {
    const FARTHEST_PAST: Duration = Duration::from_secs(86_400);
    const FARTHEST_FUTURE: Duration = Duration::from_secs(366 * 86_400);

    pub(super) fn left_of(&self, delay: Duration) -> Duration {
        delay.saturating_sub(self.in_transit)
    }

    /// `None` for a time so far away that it cannot be a reset. Transit is not subtracted, because the server's clock
    /// sets both times.
    pub(super) fn until(&self, moment: SystemTime) -> Option<Duration> {
        match moment.duration_since(self.now) {
            Ok(wait) => (wait <= Self::FARTHEST_FUTURE).then_some(wait),
            Err(past) => (past.duration() <= Self::FARTHEST_PAST).then_some(Duration::ZERO),
        }
    }

    pub(super) fn wait_of(&self, number: Duration) -> Option<Duration> {
        match is_time(number) {
            true => self.until(unix_time(number)?),
            false => Some(self.left_of(number)),
        }
    }

    /// Parses a time in any format. A number is a delay or a Unix time in units of which a second has `per_second`.
    pub(super) fn wait(&self, text: &str, per_second: u32) -> Option<Duration> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        if let Some((nanos, "")) = decimal(text) {
            return self.wait_of(from_nanos(nanos / u128::from(per_second)));
        }
        let moment = || rfc3339(text).or_else(|| httpdate::parse_http_date(text).ok());
        match duration(text) {
            Some(delay) => Some(self.left_of(delay)),
            None => self.until(moment()?),
        }
    }

    /// Some servers send fractions of a second or Unix times.
    pub(super) fn retry_after(&self, strict: Option<RetryAfter>, headers: &HeaderMap) -> Option<Duration> {
        let Some(field) = strict else {
            return fractional_retry_after(headers, self.now);
        };
        let wait = field.wait(self.now);
        let is_time = is_time(wait) && field.date().is_none();
        let moment = unix_time(wait).filter(|_| is_time);
        moment.and_then(|moment| self.until(moment)).or(Some(wait))
    }
}

/// No server announces a delay of thirty years.
fn is_time(number: Duration) -> bool {
    number.as_secs() >= 1_000_000_000
}

fn unix_time(number: Duration) -> Option<SystemTime> {
    let is_in_seconds = number.as_secs() < 1_000_000_000_000;
    UNIX_EPOCH.checked_add(if is_in_seconds { number } else { number / 1_000 })
}

/// A `Retry-After` that is malformed only because of fractions, which are rounded up.
fn fractional_retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let whole = |line| RetryAfter::parse([line]).ok().map(|field| field.wait(now));
    let waits = headers
        .get_all(RETRY_AFTER)
        .iter()
        .map(|line| rounded_up(line).or_else(|| whole(line)));
    waits.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn rounded_up(line: &HeaderValue) -> Option<Duration> {
    let (whole, fraction) = line.to_str().ok()?.trim_ascii().split_once('.')?;
    let seconds = number(whole)?.saturating_add(u64::from(number(fraction)? > 0));
    Some(Duration::from_secs(seconds))
}

/// Saturated, and whether there is a fraction.
pub(super) fn whole(text: &str) -> Option<(u64, bool)> {
    let (nanos, rest) = decimal(text)?;
    let whole = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    rest.is_empty().then_some((whole, nanos % NANOS > 0))
}

/// Saturates at `u64::MAX`.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// A duration with units: `6m0s`, `1.5s`, `20ms`. Saturates.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut sum) = (text, 0_u128);
    while !rest.is_empty() {
        let (number, after) = decimal(rest)?;
        let end = after
            .find(|character: char| character.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, others) = after.split_at(end);
        sum = sum.saturating_add(number.saturating_mul(nanos_of(unit)?) / NANOS);
        rest = others;
    }
    (!text.is_empty()).then(|| from_nanos(sum))
}

/// Times before 1970 become the start of 1970.
fn rfc3339(text: &str) -> Option<SystemTime> {
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (hour, rest) = digits(rest.strip_prefix(['T', 't', ' '])?, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = match rest.strip_prefix(':') {
        // A leap second has the number 60.
        Some(rest) => digits(rest, 2).filter(|(second, _)| *second <= 60)?,
        // Jira omits the seconds.
        None => (0, rest),
    };
    let (fraction, rest) = if rest.starts_with('.') {
        fraction(rest)?
    } else {
        (0, rest)
    };
    let offset = offset(rest)?;
    let days = days_since_1970(year, month, day)?;
    let (minutes, seconds) = (hour * 60 + minute - offset, second);
    if hour > 23 || minute > 59 {
        return None;
    }
    let seconds = u64::try_from(days * 86_400 + minutes * 60 + seconds).unwrap_or(0);
    let nanos = u32::try_from(fraction).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

/// Minutes ahead of UTC.
fn offset(text: &str) -> Option<i64> {
    if let "Z" | "z" = text {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let (hours, rest) = digits(text.strip_prefix(['+', '-'])?, 2)?;
    let (minutes, rest) = digits(rest.strip_prefix(':')?, 2)?;
    (rest.is_empty() && hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes))
}

/// `None` for dates that do not exist.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let february = if is_leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month).ok()?.checked_sub(1)?;
    if !(1..=*lengths.get(before)?).contains(&day) {
        return None;
    }
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    Some(years + lengths[..before].iter().sum::<i64>() + day - 1)
}

fn digits(text: &str, count: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(count)?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}

/// In billionths, saturated.
fn decimal(text: &str) -> Option<(u128, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit());
    let (whole, rest) = text.split_at(end.unwrap_or(text.len()));
    if whole.is_empty() {
        return None;
    }
    let whole: u128 = whole.parse().unwrap_or(u128::MAX);
    let (fraction, rest) = if rest.starts_with('.') {
        fraction(rest)?
    } else {
        (0, rest)
    };
    Some((whole.saturating_mul(NANOS).saturating_add(fraction), rest))
}

fn fraction(text: &str) -> Option<(u128, &str)> {
    let text = text.strip_prefix('.')?;
    let end = text.find(|character: char| !character.is_ascii_digit());
    let (fraction, rest) = text.split_at(end.unwrap_or(text.len()));
    let mut billionths = 0;
    for digit in fraction.bytes().chain([b'0'; 9]).take(9) {
        billionths = billionths * 10 + u128::from(digit - b'0');
    }
    (!fraction.is_empty()).then_some((billionths, rest))
}

fn nanos_of(unit: &str) -> Option<u128> {
    let nanos = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS,
        "m" => 60 * NANOS,
        "h" => 3_600 * NANOS,
        "d" => 86_400 * NANOS,
        _ => return None,
    };
    Some(nanos)
}

fn from_nanos(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos % NANOS).unwrap_or(0);
    Duration::new(seconds, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(text: &str, per_second: u32) -> Option<u128> {
        let clock = Clock {
            now: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            in_transit: Duration::from_millis(500),
        };
        clock.wait(text, per_second).map(|wait| wait.as_millis())
    }

    #[test]
    fn each_format_of_a_time_is_told_by_its_syntax_and_size() {
        for (text, millis) in [
            ("6m0s", 359_500),
            ("1s", 500),
            ("20ms", 0),
            ("2m59.56s", 179_060),
            ("1h2m3.5s", 3_723_000),
            ("1d", 86_399_500),
            ("1500us", 0),
            ("60", 59_500),
            ("0", 0),
            ("1.5", 1_000),
            ("999999999", 999_999_998_500),
            ("1700000030", 30_000),
            ("1700000030.25", 30_250),
            ("1700000030250", 30_250),
            ("1699999990", 0),
            ("2023-11-14T22:13:50Z", 30_000),
            ("2023-11-14T22:14Z", 40_000),
            ("Tue, 14 Nov 2023 22:13:50 GMT", 30_000),
        ] {
            assert_eq!(wait(text, 1), Some(millis), "{text}");
        }
        for (text, millis) in [
            ("1500", 1_000),
            ("0.5", 0),
            ("1700000030", 1_700_000_030 - 500),
            ("1700000030250", 30_250),
            ("2s", 1_500),
        ] {
            assert_eq!(wait(text, 1_000), Some(millis), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_times_and_long_durations_are_the_longest() {
        for text in [
            "", "s", "-1s", "-1", "1x", "1s ", " 1s", "1.s", ".5s", "1 s", "soon", "1m-1s", "1,5s", "1e3", "+5",
        ] {
            assert_eq!(wait(text, 1), None, "{text}");
        }
        // Times of other years, however they are written.
        for text in [
            "1000000000",
            "1699913599",
            "1731622401",
            "1000000000000",
            "9999-12-31T23:59:59Z",
            "Fri, 31 Dec 9999 23:59:59 GMT",
            &"9".repeat(60),
        ] {
            assert_eq!(wait(text, 1), None, "{text}");
        }
        assert_eq!(wait(&"1".repeat(65), 1), None);
        for text in ["9".repeat(50) + "d", "99999999999999999999h".to_owned()] {
            assert!(wait(&text, 1).unwrap() >= u128::from(u64::MAX / 2), "{text}");
        }
    }

    #[test]
    fn moments_of_rfc_3339_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2025-08-21T12:40:59Z", 1_755_780_059),
            ("2025-08-21T12:40Z", 1_755_780_000),
            ("2025-08-21t14:40:59+02:00", 1_755_780_059),
            ("2025-08-21 05:10:59-07:30", 1_755_780_059),
            ("2016-12-31T23:59:60Z", 1_483_228_800),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
            ("1969-12-31T23:59:59Z", 0),
        ] {
            let moment = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339(text), Some(moment), "{text}");
        }
        let half = rfc3339("2025-08-21T12:40:59.5Z").unwrap();
        assert_eq!(
            half.duration_since(UNIX_EPOCH).unwrap(),
            Duration::from_millis(1_755_780_059_500)
        );
    }

    #[test]
    fn other_texts_are_no_moments() {
        for text in [
            "",
            "2025-08-21",
            "2025-08-21T12:40",
            "2025-08-21T12Z",
            "2025-08-21T12:40:59",
            "2025-13-21T12:40:59Z",
            "2025-00-21T12:40:59Z",
            "2025-02-29T12:40:59Z",
            "2025-08-00T12:40:59Z",
            "2025-08-32T12:40:59Z",
            "2025-08-21T24:40:59Z",
            "2025-08-21T12:60:59Z",
            "2025-08-21T12:40:61Z",
            "2025-08-21T12:40:59.Z",
            "2025-08-21T12:40:59+24:00",
            "2025-08-21T12:40:59Z ",
            "+025-08-21T12:40:59Z",
            "2025-8-21T12:40:59Z",
            "２０２５-08-21T12:40:59Z",
            "1755780059",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }
}

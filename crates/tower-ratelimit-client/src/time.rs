//! Times of responses, and time formats that are used by services, but not by the drafts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
use ratelimit_fields::RetryAfter;

const MAX_LENGTH: usize = 64;

const NANOS: u128 = 1_000_000_000;

/// The time of a response.
pub(super) struct Clock {
    /// According to the server's clock, or without `Date`, the local clock.
    pub(super) now: SystemTime,
    pub(super) in_transit: Duration,
}

impl Clock {
    const FARTHEST_PAST: Duration = Duration::from_secs(86_400);
    const FARTHEST_FUTURE: Duration = Duration::from_secs(366 * 86_400);

    /// Returns the remaining time of a delay that began with the response.
    pub(super) fn left_of(&self, delay: Duration) -> Duration {
        delay.saturating_sub(self.in_transit)
    }

    /// Returns `None` for a time so far away that it cannot be a reset. Transit is not subtracted, because the server's
    /// clock sets both times.
    pub(super) fn until(&self, moment: SystemTime) -> Option<Duration> {
        match moment.duration_since(self.now) {
            Ok(wait) => (wait <= Self::FARTHEST_FUTURE).then_some(wait),
            Err(past) => (past.duration() <= Self::FARTHEST_PAST).then_some(Duration::ZERO),
        }
    }

    /// Returns the wait of a number: a delay in seconds, or a Unix time.
    pub(super) fn wait_of(&self, number: Duration) -> Option<Duration> {
        match unix_time_of(number) {
            Some(moment) => self.until(moment),
            None => Some(self.left_of(number)),
        }
    }

    /// Parses `Retry-After`, in which some servers send fractions of a second or Unix times.
    pub(super) fn retry_after(&self, strict: Option<RetryAfter>, headers: &HeaderMap) -> Option<Duration> {
        let Some(field) = strict else {
            return fractional_retry_after(headers, self.now);
        };
        let wait = field.wait(self.now);
        let moment = unix_time_of(wait).filter(|_| field.date().is_none());
        moment.and_then(|moment| self.until(moment)).or(Some(wait))
    }
}

/// Returns `None` for a delay in seconds. No server announces a delay of thirty years, so larger numbers are times.
fn unix_time_of(number: Duration) -> Option<SystemTime> {
    const FIRST_SECOND: u64 = 1_000_000_000;
    const FIRST_MILLISECOND: u64 = 1_000_000_000_000;
    let since_1970 = if number.as_secs() < FIRST_MILLISECOND {
        number
    } else {
        number / 1_000
    };
    let is_time = number.as_secs() >= FIRST_SECOND;
    UNIX_EPOCH.checked_add(since_1970).filter(|_| is_time)
}

/// Parses a `Retry-After` that is malformed only because of fractions, which are rounded up.
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

/// Saturates at `u64::MAX`.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Seconds with an optional fraction, or a duration with units: `6m0s`, `1.5s`, `20ms`. Saturates.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    if let Some((nanos, "")) = decimal(text) {
        return Some(from_nanos(nanos));
    }
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

/// Unix time in seconds, with an optional fraction.
pub(super) fn unix_time(text: &str) -> Option<SystemTime> {
    let (nanos, rest) = decimal(text).filter(|_| text.len() <= MAX_LENGTH)?;
    UNIX_EPOCH.checked_add(from_nanos(nanos)).filter(|_| rest.is_empty())
}

/// A time such as `2025-08-21T12:40:59Z`. Times before 1970 become the start of 1970.
pub(super) fn rfc3339(text: &str) -> Option<SystemTime> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (hour, rest) = digits(rest.strip_prefix(['T', 't', ' '])?, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?, 2)?;
    // A leap second has the number 60.
    let (second, rest) = digits(rest.strip_prefix(':')?, 2).filter(|(second, _)| *second <= 60)?;
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

/// Returns `None` for dates that do not exist.
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

/// Returns `count` digits and the rest of the text.
fn digits(text: &str, count: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(count)?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}

/// Returns a number in billionths, saturated, and the rest of the text.
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

/// Returns the billionths after a decimal point and the rest of the text.
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

    #[test]
    fn durations_are_read_with_their_units_and_numbers_as_seconds() {
        for (text, millis) in [
            ("6m0s", 360_000),
            ("1s", 1_000),
            ("20ms", 20),
            ("2m59.56s", 179_560),
            ("1h2m3.5s", 3_723_500),
            ("1d", 86_400_000),
            ("1500us", 1),
            ("60", 60_000),
            ("0", 0),
            ("0.5", 500),
        ] {
            let read = duration(text).map(|duration| duration.as_millis());
            assert_eq!(read, Some(millis), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_durations_and_long_ones_are_the_longest() {
        for text in [
            "", "s", "-1s", "-1", "1x", "1s ", " 1s", "1.s", ".5s", "1 s", "soon", "1m-1s", "1,5s",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(duration(&"1".repeat(65)), None);
        for text in ["9".repeat(60), "9".repeat(50) + "d", "99999999999999999999h".to_owned()] {
            assert!(duration(&text).unwrap() >= Duration::from_secs(u64::MAX / 2), "{text}");
        }
    }

    #[test]
    fn moments_of_rfc_3339_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2025-08-21T12:40:59Z", 1_755_780_059),
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
        for text in ["", "-1", "soon", "1755780059s"] {
            assert_eq!(unix_time(text), None, "{text}");
        }
        assert_eq!(unix_time(&"9".repeat(40)), None);
        assert_eq!(
            unix_time("1470173023.5"),
            Some(UNIX_EPOCH + Duration::from_millis(1_470_173_023_500))
        );
    }
}

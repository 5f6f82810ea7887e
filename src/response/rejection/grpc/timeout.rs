//! The field `grpc-timeout`. The program `envoy` in `apps` compiles this file, too.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// Returns the timeout of a call. Malformed values are ignored.
pub(super) fn timeout(request: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = request.get(TIMEOUT)?.as_bytes().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

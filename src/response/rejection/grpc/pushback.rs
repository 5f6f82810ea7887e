//! The delay before a retry, as in gRFC A6: clients with a retry policy wait for this time instead of their backoff.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::response::rejection::notice::Notice;

/// Forbids a retry.
const NEVER: i32 = -1;

/// Returns the milliseconds before a retry, or `None` if the backoff of the client applies.
///
/// A client would sleep through a wait that exceeds its timeout, and then report an expired deadline.
pub(super) fn millis(notice: &Notice<'_>, request: &HeaderMap) -> Option<i32> {
    if notice.is_final() {
        return Some(NEVER);
    }
    let wait = notice.wait?;
    let is_in_time = timeout(request).is_none_or(|timeout| wait < timeout);
    let millis = wait.as_nanos().div_ceil(1_000_000).try_into().ok();
    Some(millis.filter(|_| is_in_time).unwrap_or(NEVER))
}

/// Malformed values are ignored.
fn timeout(request: &HeaderMap) -> Option<Duration> {
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

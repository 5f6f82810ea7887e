use std::time::Duration;

use http::{HeaderMap, header::AGE};

use super::{
    bounds::MAX_INTEGER,
    error::{FieldError, Problem},
    parameters::WINDOW,
    syntax::writable,
};

/// Rounds up, so that clients do not return too early.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

pub(super) fn of_window(field: &'static str, window: Duration) -> Result<u64, FieldError> {
    if window.subsec_nanos() > 0 {
        return Err(Problem::Fraction(WINDOW.as_str()).of(field));
    }
    writable(field, WINDOW.as_str(), window.as_secs(), 1)
}

/// Saturates at the largest number of a field.
pub(super) fn rounded_up(wait: Duration) -> u64 {
    let is_writable = wait.as_secs() < MAX_INTEGER;
    if is_writable { whole_seconds(wait) } else { MAX_INTEGER }
}

/// Returns `None` if `value` contains anything but digits. Saturates.
pub(super) fn digits(value: &[u8]) -> Option<u64> {
    value.iter().try_fold(0_u64, |seconds, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        Some(seconds.saturating_mul(10).saturating_add(digit.into()))
    })
}

/// Returns 0 if `Age` is absent or malformed.
pub(super) fn age(headers: &HeaderMap) -> u64 {
    let age = headers.get(AGE).and_then(|age| digits(age.as_bytes().trim_ascii()));
    age.unwrap_or(0)
}

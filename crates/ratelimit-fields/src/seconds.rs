//! Times as fields have them: whole seconds of at most 15 digits.

use std::time::Duration;

use http::{HeaderMap, header::AGE};

use super::{
    bounds::MAX_INTEGER,
    error::{FieldError, Problem},
    parameters::WINDOW,
    syntax::writable,
};

/// A wait in whole seconds, rounded up: who waits this long has waited long enough.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// The seconds of a window that is to be written: at least one, without parts of a second.
pub(super) fn of_window(field: &'static str, window: Duration) -> Result<u64, FieldError> {
    if window.subsec_nanos() > 0 {
        return Err(Problem::Fraction(WINDOW.as_str()).of(field));
    }
    writable(field, WINDOW.as_str(), window.as_secs(), 1)
}

/// The seconds of a wait. One that is too long to be written is as long as can be written: 31 million years.
pub(super) fn rounded_up(wait: Duration) -> u64 {
    let is_writable = wait.as_secs() < MAX_INTEGER;
    if is_writable { whole_seconds(wait) } else { MAX_INTEGER }
}

/// The number of seconds that these digits are; `None` if there is anything else. One that is too long is the longest.
pub(super) fn digits(value: &[u8]) -> Option<u64> {
    value.iter().try_fold(0_u64, |seconds, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        Some(seconds.saturating_mul(10).saturating_add(digit.into()))
    })
}

/// The seconds that a response has spent in caches; 0 if its `Age` is absent or malformed.
pub(super) fn age(headers: &HeaderMap) -> u64 {
    let age = headers.get(AGE).and_then(|age| digits(age.as_bytes().trim_ascii()));
    age.unwrap_or(0)
}

//! Times as fields have them: whole seconds of at most 15 digits.

use std::time::Duration;

use super::{MAX_INTEGER, error::Problem, syntax::writable, whole_seconds};

/// The seconds of a time that has no parts of a second.
pub(super) fn whole(parameter: &'static str, time: Duration, minimum: u64) -> Result<u64, Problem> {
    if time.subsec_nanos() > 0 {
        return Err(Problem::Fraction(parameter));
    }
    writable(parameter, time.as_secs(), minimum)
}

/// The seconds of a wait. One that is too long to be written is as long as can be written: 31 million years.
pub(super) fn rounded_up(wait: Duration) -> u64 {
    let is_writable = wait.as_secs() < MAX_INTEGER;
    if is_writable { whole_seconds(wait) } else { MAX_INTEGER }
}

//! Checks that the builders share.

use std::{fmt, ops::RangeInclusive, time::Duration};

use crate::error::{ConfigError, ConfigErrorKind};

/// The mistake in the settings of an issuer, of an origin or of a client.
pub(super) fn error(of: &str, message: impl fmt::Display) -> ConfigError {
    ConfigError::new(ConfigErrorKind::PrivacyPass, format!("{of}: {message}"))
}

pub(super) fn check<T: PartialOrd + fmt::Debug>(
    setting: &str,
    value: T,
    bounds: &RangeInclusive<T>,
) -> Result<(), String> {
    match bounds.contains(&value) {
        true => Ok(()),
        false => Err(format!("{setting} {value:?} is outside {bounds:?}")),
    }
}

pub(super) fn check_seconds(setting: &str, value: Duration, bounds: &RangeInclusive<Duration>) -> Result<(), String> {
    match value.subsec_nanos() == 0 && bounds.contains(&value) {
        true => Ok(()),
        false => Err(format!(
            "{setting} {value:?} is no whole number of seconds in {bounds:?}"
        )),
    }
}

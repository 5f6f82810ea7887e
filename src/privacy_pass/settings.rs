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

/// Checks a time that clients are told in whole seconds.
pub(super) fn check_seconds(setting: &str, value: Duration) -> Result<(), String> {
    let bounds = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);
    match value.subsec_nanos() == 0 && bounds.contains(&value) {
        true => Ok(()),
        false => Err(format!(
            "{setting} {value:?} is no whole number of seconds in {bounds:?}"
        )),
    }
}

use std::{error::Error, fmt, ops::RangeInclusive, time::Duration};

use tower_quota::ConfigError;

/// A misconfiguration of an [`Issuer`](super::Issuer), an [`OriginLayer`](super::OriginLayer) or a
/// [`TokenClientLayer`](super::TokenClientLayer).
///
/// The message contains the setting, the value and the range.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{ConfigErrorKind, QuotaPolicy};
/// use tower_quota_anonymous::{IssuerKey, OriginLayer, Profile, TokenClientLayer};
///
/// let error = TokenClientLayer::builder().build().unwrap_err();
/// assert_eq!(error.to_string(), "token client: at least one issuer is required");
/// assert!(error.config_error().is_none());
///
/// let error = OriginLayer::builder("issuer.example", &[7; 32])
///     .origin("api.example")
///     .key(IssuerKey::generate(Profile::P256)?)
///     .policy("anonymous", 10, Duration::from_secs(60))
///     .failed_proofs(QuotaPolicy::new("failed proofs", 60, Duration::ZERO))
///     .build()
///     .unwrap_err();
/// assert_eq!(error.config_error().map(|error| error.kind()), Some(ConfigErrorKind::Window));
/// # Ok::<_, tower_quota_anonymous::CredentialError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError(Cause);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Setting(String),
    Limiter(ConfigError),
}

impl BuildError {
    pub(super) fn new(of: &str, message: impl fmt::Display) -> Self {
        Self(Cause::Setting(format!("{of}: {message}")))
    }

    /// Returns the error of the limiter, if it caused this error.
    pub fn config_error(&self) -> Option<&ConfigError> {
        match &self.0 {
            Cause::Setting(_) => None,
            Cause::Limiter(error) => Some(error),
        }
    }
}

impl From<ConfigError> for BuildError {
    fn from(error: ConfigError) -> Self {
        Self(Cause::Limiter(error))
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Setting(message) => f.write_str(message),
            Cause::Limiter(error) => error.fmt(f),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.config_error().and_then(Error::source)
    }
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

/// Clients get the value in whole seconds.
pub(super) fn check_seconds(setting: &str, value: Duration) -> Result<(), String> {
    let bounds = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);
    match value.subsec_nanos() == 0 && bounds.contains(&value) {
        true => Ok(()),
        false => Err(format!(
            "{setting} {value:?} is not a whole number of seconds in {bounds:?}"
        )),
    }
}

use std::{error::Error, fmt, time::Duration};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The error of a [`TokenClient`](super::TokenClient).
///
/// Unless the inner service failed, nothing was sent after the challenge.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use tower_quota_anonymous::TokenClientError;
///
/// let error = TokenClientError::<Infallible>::LimitReached { retry_after: Some(Duration::from_secs(9)) };
/// assert_eq!(error.to_string(), "no tokens remain for this challenge; retry after 9s");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenClientError<E> {
    /// The inner service failed.
    Inner(E),
    /// The issuer gave no credential.
    Issuer {
        /// The cause.
        cause: Box<dyn Error + Send + Sync>,
        /// The time until a retry can succeed, if known.
        retry_after: Option<Duration>,
    },
    /// The credential has no unused token for this challenge.
    LimitReached {
        /// The time until the challenge ends, if known.
        retry_after: Option<Duration>,
    },
    /// The storage failed, or the operating system provided no random bytes.
    Storage(Box<dyn Error + Send + Sync>),
}

impl<E: fmt::Display> fmt::Display for TokenClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry_after = match self {
            Self::Inner(error) => return error.fmt(f),
            Self::Storage(cause) => return write!(f, "no token could be reserved in the credential storage: {cause}"),
            Self::Issuer { cause, retry_after } => {
                write!(f, "the issuer issued no credential: {cause}")?;
                retry_after
            }
            Self::LimitReached { retry_after } => {
                f.write_str("no tokens remain for this challenge")?;
                retry_after
            }
        };
        match retry_after {
            Some(wait) => write!(f, "; retry after {wait:?}"),
            None => Ok(()),
        }
    }
}

impl<E: Error + 'static> Error for TokenClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Inner(error) => error.source(),
            Self::Issuer { cause, .. } | Self::Storage(cause) => Some(&**cause),
            Self::LimitReached { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum NoToken {
    Issuer(BoxError, Option<Duration>),
    LimitReached,
    Storage(BoxError),
}

impl NoToken {
    pub(super) fn issuer(cause: impl Into<BoxError>) -> Self {
        Self::Issuer(cause.into(), None)
    }

    /// `left` is the time until the challenge ends.
    pub(super) fn into_error<E>(self, left: Option<Duration>) -> TokenClientError<E> {
        match self {
            Self::Issuer(cause, retry_after) => TokenClientError::Issuer { cause, retry_after },
            Self::LimitReached => TokenClientError::LimitReached { retry_after: left },
            Self::Storage(cause) => TokenClientError::Storage(cause),
        }
    }
}

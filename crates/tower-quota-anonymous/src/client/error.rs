//! Errors of a token client: a request was not sent with a token, or not answered.

use std::{error::Error, fmt, time::Duration};

/// An error of any kind.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The reason why a [`TokenClient`](super::TokenClient) has no response for a request.
///
/// A challenge that the client does not answer, because it is of an issuer that is not configured, say, is no error:
/// the response with it is passed on as it is.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use tower_quota_anonymous::TokenClientError;
///
/// let error = TokenClientError::<Infallible>::LimitReached { retry_after: Some(Duration::from_secs(9)) };
/// assert_eq!(error.to_string(), "no token is left for this challenge; retry after 9s");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenClientError<E> {
    /// The service that sends requests has failed.
    Inner(E),
    /// The issuer gives no credential. Nothing was sent after the challenge.
    Issuer {
        /// The reason.
        cause: Box<dyn Error + Send + Sync>,
        /// The wait before the next try, if the issuer has given one or the client knows it.
        retry_after: Option<Duration>,
    },
    /// All tokens that the credential has for this challenge are used. Nothing was sent after the challenge.
    LimitReached {
        /// The time until the challenge ends, if the origin has given it.
        retry_after: Option<Duration>,
    },
    /// The storage of credentials has failed, or the operating system gave no random bytes. Nothing was sent after the
    /// challenge.
    Storage(Box<dyn Error + Send + Sync>),
}

impl<E: fmt::Display> fmt::Display for TokenClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry_after = match self {
            Self::Inner(error) => return error.fmt(f),
            Self::Storage(cause) => return write!(f, "no token could be kept account of: {cause}"),
            Self::Issuer { cause, retry_after } => {
                write!(f, "the issuer gave no credential: {cause}")?;
                retry_after
            }
            Self::LimitReached { retry_after } => {
                f.write_str("no token is left for this challenge")?;
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

/// The reason why there is no token: the same as above, without the type of the service.
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

    /// `left` is how long the challenge goes on.
    pub(super) fn into_error<E>(self, left: Option<Duration>) -> TokenClientError<E> {
        match self {
            Self::Issuer(cause, retry_after) => TokenClientError::Issuer { cause, retry_after },
            Self::LimitReached => TokenClientError::LimitReached { retry_after: left },
            Self::Storage(cause) => TokenClientError::Storage(cause),
        }
    }
}

//! Why a request was not sent, or not answered.

use std::{error::Error, fmt, time::Duration};

use crate::clock::Timestamp;

/// What a [`Client`](super::Client) fails with: the error of the service in it, or its own.
///
/// ```
/// use tower_quota::client::ClientError;
///
/// fn is_worth_another_server<E>(error: &ClientError<E>) -> bool {
///     matches!(error, ClientError::Throttled(_))
/// }
/// # assert!(!is_worth_another_server(&ClientError::Inner(())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The service that was to send the request has failed.
    Inner(E),
    /// The request was not sent, since its turn did not come in time.
    Throttled(Throttled),
}

/// A request that was not sent: nothing was asked of the server.
///
/// [`retry_after`](Self::retry_after) says when it is worth trying again. The [module documentation](super) has an
/// example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    kind: ThrottledKind,
    now: Timestamp,
    until: Option<Timestamp>,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThrottledKind {
    /// The wait is, or was, longer than [`patience`](super::ClientLayerBuilder::patience).
    TooLong,
    /// As many requests [wait already](super::ClientLayerBuilder::max_waiting) as may.
    TooMany,
}

impl Throttled {
    pub(super) fn new(kind: ThrottledKind, now: Timestamp, until: Option<Timestamp>) -> Self {
        Self { kind, now, until }
    }

    /// Why the request was not sent.
    pub fn kind(&self) -> ThrottledKind {
        self.kind
    }

    /// Until when the server has nothing left for this client, as far as is known; `None` if that was not in the way.
    /// Then there are those who wait already.
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The time from the error until then.
    pub fn retry_after(&self) -> Option<Duration> {
        let until = self.until?;
        Some(Duration::from_micros(until.micros_since(self.now)))
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request not sent: ")?;
        f.write_str(match self.kind {
            ThrottledKind::TooLong => "the wait for the quota of the server is too long",
            ThrottledKind::TooMany => "too many requests wait for the quota of the server",
        })?;
        match self.retry_after() {
            Some(wait) => write!(f, "; retry after {wait:?}"),
            None => Ok(()),
        }
    }
}

impl Error for Throttled {}

impl<E: fmt::Display> fmt::Display for ClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(error) => error.fmt(f),
            Self::Throttled(error) => error.fmt(f),
        }
    }
}

/// Both errors show themselves, so the source is what is behind them.
impl<E: Error> Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Inner(error) => error.source(),
            Self::Throttled(error) => error.source(),
        }
    }
}

impl<E> From<Throttled> for ClientError<E> {
    fn from(error: Throttled) -> Self {
        Self::Throttled(error)
    }
}

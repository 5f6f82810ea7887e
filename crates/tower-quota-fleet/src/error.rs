//! The error of rules that are published or followed.

use std::{error::Error, fmt, sync::Arc};

use tower_quota::{ConfigError, StoreError};

/// The reason why rules are not published, read or put in force. Two errors are equal if kind and message are.
///
/// The [source](Error::source) is the [`ConfigError`], the [`StoreError`] or the error of the JSON behind it, if there is one.
///
/// ```
/// use tower_quota_fleet::{FleetErrorKind, RulesDocument};
///
/// let error = RulesDocument::parse(br#"{"format": 2, "rulesets": {}}"#).unwrap_err();
/// assert_eq!(error.kind(), FleetErrorKind::NewerFormat);
/// assert_eq!(
///     error.to_string(),
///     "rules document: format 2 is newer than 1, the newest that this version of tower-quota reads",
/// );
/// ```
#[derive(Clone, Debug)]
pub struct FleetError {
    kind: FleetErrorKind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The category of a [`FleetError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FleetErrorKind {
    /// A rollback made the current version, so that [`Publication::roll_back`](super::Publication::roll_back) is ambiguous: use
    /// [`roll_back_to`](super::Publication::roll_back_to). The message has the versions with other rules, the newest one first.
    AfterRollBack,
    /// Another follower, or another source, has [claimed](tower_quota::RulesHandle::claim) the rules of the limiter.
    Claimed,
    /// A setting is invalid: the name of a rule set or of an instance, or a setting of a store. Or a follower was started
    /// outside of a Tokio runtime.
    Config,
    /// Another publication came first. Look at what it has changed, and propose again.
    Conflict,
    /// Policies would start anew, and the publication does not say that it
    /// [restarts counts](super::Publication::allow_count_reset).
    CountsReset,
    /// The rules or the access list are not valid: a check of [`build`](tower_quota::RateLimitLayerBuilder::build) fails.
    Invalid,
    /// A document or a version is not what it has to be: it is no JSON, ends too early, or has a field that is missing, unknown,
    /// of another type or out of its range.
    Malformed,
    /// The document is not the one of its version: something else has written one of both.
    Mismatched,
    /// The document has a format that is newer than this version of the crate.
    NewerFormat,
    /// No earlier version is known to which the rules could go back. The message has the versions of the history.
    NoEarlierVersion,
    /// The access list has no entry for this network or key.
    NotListed,
    /// Rules for all callers must be published first.
    NothingPublished,
    /// The document is longer than [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH).
    TooLong,
    /// Redis or another source did not answer, not in time, or forbids it. A change that was sent may have been carried out, or
    /// may still be: look at the [current version](super::RulesPublisher::current).
    Unavailable,
    /// The published document cannot be read: see [`Publication::force`](super::Publication::force).
    Unreadable,
    /// The access list that applies without rules cannot be read, because a part of it was evicted or overwritten:
    /// [`Control::clear_access`](super::Control::clear_access) begins a new one.
    UnreadableAccess,
}

impl FleetErrorKind {
    /// Returns `true` if a document is at fault, so that reading it again does not help: `Invalid`, `Malformed`, `Mismatched`,
    /// `NewerFormat` and `TooLong`.
    pub const fn is_bad_document(self) -> bool {
        matches!(
            self,
            Self::Invalid | Self::Malformed | Self::Mismatched | Self::NewerFormat | Self::TooLong
        )
    }
}

impl FleetError {
    pub(super) fn new(kind: FleetErrorKind, message: impl Into<String>) -> Self {
        let (message, source) = (message.into(), None);
        Self { kind, message, source }
    }

    /// An error about a document that is read or written.
    pub(super) fn of_document(kind: FleetErrorKind, message: impl fmt::Display) -> Self {
        Self::new(kind, format!("rules document: {message}"))
    }

    /// The error of a [`RulesSource`](super::RulesSource) that could not be read. It is asked again.
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let message = format!("the source of rules cannot be read: {error}");
        Self {
            source: Some(error.into()),
            ..Self::new(FleetErrorKind::Unavailable, message)
        }
    }

    /// The category of the error.
    pub fn kind(&self) -> FleetErrorKind {
        self.kind
    }

    /// An error of the limiter or of a store, with a text before it.
    pub(super) fn from_config(kind: FleetErrorKind, within: &str, error: ConfigError) -> Self {
        Self::new(kind, format!("{within}{error}")).with_source(error)
    }

    fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl PartialEq for FleetError {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

impl Eq for FleetError {}

impl Error for FleetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_deref()?)
    }
}

impl From<ConfigError> for FleetError {
    fn from(error: ConfigError) -> Self {
        Self::from_config(FleetErrorKind::Invalid, "", error)
    }
}

impl From<StoreError> for FleetError {
    fn from(error: StoreError) -> Self {
        Self::new(FleetErrorKind::Unavailable, error.to_string()).with_source(error)
    }
}

impl From<serde_json::Error> for FleetError {
    fn from(error: serde_json::Error) -> Self {
        Self::of_document(FleetErrorKind::Malformed, &error).with_source(error)
    }
}

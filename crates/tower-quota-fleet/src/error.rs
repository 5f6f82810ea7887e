use std::{error::Error, fmt, sync::Arc};

use tower_quota::{ConfigError, StoreError};

/// An error in publishing, reading or applying rules. Errors are equal if their kinds and messages are.
///
/// The [source](Error::source) is the [`ConfigError`], [`StoreError`] or JSON error that caused it, if any.
///
/// ```
/// use tower_quota_fleet::{FleetErrorKind, RulesDocument};
///
/// let error = RulesDocument::parse(br#"{"format": 2, "rulesets": {}}"#).unwrap_err();
/// assert_eq!(error.kind(), FleetErrorKind::NewerFormat);
/// assert_eq!(
///     error.to_string(),
///     "rules document: format 2 is newer than 1, the newest that this release of tower-quota can read",
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
    /// The current version is a rollback: [name](super::Publication::roll_back_to) a version in the message.
    AfterRollBack,
    /// Another follower or source has [claimed](tower_quota::RulesHandle::claim) the rules.
    Claimed,
    /// A setting or a name is invalid, or there is no Tokio runtime.
    Config,
    /// Another publication came first: propose again.
    Conflict,
    /// Counts of a policy would reset, which was not [allowed](super::Publication::allow_count_reset).
    CountsReset,
    /// Rules, access list, contract or top-up are invalid.
    Invalid,
    /// A text is too long, or JSON is malformed: a field is missing, unknown or invalid.
    Malformed,
    /// The document does not match its version.
    Mismatched,
    /// The document has a newer format than this release reads.
    NewerFormat,
    /// There is no such earlier version. The message lists the history.
    NoEarlierVersion,
    /// The access list has no such entry.
    NotListed,
    /// Nothing is published: publish rules for all callers first.
    NothingPublished,
    /// The document or access list exceeds [1 MiB](super::RulesDocument::MAX_LENGTH).
    TooLong,
    /// The source timed out or rejected the command. A change may still be applied.
    Unavailable,
    /// The published document is unreadable: [force](super::Publication::force) another.
    Unreadable,
    /// The access list is unreadable: [clear](super::Control::clear_access) it.
    UnreadableAccess,
}

impl FleetErrorKind {
    /// Returns `true` for `Invalid`, `Malformed`, `Mismatched`, `NewerFormat` and `TooLong`: reading the document again
    /// does not help.
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

    pub(super) fn of_document(kind: FleetErrorKind, message: impl fmt::Display) -> Self {
        Self::new(kind, format!("rules document: {message}"))
    }

    /// Creates the error of a [`RulesSource`](super::RulesSource) that could not be read.
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let message = format!("rules source cannot be read: {error}");
        Self {
            source: Some(error.into()),
            ..Self::new(FleetErrorKind::Unavailable, message)
        }
    }

    /// Returns the category.
    pub fn kind(&self) -> FleetErrorKind {
        self.kind
    }

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

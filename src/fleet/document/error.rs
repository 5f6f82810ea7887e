//! The error of a document that cannot be read or written.

use std::{error::Error, fmt, sync::Arc};

/// The reason why a [`RulesDocument`](super::RulesDocument) cannot be read or written, with the place in it. Two errors are
/// equal if kind and message are.
///
/// ```
/// use tower_quota::fleet::{RulesDocument, RulesDocumentErrorKind};
///
/// let error = RulesDocument::parse(br#"{"format": 2, "rulesets": {}}"#).unwrap_err();
/// assert_eq!(error.kind(), RulesDocumentErrorKind::NewerFormat);
/// assert_eq!(
///     error.to_string(),
///     "rules document: format 2 is newer than 1, the newest that this version of tower-quota reads",
/// );
/// ```
#[derive(Clone, Debug)]
pub struct RulesDocumentError {
    kind: RulesDocumentErrorKind,
    message: String,
    source: Option<Arc<serde_json::Error>>,
}

/// The category of a [`RulesDocumentError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RulesDocumentErrorKind {
    /// It is no JSON, ends too early, or has a field that is missing, unknown, of another type or out of its range.
    Malformed,
    /// Its format is newer than this version of the crate.
    NewerFormat,
    /// It is longer than [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH).
    TooLong,
}

impl RulesDocumentError {
    pub(in crate::fleet) fn new(kind: RulesDocumentErrorKind, message: String) -> Self {
        let source = None;
        Self { kind, message, source }
    }

    /// The category of the error.
    pub fn kind(&self) -> RulesDocumentErrorKind {
        self.kind
    }
}

impl From<serde_json::Error> for RulesDocumentError {
    fn from(error: serde_json::Error) -> Self {
        Self {
            kind: RulesDocumentErrorKind::Malformed,
            message: error.to_string(),
            source: Some(Arc::new(error)),
        }
    }
}

impl fmt::Display for RulesDocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rules document: {}", self.message)
    }
}

impl PartialEq for RulesDocumentError {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

impl Eq for RulesDocumentError {}

impl Error for RulesDocumentError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_deref()?)
    }
}

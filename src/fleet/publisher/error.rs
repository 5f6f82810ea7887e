//! The reasons why rules are not published.

use std::{error::Error, fmt};

use crate::{
    error::{ConfigError, StoreError},
    fleet::{RulesDocumentError, RulesVersion},
    rules::RulesChange,
};

/// The reason why a [`RulesPublisher`](super::RulesPublisher) has published nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// A rollback made the current version, so that [`Publication::roll_back`](super::Publication::roll_back) is ambiguous: use
    /// [`roll_back_to`](super::Publication::roll_back_to).
    AfterRollBack {
        /// The versions with other rules, the newest one first.
        candidates: Vec<u64>,
    },
    /// Another publication came first. Look at what it has changed, and propose again.
    Conflict {
        /// The version that the proposal was made for; `None` if nothing was published then.
        expected: Option<RulesVersion>,
        /// The version that holds now, if there is one that can be read.
        found: Option<RulesVersion>,
    },
    /// The new document cannot be written: it is too long, or the author's name is.
    Document(RulesDocumentError),
    /// The rules or the access list are not valid.
    Invalid(ConfigError),
    /// No earlier version is known to which the rules could go back.
    NoEarlierVersion {
        /// The versions of the history, the newest one first.
        known: Vec<u64>,
    },
    /// Rules for all callers must be published first.
    NothingPublished,
    /// The access list has no entry for this network or key.
    NotListed,
    /// These policies would start anew, and the publication does not say that it
    /// [restarts counts](super::Publication::allow_count_reset).
    CountsReset(Vec<RulesChange>),
    /// Redis did not answer, or not in time. A publication that was sent may have been carried out, or may still be: look
    /// at the [current version](super::RulesPublisher::current).
    Store(StoreError),
    /// The access list that applies without rules cannot be read, because a part of it was evicted or overwritten:
    /// [`Control::clear_access`](crate::fleet::Control::clear_access) begins a new one.
    UnreadableAccess(String),
    /// The published document cannot be read: see [`force`](super::Publication::force).
    Unreadable(String),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AfterRollBack { candidates } => write!(
                f,
                "the current version is a rollback; choose the version to go back to, one of {candidates:?}"
            ),
            Self::Conflict { expected, found } => {
                let number = |version: &Option<RulesVersion>| match version {
                    Some(version) => format!("version {}", version.number()),
                    None => "no readable version".to_owned(),
                };
                let (expected, found) = (number(expected), number(found));
                write!(
                    f,
                    "another publication came first: {found} holds in place of {expected}"
                )
            }
            Self::Document(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
            Self::NoEarlierVersion { known } => {
                write!(
                    f,
                    "there are no such earlier rules; the history has the versions {known:?}"
                )
            }
            Self::NothingPublished => f.write_str("nothing was published yet; publish rules for all callers first"),
            Self::NotListed => f.write_str("the access list has no entry for this network or key"),
            Self::CountsReset(changes) => {
                let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
                write!(f, "counts would be lost: {}", changes.join("; "))
            }
            Self::Store(error) => error.fmt(f),
            Self::UnreadableAccess(problem) => f.write_str(problem),
            Self::Unreadable(problem) => write!(f, "the published rules cannot be read: {problem}"),
        }
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Document(error) => error.source(),
            Self::Invalid(error) => error.source(),
            Self::Store(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ConfigError> for PublishError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error)
    }
}

impl From<RulesDocumentError> for PublishError {
    fn from(error: RulesDocumentError) -> Self {
        Self::Document(error)
    }
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

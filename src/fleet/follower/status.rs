//! The state of an instance that follows rules.

use std::fmt;

use crate::fleet::version::RulesVersion;

/// The state of a [`RulesFollower`](super::RulesFollower): which version its layer runs, and why not a newer one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowerStatus {
    pub(super) version: Option<RulesVersion>,
    pub(super) rejected: Option<RejectedRules>,
    pub(super) failure: Option<String>,
    pub(super) is_overridden: bool,
}

/// A version that an instance rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedRules {
    version: RulesVersion,
    reason: RejectionReason,
    message: String,
}

/// The reason why an instance rejects a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionReason {
    /// The layer cannot carry the rules out: a check of [`build`](crate::RateLimitLayerBuilder::build) fails.
    Invalid,
    /// The document cannot be read.
    Malformed,
    /// The document is not the one of its version: something else has written one of both.
    Mismatched,
    /// The document has a format that this version of the crate does not read.
    NewerFormat,
    /// The document is too long.
    TooLong,
}

impl FollowerStatus {
    /// The version of the rules that were put in force last; `None` for those of the program. The kill switch and the
    /// access list may be those of a version that is [rejected](Self::rejected).
    pub fn version(&self) -> Option<RulesVersion> {
        self.version
    }

    /// The version that was published last, if it is rejected.
    pub fn rejected(&self) -> Option<&RejectedRules> {
        self.rejected.as_ref()
    }

    /// The reason why the source could not be read the last time. The rules may be outdated meanwhile.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns `true` if this process overrides the rules or the kill switch of the fleet, until
    /// [`return_to_fleet`](crate::RulesHandle::return_to_fleet).
    pub fn is_overridden(&self) -> bool {
        self.is_overridden
    }
}

impl RejectedRules {
    pub(super) fn new(version: RulesVersion, reason: RejectionReason, error: &dyn fmt::Display) -> Self {
        Self {
            version,
            reason,
            message: error.to_string(),
        }
    }

    /// The version.
    pub fn version(&self) -> RulesVersion {
        self.version
    }

    /// The reason, for programs.
    pub fn reason(&self) -> RejectionReason {
        self.reason
    }

    /// The reason, for people, with the place in the document.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl RejectionReason {
    /// The word in events and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Malformed => "malformed",
            Self::Mismatched => "mismatched",
            Self::NewerFormat => "newer_format",
            Self::TooLong => "too_long",
        }
    }
}

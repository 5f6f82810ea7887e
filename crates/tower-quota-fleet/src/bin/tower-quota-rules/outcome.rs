use std::fmt;

use serde_json::Value;
use tower_quota::StoreError;
use tower_quota_fleet::{FleetError, FleetErrorKind};

pub(crate) struct Report {
    pub(crate) text: String,
    pub(crate) json: Value,
    /// The change was made, but not all instances follow.
    pub(crate) is_partial: bool,
}

impl Report {
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        let (text, is_partial) = (text.into(), false);
        Self { text, json, is_partial }
    }

    pub(crate) fn code(&self) -> u8 {
        if self.is_partial { 5 } else { 0 }
    }

    pub(crate) fn printed(&self, as_json: bool) -> String {
        match as_json {
            true => format!("{}\n", self.json),
            false => self.text.clone(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Failure {
    /// Redis does not answer, or contains unreadable data.
    Broken(String),
    Unconfirmed,
    Usage(String),
    /// Valid, but rejected because of its effects.
    Rejected(String),
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Broken(_) => 1,
            Self::Usage(_) => 2,
            Self::Rejected(_) => 3,
            Self::Unconfirmed => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(message) | Self::Usage(message) | Self::Rejected(message) => f.write_str(message),
            Self::Unconfirmed => f.write_str("not confirmed, nothing was changed"),
        }
    }
}

impl From<FleetError> for Failure {
    fn from(error: FleetError) -> Self {
        let message = error.to_string();
        match error.kind() {
            FleetErrorKind::Config => Self::Usage(message),
            FleetErrorKind::Unavailable => Self::Broken(message),
            FleetErrorKind::Unreadable => Self::Broken(format!(
                "{message}\nUse `rollback --overwrite` or `publish FILE --overwrite` to replace them."
            )),
            FleetErrorKind::CountsReset => Self::Rejected(format!(
                "{message}\nCallers would get a full quota once. If this is intended, add --restart-counts."
            )),
            FleetErrorKind::UnreadableAccess => Self::Broken(format!("{message}\n`unblock --all` starts a new list")),
            FleetErrorKind::AfterRollBack => Self::Rejected(format!("{message}\nAdd --to VERSION. See `history`.")),
            FleetErrorKind::NothingPublished => Self::Rejected(format!(
                "{message}\nIf Redis has lost the rules, `restore FILE` publishes them again. See `show`."
            )),
            FleetErrorKind::Conflict => Self::Rejected(format!("{message}\nNothing was published. See `show`.")),
            _ => Self::Rejected(message),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Broken(error.to_string())
    }
}

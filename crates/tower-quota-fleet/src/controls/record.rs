//! The history of changes.

use serde::{Deserialize, Serialize};

/// A change of the rules, the kill switch or the access list, as
/// [`RulesPublisher::changes`](crate::RulesPublisher::changes) lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Change {
    #[serde(default)]
    time: u64,
    #[serde(default)]
    author: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    roll_back: bool,
    text: String,
}

impl Change {
    /// The longest text in bytes. The rest is cut off.
    const MAX_TEXT: usize = 4_096;

    pub(crate) fn new(time: u64, author: &str, reason: &str, version: Option<u64>, text: &str) -> Self {
        let mut end = text.len().min(Self::MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            time,
            author: author.to_owned(),
            reason: reason.to_owned(),
            version,
            roll_back: false,
            text: text[..end].trim_end().to_owned(),
        }
    }

    pub(crate) fn rolling_back(mut self, roll_back: bool) -> Self {
        self.roll_back = roll_back;
        self
    }

    /// Returns `true` if a rollback made the version.
    pub fn is_roll_back(&self) -> bool {
        self.roll_back
    }

    /// Returns when the change was made, in seconds since the Unix epoch.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns who made the change.
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the number of the version, of a publication of rules.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Returns the effects, one on each line: the quotas that changed, the position of the switch, or the entry of the
    /// access list.
    pub fn text(&self) -> &str {
        &self.text
    }
}

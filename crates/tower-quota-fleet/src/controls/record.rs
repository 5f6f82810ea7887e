use serde::{Deserialize, Serialize};

/// A change of rules, kill switch or access list.
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

    /// Returns `true` if the change is a rollback.
    pub fn is_roll_back(&self) -> bool {
        self.roll_back
    }

    /// Returns the time in Unix seconds.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the author.
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the published version number, or `None` for a change of the controls.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Returns the effects, one per line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

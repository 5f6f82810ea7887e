//! The reports of instances about the rules that they run.

use serde::{Deserialize, Serialize};

use super::version::RulesVersion;

/// A report of an instance: which version of a rule set it runs.
///
/// An instance reports every ten seconds, and when its version changes. [`RedisRules::instances`](super::RedisRules::instances)
/// reads the reports of the last thirty seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct InstanceReport {
    instance: String,
    #[serde(default, with = "version_text", skip_serializing_if = "Option::is_none")]
    version: Option<RulesVersion>,
    #[serde(default, with = "version_text", skip_serializing_if = "Option::is_none")]
    rejects: Option<RulesVersion>,
    #[serde(default, skip_serializing_if = "is_false")]
    overridden: bool,
}

impl InstanceReport {
    /// The report of the instance of this name, which must be another one than those of all other instances, while it runs
    /// the rules of its program.
    pub fn new(instance: impl Into<String>) -> Self {
        Self {
            instance: instance.into(),
            version: None,
            rejects: None,
            overridden: false,
        }
    }

    /// The name of the instance.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The version that it runs; `None` for the rules of its program.
    pub fn version(&self) -> Option<RulesVersion> {
        self.version
    }

    /// The version that it rejects, if it rejects the one that was published last.
    pub fn rejects(&self) -> Option<RulesVersion> {
        self.rejects
    }

    /// Returns `true` if its own rules or its own switch override those of the fleet.
    pub fn is_overridden(&self) -> bool {
        self.overridden
    }

    /// Sets the version that it runs.
    #[must_use]
    pub fn running(mut self, version: Option<RulesVersion>) -> Self {
        self.version = version;
        self
    }

    /// Sets the version that it rejects.
    #[must_use]
    pub fn rejecting(mut self, version: Option<RulesVersion>) -> Self {
        self.rejects = version;
        self
    }

    /// Sets whether its own rules or its own switch override those of the fleet.
    #[must_use]
    pub fn overridden(mut self, is_overridden: bool) -> Self {
        self.overridden = is_overridden;
        self
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Versions as their text.
mod version_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::RulesVersion;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RulesVersion>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }

    pub(super) fn serialize<S: Serializer>(version: &Option<RulesVersion>, serializer: S) -> Result<S::Ok, S::Error> {
        match version {
            Some(version) => serializer.collect_str(version),
            None => serializer.serialize_none(),
        }
    }
}

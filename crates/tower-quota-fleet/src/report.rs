use serde::{Deserialize, Serialize};

use super::version::RulesVersion;

/// An instance's report of what it enforces.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct InstanceReport {
    pub(super) instance: String,
    #[serde(default, with = "version_text", skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<RulesVersion>,
    #[serde(default, with = "version_text", skip_serializing_if = "Option::is_none")]
    pub(super) rejects: Option<RulesVersion>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) overridden: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) off: bool,
    /// `None` if they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) controls: Option<ReportedControls>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) newest: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct ReportedControls {
    pub(super) switch: u64,
    pub(super) access: u64,
}

impl InstanceReport {
    /// Returns the name of the instance.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns the version that the instance runs, or `None` for its program's rules.
    pub fn version(&self) -> Option<RulesVersion> {
        self.version
    }

    /// Returns the latest published version if the instance rejects it.
    pub fn rejects(&self) -> Option<RulesVersion> {
        self.rejects
    }

    /// Returns `true` if the instance overrides the fleet's rules or switch.
    pub fn is_overridden(&self) -> bool {
        self.overridden
    }

    /// Returns `true` if the fleet or the instance disables the limits.
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Returns the numbers of the [`SwitchOrder`](super::SwitchOrder) and access list that the instance obeys, or 0
    /// each.
    ///
    /// `None` if a read failed.
    pub fn controls(&self) -> Option<(u64, u64)> {
        self.controls.map(|controls| (controls.switch, controls.access))
    }

    /// Returns the largest version number that the instance has seen, or 0.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns `true` if the source [lost](super::Lost) something that the instance had read.
    pub fn has_lost(&self) -> bool {
        self.lost
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

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

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
    #[serde(default, skip_serializing_if = "is_false")]
    off: bool,
    /// The orders that it obeys. Builds without the kill switch of its own report none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controls: Option<ReportedControls>,
    #[serde(default, skip_serializing_if = "is_zero")]
    newest: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    lost: bool,
}

/// The numbers of the last order of the kill switch and the last access list; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct ReportedControls {
    switch: u64,
    access: u64,
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
            off: false,
            controls: None,
            newest: 0,
            lost: false,
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

    /// Returns `true` if it applies no limits, by the fleet's switch or its own.
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Returns the numbers of the last [`SwitchOrder`](super::SwitchOrder) and the last access list that it obeys, each 0 for
    /// none; `None` if it does not read them: its build is too old, or its ACL forbids it.
    pub fn controls(&self) -> Option<(u64, u64)> {
        self.controls.map(|controls| (controls.switch, controls.access))
    }

    /// Returns the largest number of a version that it has seen, or 0.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns `true` if the source lost rules, an order of the switch or an access list that it had, or went back to an
    /// older one.
    pub fn has_lost(&self) -> bool {
        self.lost
    }

    /// Sets whether it applies no limits.
    #[must_use]
    pub fn switched_off(mut self, is_off: bool) -> Self {
        self.off = is_off;
        self
    }

    /// Sets the numbers of the last order of the switch and of the last access list.
    #[must_use]
    pub fn obeying(mut self, controls: Option<(u64, u64)>) -> Self {
        self.controls = controls.map(|(switch, access)| ReportedControls { switch, access });
        self
    }

    /// Sets the largest number of a version that it has seen.
    #[must_use]
    pub fn having_seen(mut self, newest: u64) -> Self {
        self.newest = newest;
        self
    }

    /// Sets whether the source lost something that it had.
    #[must_use]
    pub fn missing(mut self, has_lost: bool) -> Self {
        self.lost = has_lost;
        self
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

fn is_zero(number: &u64) -> bool {
    *number == 0
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

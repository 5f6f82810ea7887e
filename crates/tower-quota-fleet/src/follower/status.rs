use std::fmt;

use crate::{controls::SwitchOrder, error::FleetError, version::RulesVersion};

/// The status of a [`RulesFollower`](super::RulesFollower).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowerStatus {
    pub(super) version: Option<RulesVersion>,
    pub(super) rejected: Option<(RulesVersion, FleetError)>,
    pub(super) failure: Option<String>,
    pub(super) is_overridden: bool,
    pub(super) is_off: bool,
    pub(super) switch: Option<SwitchOrder>,
    pub(super) access: u64,
    pub(super) controls_failure: Option<String>,
    pub(super) lost: Vec<Lost>,
    pub(super) newest: u64,
}

/// Data that an instance has read and its source has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    what: &'static str,
    had: u64,
    found: Option<u64>,
}

impl FollowerStatus {
    /// Returns the version whose rules were applied last, or `None` for the program's.
    ///
    /// A file's switch and access list may come from a [rejected](Self::rejected) version.
    pub fn version(&self) -> Option<RulesVersion> {
        self.version
    }

    /// Returns the latest published version and its error, if it is [rejected](crate::FleetErrorKind::is_bad_document).
    pub fn rejected(&self) -> Option<(RulesVersion, &FleetError)> {
        let (version, error) = self.rejected.as_ref()?;
        Some((*version, error))
    }

    /// Returns why the last poll failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns `true` if the fleet or this process disables the limits.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Returns the last order of the fleet's switch, which may have expired.
    pub fn switch(&self) -> Option<&SwitchOrder> {
        self.switch.as_ref()
    }

    /// Returns the number of the access list that applies without rules, or 0.
    pub fn access_number(&self) -> u64 {
        self.access
    }

    /// Returns why switch or access list could not be read. The last known ones apply.
    pub fn controls_failure(&self) -> Option<&str> {
        self.controls_failure.as_deref()
    }

    pub(super) fn controls(&self) -> Option<(u64, u64)> {
        let numbers = || (self.switch.as_ref().map_or(0, SwitchOrder::number), self.access);
        self.controls_failure.is_none().then(numbers)
    }

    /// Returns what the source lost, or has only in an older version.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Returns `true` while this process [overrides](tower_quota::RulesHandle::clear_overrides) the fleet's rules or
    /// switch.
    pub fn is_overridden(&self) -> bool {
        self.is_overridden
    }
}

impl Lost {
    pub(super) fn between(what: &'static str, had: u64, found: Option<u64>) -> Option<Self> {
        let is_lost = had > 0 && found.is_none_or(|found| found < had);
        is_lost.then_some(Self { what, had, found })
    }

    /// Returns the metric's label: `rules`, `switch` or `access`.
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Returns the number that the instance has read.
    pub fn had(&self) -> u64 {
        self.had
    }

    /// Returns the smaller number that the source has now, or `None`.
    pub fn found(&self) -> Option<u64> {
        self.found
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, had) = (self.what, self.had);
        match self.found {
            None => write!(f, "{what}: missing, previously {had}"),
            Some(found) => write!(f, "{what}: went back from {had} to {found}"),
        }
    }
}

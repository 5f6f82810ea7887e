//! The state of an instance that follows rules.

use std::fmt;

use crate::{controls::SwitchOrder, error::FleetError, version::RulesVersion};

/// The state of a [`RulesFollower`](super::RulesFollower): which version its layer runs, and why not a newer one.
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

/// Something that an instance had read and that its source no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    what: &'static str,
    had: u64,
    found: Option<u64>,
}

impl FollowerStatus {
    /// The version of the rules that were put in force last; `None` for those of the program. The kill switch and the
    /// access list may be those of a version that is [rejected](Self::rejected).
    pub fn version(&self) -> Option<RulesVersion> {
        self.version
    }

    /// The version that was published last, if it is rejected, and why: an error about a
    /// [bad document](crate::FleetErrorKind::is_bad_document).
    pub fn rejected(&self) -> Option<(RulesVersion, &FleetError)> {
        let (version, error) = self.rejected.as_ref()?;
        Some((*version, error))
    }

    /// The reason why the source could not be read the last time. The rules may be outdated meanwhile.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns `true` if no limits apply, by the fleet's switch or that of this process.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Returns the last order of the fleet's kill switch, which may have ended.
    pub fn switch(&self) -> Option<&SwitchOrder> {
        self.switch.as_ref()
    }

    /// Returns the number of the last access list that applies without rules, or 0.
    pub fn access_number(&self) -> u64 {
        self.access
    }

    /// Returns why the kill switch and the access list that apply without rules could not be read the last time. The last
    /// ones that were read stay in force.
    pub fn controls_failure(&self) -> Option<&str> {
        self.controls_failure.as_deref()
    }

    /// The numbers of the last order and the last access list; `None` if they cannot be read.
    pub(super) fn controls(&self) -> Option<(u64, u64)> {
        let numbers = || (self.switch.as_ref().map_or(0, SwitchOrder::number), self.access);
        self.controls_failure.is_none().then(numbers)
    }

    /// Returns what the source had and has no longer, or has in an older version: after a `FLUSHALL`, a restart without
    /// persistence, a failover or a restored backup. The rules stay in force, or are replaced by the older ones that the source
    /// has; the newest order of the switch and the newest access list stay in force until they end or newer ones are set.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Returns `true` if this process overrides the rules or the kill switch of the fleet, until
    /// [`clear_overrides`](tower_quota::RulesHandle::clear_overrides).
    pub fn is_overridden(&self) -> bool {
        self.is_overridden
    }
}

impl Lost {
    /// `None` if the source has what was `had`, or something newer; 0 is nothing.
    pub(super) fn between(what: &'static str, had: u64, found: Option<u64>) -> Option<Self> {
        let is_lost = had > 0 && found.is_none_or(|found| found < had);
        is_lost.then_some(Self { what, had, found })
    }

    /// Returns what the source lost, as metrics name it: the `rules`, the last order of the `switch`, or the `access` list that
    /// applies in addition to the rules.
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Returns the number of the version or order that the instance had read.
    pub fn had(&self) -> u64 {
        self.had
    }

    /// Returns the older number that the source has now, or `None` if it has none.
    pub fn found(&self) -> Option<u64> {
        self.found
    }
}

impl fmt::Display for Lost {
    /// Such as `rules: missing, 42 was read` or `rules: went back from 42 to 40`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, had) = (self.what, self.had);
        match self.found {
            None => write!(f, "{what}: missing, {had} was read"),
            Some(found) => write!(f, "{what}: went back from {had} to {found}"),
        }
    }
}

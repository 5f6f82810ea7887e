mod control;
mod record;

use serde::{Deserialize, Serialize};

pub(super) use self::control::ControlKind;
pub use self::{control::Control, record::Change};
use super::{
    document::{AccessEntry, access_rules, check_length},
    error::FleetError,
    version::RulesVersion,
};
use tower_quota::ConfigError;

/// An order of a [`Control`] that switches the limits of a fleet on or off.
///
/// Instances end it by their own clocks, even if Redis is unreachable or has lost it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SwitchOrder {
    number: u64,
    off: bool,
    #[serde(default)]
    author: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

impl SwitchOrder {
    /// Creates an order without an end, an author or a reason. The order with the largest `number` applies.
    pub fn new(number: u64, off: bool) -> Self {
        Self {
            number,
            off,
            author: String::new(),
            reason: String::new(),
            time: 0,
            until: None,
        }
    }

    /// Sets the end in Unix seconds.
    #[must_use]
    pub fn with_end(mut self, until: u64) -> Self {
        self.until = Some(until);
        self
    }

    /// Returns the number: the server's time in milliseconds, or more if a larger number was used before.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if the order disables the limits.
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Returns the author, or an empty string.
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the time of the order in Unix seconds.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the end in Unix seconds, or `None` if the order applies until the next one.
    pub fn until(&self) -> Option<u64> {
        self.until
    }

    /// Returns `true` if the order applies at `now`, in Unix seconds.
    pub fn applies_at(&self, now: u64) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// One year in milliseconds. This crate never creates numbers further ahead.
    pub(super) const FAR: u64 = 366 * 86_400_000;

    const MAX_LENGTH: usize = 4_096;

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > Self::MAX_LENGTH {
            return Err(format!("switch: longer than {} bytes", Self::MAX_LENGTH));
        }
        let order: Self = serde_json::from_slice(bytes).map_err(|error| format!("switch: {error}"))?;
        if [&order.author, &order.reason]
            .into_iter()
            .any(|text| text.contains(char::is_control))
        {
            return Err("switch: author or reason contains a control character".to_owned());
        }
        match order.number {
            1..=RulesVersion::MAX_NUMBER => Ok(order),
            number => Err(format!(
                "switch: number {number} is outside 1..={}",
                RulesVersion::MAX_NUMBER
            )),
        }
    }
}

/// The kill switch and the access list of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    pub(super) switch: Option<SwitchOrder>,
    pub(super) access: ControlledAccess,
    pub(super) problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlledAccess {
    pub(super) number: u64,
    pub(super) entries: Vec<AccessEntry>,
}

impl Controls {
    /// Returns the last order of the kill switch, which may have expired.
    pub fn switch(&self) -> Option<&SwitchOrder> {
        self.switch.as_ref()
    }

    /// Returns the access list, including expired entries.
    pub fn access(&self) -> &[AccessEntry] {
        &self.access.entries
    }

    /// Returns why the access list cannot be read. [`Control::clear_access`] replaces it.
    pub fn access_problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns the number of the access list's last change, or 0.
    pub fn access_number(&self) -> u64 {
        self.access.number
    }
}

pub(super) fn parse_access(head: RulesVersion, bytes: &[u8]) -> Result<ControlledAccess, String> {
    check_length(bytes.len()).map_err(|error| format!("access list: {error}"))?;
    if RulesVersion::of(head.number(), bytes) != head {
        return Err(format!("access list: digest does not match {head}"));
    }
    let entries: Vec<AccessEntry> = serde_json::from_slice(bytes).map_err(|error| format!("access list: {error}"))?;
    check_entries(&entries).map_err(|error| format!("access list: {error}"))?;
    let number = head.number();
    Ok(ControlledAccess { number, entries })
}

/// Also checks expired entries, so that validity does not depend on the time.
fn check_entries(entries: &[AccessEntry]) -> Result<(), ConfigError> {
    access_rules(entries, 0).map(drop)
}

pub(super) fn access_json(entries: &[AccessEntry]) -> Result<String, FleetError> {
    let json = serde_json::to_string(entries)?;
    check_length(json.len())?;
    Ok(json)
}

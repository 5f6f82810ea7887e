use std::time::Duration;

use super::{ControlledAccess, Controls, SwitchOrder, check_entries};
use crate::{AccessEntry, FleetError, FleetErrorKind, date::date, document::is_same_network};
use tower_quota::Access;

/// A change of a fleet's kill switch or access list.
///
/// ```
/// use std::time::Duration;
/// use tower_quota_fleet::Control;
///
/// let off = Control::switch_off().expires_in(Duration::from_secs(600)).because("the gateway is down");
/// assert_eq!(off.warning(), None);
/// let block = Control::block_network("0.0.0.0/0");
/// assert_eq!(block.warning().as_deref(), Some("0.0.0.0/0 contains every IPv4 address"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a control does nothing until a publisher applies it"]
pub struct Control {
    edit: ControlEdit,
    lasts: Option<Duration>,
    pub(crate) reason: String,
}

#[derive(Clone, Debug)]
enum ControlEdit {
    ClearAccess,
    RemoveAccess(AccessEntry),
    SetAccess(AccessEntry),
    Switch { off: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    Access,
    Switch,
}

impl Control {
    /// How long [`switch_off`](Self::switch_off) lasts by default: one hour.
    pub const DEFAULT_OFF: Duration = Duration::from_secs(3_600);

    /// The longest time off without a [warning](Self::warning): 24 hours.
    pub const LONG_OFF: Duration = Duration::from_secs(24 * 3_600);

    fn new(edit: ControlEdit, lasts: Option<Duration>) -> Self {
        let reason = String::new();
        Self { edit, lasts, reason }
    }

    /// Disables the limits of all instances for an hour, unless [`expires_in`](Self::expires_in) is set.
    ///
    /// Requests pass uncounted, except those that an access list blocks.
    pub fn switch_off() -> Self {
        Self::new(ControlEdit::Switch { off: true }, Some(Self::DEFAULT_OFF))
    }

    /// Enables the limits of all instances.
    pub fn switch_on() -> Self {
        Self::new(ControlEdit::Switch { off: false }, None)
    }

    /// Blocks a [network](tower_quota::AccessRules::set_network) or an address on all instances.
    pub fn block_network(network: impl Into<String>) -> Self {
        Self::set_access(AccessEntry::network(network, Access::Block))
    }

    /// Sets an access list entry. Replaces an entry for the same network or key.
    pub fn set_access(entry: AccessEntry) -> Self {
        Self::new(ControlEdit::SetAccess(entry), None)
    }

    /// Removes the access list entry for the same network or key. Fails with [`FleetErrorKind::NotListed`] if there is
    /// none.
    pub fn remove_access(entry: AccessEntry) -> Self {
        Self::new(ControlEdit::RemoveAccess(entry), None)
    }

    /// Removes all access list entries, even if the list is unreadable.
    pub fn clear_access() -> Self {
        Self::new(ControlEdit::ClearAccess, None)
    }

    /// Ends the order or entry after this time in whole seconds, by the server's clock.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.lasts = Some(time);
        self
    }

    /// Applies the order or entry until the next one.
    pub fn without_end(mut self) -> Self {
        self.lasts = None;
        self
    }

    /// Sets the recorded [reason](crate::Change::reason): at most 256 bytes without control characters.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Returns what an operator should confirm: a block of every address, or limits off for more than [24
    /// hours](Self::LONG_OFF).
    pub fn warning(&self) -> Option<String> {
        match &self.edit {
            ControlEdit::Switch { off: true } if self.lasts.is_none() => {
                Some("limits stay off until switched on".to_owned())
            }
            ControlEdit::Switch { off: true } if self.lasts > Some(Self::LONG_OFF) => {
                Some("limits stay off for more than 24 hours".to_owned())
            }
            ControlEdit::SetAccess(entry) if entry.access() == Access::Block => {
                let text = entry.as_network()?;
                let families = [("0.0.0.0/0", "IPv4"), ("::/0", "IPv6")];
                let (_, family) = families.into_iter().find(|(every, _)| is_same_network(text, every))?;
                Some(format!("{text} contains every {family} address"))
            }
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> ControlKind {
        match self.edit {
            ControlEdit::Switch { .. } => ControlKind::Switch,
            ControlEdit::ClearAccess | ControlEdit::RemoveAccess(_) | ControlEdit::SetAccess(_) => ControlKind::Access,
        }
    }

    fn end(&self, now: u64) -> Option<u64> {
        self.lasts.map(|time| now.saturating_add(time.as_secs()))
    }

    pub(crate) fn clears(&self) -> bool {
        matches!(self.edit, ControlEdit::ClearAccess)
    }

    /// `now` is in milliseconds; `seen` is the largest number that an instance reported.
    pub(crate) fn apply(&self, current: &Controls, author: &str, now: u64, seen: u64) -> Result<Controls, FleetError> {
        let seconds = now / 1_000;
        let mut after = current.clone();
        match &self.edit {
            ControlEdit::Switch { off } => {
                let number = next_number(current.switch.as_ref().map_or(0, SwitchOrder::number), now, seen);
                after.switch = Some(SwitchOrder {
                    number,
                    off: *off,
                    author: author.to_owned(),
                    reason: self.reason.clone(),
                    time: seconds,
                    until: self.end(seconds),
                });
            }
            ControlEdit::SetAccess(entry) => {
                let entry = self
                    .end(seconds)
                    .map_or_else(|| entry.clone(), |end| entry.clone().with_expiry(end));
                after
                    .access
                    .entries
                    .retain(|other| other.holds_at(seconds) && !other.is_about_same(&entry));
                after.access.entries.push(entry);
            }
            ControlEdit::ClearAccess => {
                after.access.entries.clear();
                after.problem = None;
            }
            ControlEdit::RemoveAccess(entry) => {
                let is_same = |other: &AccessEntry| other.is_about_same(entry);
                if !after.access.entries.iter().any(is_same) {
                    return Err(not_listed());
                }
                after
                    .access
                    .entries
                    .retain(|other| other.holds_at(seconds) && !is_same(other));
            }
        }
        if self.kind() == ControlKind::Access {
            check_entries(&after.access.entries)?;
            let ControlledAccess { number, .. } = current.access;
            after.access.number = next_number(number, now, seen);
        }
        Ok(after)
    }

    pub(crate) fn text(&self, after: &Controls) -> String {
        let until = |end: Option<u64>| end.map_or(String::new(), |end| format!(" until {}", date(end)));
        match &self.edit {
            ControlEdit::Switch { off } => {
                let end = after.switch.as_ref().and_then(SwitchOrder::until);
                format!("limits {}{}", if *off { "OFF" } else { "on" }, until(end))
            }
            ControlEdit::SetAccess(_) => match after.access.entries.last() {
                Some(entry) => format!("access list: + {entry}"),
                None => String::new(),
            },
            ControlEdit::ClearAccess => "access list: cleared".to_owned(),
            ControlEdit::RemoveAccess(entry) => format!("access list: - {}", entry.subject()),
        }
    }
}

fn not_listed() -> FleetError {
    let message = "access list: no entry for this network or key";
    FleetError::new(FleetErrorKind::NotListed, message)
}

/// Exceeds all earlier numbers even if Redis has lost them, or its clock was set back. Ignores a `before` far ahead of
/// `now`, as instances do.
fn next_number(before: u64, now: u64, seen: u64) -> u64 {
    let before = if before > now + SwitchOrder::FAR { 0 } else { before };
    now.max(seen.saturating_add(1)).max(before + 1)
}

//! The changes that can be published.

use std::time::Duration;

use super::error::PublishError;
use crate::{
    fleet::{AccessEntry, RollOut, RulesDocument},
    key::network,
    partition::PartitionId,
    rules::Rules,
    screening::Access,
};

/// A change of the rules of a fleet, for [`RulesPublisher::publish`](super::RulesPublisher::publish).
///
/// It changes one thing: rules for all or for a part of the callers, the kill switch, or the access list. The rest of the
/// document stays as it is.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{QuotaPolicy, Rules, fleet::Publication};
///
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// let try_it = Publication::rules(rules.clone()).to_percent(10);
/// let for_all = Publication::rules(rules);
/// let block = Publication::block_network("203.0.113.9").lasting(Duration::from_secs(600));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a publication does nothing until it is published"]
pub struct Publication {
    edit: Edit,
    pub(super) restarts_counts: bool,
    pub(super) overwrites: bool,
}

#[derive(Clone, Debug)]
enum Edit {
    RemoveAccess(AccessEntry),
    RollBack {
        /// None for the version before.
        to: Option<u64>,
    },
    Rules {
        rules: Rules,
        percent: u8,
        partitions: Vec<PartitionId>,
    },
    SetAccess {
        entry: AccessEntry,
        lasts: Option<Duration>,
    },
    Switch {
        off: bool,
    },
}

impl Publication {
    fn new(edit: Edit) -> Self {
        Self {
            edit,
            restarts_counts: false,
            overwrites: false,
        }
    }

    /// These rules for all callers, unless [`to_percent`](Self::to_percent) says for how many. A roll-out ends.
    pub fn rules(rules: Rules) -> Self {
        Self::new(Edit::Rules {
            rules,
            percent: 100,
            partitions: Vec::new(),
        })
    }

    /// The rules and the roll-out of the version before. Switch and access list stay as they are.
    ///
    /// Versions with the rules that hold now are passed over, also those that were published earlier: another roll-back goes
    /// further back, and never forward to rules that a roll-back has ended. Policies that start anew are no obstacle: they go on
    /// with what they had counted when they held before, unless that has expired.
    pub fn roll_back() -> Self {
        Self::new(Edit::RollBack { to: None })
    }

    /// The rules and the roll-out of a version of the [history](super::RulesPublisher::history). Switch and access list stay
    /// as they are, and policies that start anew are no obstacle.
    pub fn roll_back_to(version: u64) -> Self {
        Self::new(Edit::RollBack { to: Some(version) })
    }

    /// No limits: all instances let all requests pass uncounted, but for those that an access list blocks.
    pub fn switch_off() -> Self {
        Self::new(Edit::Switch { off: true })
    }

    /// Limits again, after [`switch_off`](Self::switch_off).
    pub fn switch_on() -> Self {
        Self::new(Edit::Switch { off: false })
    }

    /// Blocks a network or an address on all instances. See [`AccessRules::set_network`](crate::AccessRules::set_network).
    pub fn block_network(network: impl Into<String>) -> Self {
        Self::set_access(AccessEntry::network(network, Access::Block))
    }

    /// Sets a rule of the access list, in place of one about the same network or key.
    pub fn set_access(entry: AccessEntry) -> Self {
        Self::new(Edit::SetAccess { entry, lasts: None })
    }

    /// Removes the rule of the access list about the network or the key of this entry. The rest of the entry does not
    /// matter. Without such a rule the error is [`PublishError::NotListed`].
    pub fn remove_access(entry: AccessEntry) -> Self {
        Self::new(Edit::RemoveAccess(entry))
    }

    /// Publishes rules for so many percent of the callers, from 0 to 100: the same ones on every instance, and those of a
    /// smaller share are among those of a larger one. Only [rules](Self::rules) have a share.
    pub fn to_percent(mut self, share: u8) -> Self {
        if let Edit::Rules { percent, .. } = &mut self.edit {
            *percent = share;
        }
        self
    }

    /// Publishes rules for these callers, too, where they are not for all: see [`RollOut::with_partitions`]. Only
    /// [rules](Self::rules) have them.
    pub fn with_partitions(mut self, callers: impl IntoIterator<Item = PartitionId>) -> Self {
        if let Edit::Rules { partitions, .. } = &mut self.edit {
            partitions.extend(callers);
        }
        self
    }

    /// Ends a rule of the access list by itself after so much time from now, in whole seconds, by the server's clock. Only
    /// rules of the [access list](Self::set_access) end.
    pub fn lasting(mut self, time: Duration) -> Self {
        if let Edit::SetAccess { lasts, .. } = &mut self.edit {
            *lasts = Some(time);
        }
        self
    }

    /// Accepts that policies [start anew](crate::RulesDiff): their callers get a full quota once.
    pub fn restarting_counts(mut self) -> Self {
        self.restarts_counts = true;
        self
    }

    /// Takes the place of a published document that cannot be read: one that another program has written, or a newer
    /// version of the crate. Without this, such a document is an error. Its switch and its access list are lost, and no
    /// policies can be compared. A document that can be read is changed as usual.
    ///
    /// Only [rules](Self::rules) for all callers and a [roll-back](Self::roll_back) can take its place.
    pub fn overwriting(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// Returns `true` if two such changes have the same effect in any order, and whatever the rules are.
    pub(super) fn is_independent_of_rules(&self) -> bool {
        !matches!(self.edit, Edit::Rules { .. } | Edit::RollBack { .. })
    }

    /// Returns `true` if it brings rules back that have held before.
    pub(super) fn is_roll_back(&self) -> bool {
        matches!(self.edit, Edit::RollBack { .. })
    }

    /// The document with the change. `history` has the versions that can be read, the newest one first; `now` is in
    /// seconds.
    pub(super) fn apply(
        self,
        current: Option<&RulesDocument>,
        history: &[RulesDocument],
        now: u64,
    ) -> Result<RulesDocument, PublishError> {
        let base = || current.cloned().ok_or(PublishError::NothingPublished);
        match self.edit {
            Edit::Rules {
                rules, percent: 100, ..
            } => Ok(match current {
                Some(document) => document.clone().with_rules(rules).with_roll_out(None),
                None => RulesDocument::new(1, rules),
            }),
            Edit::Rules {
                rules,
                percent,
                partitions,
            } => Ok(base()?.with_roll_out(RollOut::new(percent, rules).with_partitions(partitions))),
            Edit::RollBack { to } => {
                let target = earlier(current, history, to)?;
                let document = current.cloned().unwrap_or_else(|| target.clone());
                Ok(document
                    .with_rules(target.rules().clone())
                    .with_roll_out(target.roll_out().cloned()))
            }
            Edit::Switch { off } => Ok(base()?.switched_off(off)),
            Edit::SetAccess { entry, lasts } => {
                let document = base()?;
                let entry = match lasts {
                    Some(time) => entry.until(now.saturating_add(time.as_secs())),
                    None => entry,
                };
                let others = document.access().iter().filter(|other| !is_about_same(other, &entry));
                let access: Vec<_> = others.cloned().chain([entry.clone()]).collect();
                Ok(document.with_access(access))
            }
            Edit::RemoveAccess(entry) => {
                let document = base()?;
                let others = document.access().iter().filter(|other| !is_about_same(other, &entry));
                let access: Vec<_> = others.cloned().collect();
                match access.len() == document.access().len() {
                    true => Err(PublishError::NotListed),
                    false => Ok(document.with_access(access)),
                }
            }
        }
    }
}

/// The version to go back to.
fn earlier<'a>(
    current: Option<&RulesDocument>,
    history: &'a [RulesDocument],
    to: Option<u64>,
) -> Result<&'a RulesDocument, PublishError> {
    let is_same = |document: &RulesDocument| current.is_some_and(|current| has_same_rules(document, current));
    let found = match to {
        Some(version) => history.iter().find(|document| document.version() == version),
        // Before the oldest one with these rules: what came between was rolled back.
        None => match history.iter().rposition(is_same) {
            Some(oldest) => history.get(oldest + 1),
            None => history.first(),
        },
    };
    found.ok_or_else(|| PublishError::NoEarlierVersion {
        known: history.iter().map(RulesDocument::version).collect(),
    })
}

pub(super) fn has_same_rules(one: &RulesDocument, other: &RulesDocument) -> bool {
    (one.rules(), one.roll_out()) == (other.rules(), other.roll_out())
}

fn is_about_same(one: &AccessEntry, other: &AccessEntry) -> bool {
    match (one.as_network(), other.as_network()) {
        (Some(one), Some(other)) => one == other || network(one).is_some_and(|one| network(other) == Some(one)),
        (None, None) => one.as_key() == other.as_key(),
        _ => false,
    }
}

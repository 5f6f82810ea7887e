//! The changes that can be published.

use crate::{FleetError, FleetErrorKind, Rollout, RulesDocument};
use tower_quota::{PartitionId, Rules};

/// A change of the rules of a fleet, for [`RulesPublisher::publish`](super::RulesPublisher::publish).
///
/// The rest of the document stays as it is. The kill switch and the access list are changed by a
/// [`Control`](crate::Control).
///
/// ```
/// use tower_quota::{QuotaPolicy, Rules};
/// use tower_quota_fleet::Publication;
///
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// let try_it = Publication::rules(rules.clone()).rollout_percent(10);
/// let for_all = Publication::rules(rules).because("the database is slow");
/// ```
#[derive(Clone, Debug)]
#[must_use = "a publication does nothing until it is published"]
pub struct Publication {
    edit: Edit,
    pub(super) restarts_counts: bool,
    pub(super) overwrites: bool,
    pub(super) reason: String,
}

#[derive(Clone, Debug)]
enum Edit {
    Restore(RulesDocument),
    RollBack {
        /// None for the version before.
        to: Option<u64>,
    },
    Rules {
        rules: Rules,
        percent: u8,
        partitions: Vec<PartitionId>,
    },
}

impl Publication {
    fn new(edit: Edit) -> Self {
        Self {
            edit,
            restarts_counts: false,
            overwrites: false,
            reason: String::new(),
        }
    }

    /// These rules for all callers, unless [`rollout_percent`](Self::rollout_percent) says for how many. A roll-out ends.
    pub fn rules(rules: Rules) -> Self {
        Self::new(Edit::Rules {
            rules,
            percent: 100,
            partitions: Vec::new(),
        })
    }

    /// Publishes the rules and the roll-out of the newest version that differs from the current one. Switch and access list stay
    /// as they are. The [proposal](super::Proposal::restores) names the version.
    ///
    /// If a rollback made the current version, the error is
    /// [`FleetErrorKind::AfterRollBack`], because "the version before" would be the one that was just rolled back. Policies that
    /// start anew are no obstacle: they continue with what they had counted, unless that has expired.
    pub fn roll_back() -> Self {
        Self::new(Edit::RollBack { to: None })
    }

    /// The rules and the roll-out of a version of the [history](super::RulesPublisher::history). Switch and access list stay
    /// as they are, and policies that start anew are no obstacle.
    pub fn roll_back_to(version: u64) -> Self {
        Self::new(Edit::RollBack { to: Some(version) })
    }

    /// Publishes a whole document again: rules, roll-out, access list and switch, with a new number. Use this to bring back rules
    /// that Redis lost, from a file or from the [document of an instance](crate::RulesFollower::document).
    pub fn restore(document: RulesDocument) -> Self {
        Self::new(Edit::Restore(document))
    }

    /// Publishes rules for so many percent of the callers, from 0 to 100: the same ones on every instance, and those of a
    /// smaller share are among those of a larger one. Only [rules](Self::rules) have a share.
    pub fn rollout_percent(mut self, share: u8) -> Self {
        if let Edit::Rules { percent, .. } = &mut self.edit {
            *percent = share;
        }
        self
    }

    /// Publishes rules for these callers, too, where they are not for all: see [`Rollout::with_partitions`]. Only
    /// [rules](Self::rules) have them.
    pub fn with_partitions(mut self, callers: impl IntoIterator<Item = PartitionId>) -> Self {
        if let Edit::Rules { partitions, .. } = &mut self.edit {
            partitions.extend(callers);
        }
        self
    }

    /// Sets the reason, which the [history](super::RulesPublisher::changes) records: at most 256 bytes without control
    /// characters.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Accepts that policies [start anew](tower_quota::RulesDiff): their callers get a full quota once.
    pub fn allow_count_reset(mut self) -> Self {
        self.restarts_counts = true;
        self
    }

    /// Takes the place of a published document that cannot be read: one that another program has written, or a newer
    /// version of the crate. Without this, such a document is an error. Its switch and its access list are lost, and no
    /// policies can be compared. A document that can be read is changed as usual.
    ///
    /// Only [rules](Self::rules) for all callers, a [roll-back](Self::roll_back) and a [restored document](Self::restore) can
    /// take its place.
    pub fn force(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// Returns `true` if it brings rules back that have held before.
    pub(super) fn is_roll_back(&self) -> bool {
        matches!(self.edit, Edit::RollBack { .. })
    }

    /// Returns `true` if it is published even if policies start anew. A document without a predecessor cannot be compared.
    pub(super) fn accepts_new_counts(&self, has_predecessor: bool) -> bool {
        let is_compared = has_predecessor || !self.overwrites;
        self.restarts_counts || self.is_roll_back() || self.is_restoration() || !is_compared
    }

    /// Returns `true` if it takes the place of a whole document.
    pub(super) fn is_restoration(&self) -> bool {
        matches!(self.edit, Edit::Restore(_))
    }

    /// The document with the change, and the version that a rollback goes back to. `history` has the versions that can be
    /// read, the newest one first; `after_roll_back` is true if a rollback made the current one.
    pub(super) fn apply(
        self,
        current: Option<&RulesDocument>,
        history: &[RulesDocument],
        after_roll_back: bool,
    ) -> Result<(RulesDocument, Option<RulesDocument>), FleetError> {
        let base = || {
            let message = "nothing was published yet; publish rules for all callers first";
            current
                .cloned()
                .ok_or_else(|| FleetError::new(FleetErrorKind::NothingPublished, message))
        };
        match self.edit {
            Edit::Rules {
                rules, percent: 100, ..
            } => Ok((
                match current {
                    Some(document) => document.clone().with_rules(rules).with_roll_out(None),
                    None => RulesDocument::new(1, rules),
                },
                None,
            )),
            Edit::Rules {
                rules,
                percent,
                partitions,
            } => {
                let roll_out = Rollout::new(percent, rules).with_partitions(partitions);
                Ok((base()?.with_roll_out(roll_out), None))
            }
            Edit::RollBack { to } => {
                let target = earlier(current, history, to, after_roll_back)?;
                let document = current.cloned().unwrap_or_else(|| target.clone());
                let document = document
                    .with_rules(target.rules().clone())
                    .with_roll_out(target.roll_out().cloned());
                Ok((document, Some(target.clone())))
            }
            Edit::Restore(document) => Ok((document, None)),
        }
    }
}

/// The version to go back to.
fn earlier<'a>(
    current: Option<&RulesDocument>,
    history: &'a [RulesDocument],
    to: Option<u64>,
    after_roll_back: bool,
) -> Result<&'a RulesDocument, FleetError> {
    let differs = |document: &&RulesDocument| current.is_none_or(|current| !has_same_rules(document, current));
    let error = |kind, problem: &str| {
        let known: Vec<_> = history.iter().filter(differs).map(RulesDocument::version).collect();
        FleetError::new(kind, format!("{problem} {known:?}"))
    };
    let found = match to {
        Some(version) => history.iter().find(|document| document.version() == version),
        None if after_roll_back => {
            let problem = "the current version is a rollback; choose the version to go back to, one of";
            return Err(error(FleetErrorKind::AfterRollBack, problem));
        }
        None => history.iter().find(differs),
    };
    let problem = "there are no such earlier rules; the history has the versions";
    found.ok_or_else(|| error(FleetErrorKind::NoEarlierVersion, problem))
}

pub(super) fn has_same_rules(one: &RulesDocument, other: &RulesDocument) -> bool {
    (one.rules(), one.roll_out()) == (other.rules(), other.roll_out())
}

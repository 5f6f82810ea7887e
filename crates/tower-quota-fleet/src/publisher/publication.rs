use crate::{FleetError, FleetErrorKind, Rollout, RulesDocument};
use tower_quota::{PartitionId, Rules};

/// A change of a fleet's rules.
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

    /// Publishes `rules` for all callers, or a [share](Self::rollout_percent), and ends any other rollout.
    pub fn rules(rules: Rules) -> Self {
        Self::new(Edit::Rules {
            rules,
            percent: 100,
            partitions: Vec::new(),
        })
    }

    /// Returns to the rules and rollout of the newest version that differs.
    ///
    /// Earlier counts continue. Fails with [`FleetErrorKind::AfterRollBack`] if the current version is itself a
    /// rollback.
    pub fn roll_back() -> Self {
        Self::new(Edit::RollBack { to: None })
    }

    /// Returns to the rules and rollout of a version in the [history](super::RulesPublisher::history).
    pub fn roll_back_to(version: u64) -> Self {
        Self::new(Edit::RollBack { to: Some(version) })
    }

    /// Publishes a whole document with a new number, such as [an instance's](crate::RulesFollower::document) after a
    /// loss of data.
    ///
    /// Fails with [`FleetErrorKind::Invalid`] if it contains a switch or an access list, as files can.
    pub fn restore(document: RulesDocument) -> Self {
        Self::new(Edit::Restore(document))
    }

    /// Sets the share for a [rollout](Rollout) of [`rules`](Self::rules), from 0 to 100 percent. Default: 100.
    pub fn rollout_percent(mut self, share: u8) -> Self {
        if let Edit::Rules { percent, .. } = &mut self.edit {
            *percent = share;
        }
        self
    }

    /// Also applies [`rules`](Self::rules) with a share below 100 percent to [these callers](Rollout::with_partitions).
    pub fn with_partitions(mut self, callers: impl IntoIterator<Item = PartitionId>) -> Self {
        if let Edit::Rules { partitions, .. } = &mut self.edit {
            partitions.extend(callers);
        }
        self
    }

    /// Sets the recorded [reason](crate::Change::reason): at most 256 bytes without control characters.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Allows counts to [reset](tower_quota::updates::RulesDiff), which grants callers a full quota once.
    pub fn allow_count_reset(mut self) -> Self {
        self.restarts_counts = true;
        self
    }

    /// Overwrites a published document that cannot be read, without comparing policies.
    ///
    /// Applies to [`rules`](Self::rules) for all callers, [rollbacks](Self::roll_back) and [restored
    /// documents](Self::restore). A readable document is changed as usual.
    pub fn force(mut self) -> Self {
        self.overwrites = true;
        self
    }

    pub(super) fn is_roll_back(&self) -> bool {
        matches!(self.edit, Edit::RollBack { .. })
    }

    pub(super) fn accepts_new_counts(&self, has_predecessor: bool) -> bool {
        let is_compared = has_predecessor || !self.overwrites;
        self.restarts_counts || self.is_roll_back() || self.is_restoration() || !is_compared
    }

    pub(super) fn is_restoration(&self) -> bool {
        matches!(self.edit, Edit::Restore(_))
    }

    /// Also returns the target of a rollback. `history` is newest first.
    pub(super) fn apply(
        self,
        current: Option<&RulesDocument>,
        history: &[RulesDocument],
        after_roll_back: bool,
    ) -> Result<(RulesDocument, Option<RulesDocument>), FleetError> {
        let of = |rules: &Rules| RulesDocument::new(1, rules.clone());
        match self.edit {
            Edit::Rules {
                rules, percent: 100, ..
            } => Ok((of(&rules), None)),
            Edit::Rules {
                rules,
                percent,
                partitions,
            } => {
                let message = "nothing is published yet; publish rules for all callers first";
                let base = current.ok_or_else(|| FleetError::new(FleetErrorKind::NothingPublished, message))?;
                let roll_out = Rollout::new(percent, rules).with_partitions(partitions);
                Ok((of(base.rules()).with_roll_out(roll_out), None))
            }
            Edit::RollBack { to } => {
                let target = earlier(current, history, to, after_roll_back)?;
                let document = of(target.rules()).with_roll_out(target.roll_out().cloned());
                Ok((document, Some(target.clone())))
            }
            Edit::Restore(document) => Ok((document, None)),
        }
    }
}

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
            let problem = "the current version is a rollback; specify the version to restore, one of";
            return Err(error(FleetErrorKind::AfterRollBack, problem));
        }
        None => history.iter().find(differs),
    };
    let problem = "no such version; the history contains";
    found.ok_or_else(|| error(FleetErrorKind::NoEarlierVersion, problem))
}

pub(super) fn has_same_rules(one: &RulesDocument, other: &RulesDocument) -> bool {
    (one.rules(), one.roll_out()) == (other.rules(), other.roll_out())
}

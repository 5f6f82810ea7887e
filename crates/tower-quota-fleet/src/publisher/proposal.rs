use std::fmt;

use super::{publication::has_same_rules, published::Published};
use crate::{FleetError, FleetErrorKind, Rollout, RulesDocument, date::date};
use tower_quota::{
    Rules,
    updates::{RulesChange, RulesDiff},
};

/// A publication that is ready to [commit](super::RulesPublisher::commit).
///
/// The `Display` output lists the changes line by line, for an operator.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub(super) head: Vec<u8>,
    pub(super) before: Option<Published>,
    pub(super) document: RulesDocument,
    pub(super) effects: Vec<(String, RulesDiff)>,
    pub(super) restarts_counts: bool,
    pub(super) restores: Option<RulesDocument>,
    pub(super) reason: String,
    /// An instance has seen a larger number than the current version's.
    pub(super) is_behind: bool,
}

impl Proposal {
    /// Returns the current version, or `None` if there is none or it is unreadable.
    pub fn base(&self) -> Option<&Published> {
        self.before.as_ref()
    }

    /// Returns the document to publish.
    pub fn document(&self) -> &RulesDocument {
        &self.document
    }

    /// Returns the target of a rollback, or `None`.
    pub fn restores(&self) -> Option<&RulesDocument> {
        self.restores.as_ref()
    }

    /// Returns the changes to confirm individually: policies closed, or lowered tenfold or more.
    pub fn drastic(&self) -> impl Iterator<Item = &RulesChange> {
        let changes = self.effects.iter().flat_map(|(_, diff)| diff.changes());
        changes.filter(|change| change.is_drastic())
    }

    /// Returns the changes for each affected group of callers, such as `callers who join the rollout (10% of all)`.
    ///
    /// The first publication is compared with empty rules.
    pub fn effects(&self) -> impl Iterator<Item = (&str, &RulesDiff)> {
        self.effects.iter().map(|(callers, diff)| (&**callers, diff))
    }

    /// Returns the policies whose counts reset, for any caller.
    pub fn count_resets(&self) -> impl Iterator<Item = &RulesChange> {
        self.effects.iter().flat_map(|(_, diff)| diff.count_resets())
    }

    /// Checks that no counts reset without [permission](super::Publication::allow_count_reset), as `commit` does. Fails
    /// with [`FleetErrorKind::CountsReset`].
    pub fn check_count_resets(&self) -> Result<(), FleetError> {
        let anew: Vec<_> = self.count_resets().map(ToString::to_string).collect();
        if anew.is_empty() || self.restarts_counts {
            return Ok(());
        }
        let message = format!("counts would be lost: {}", anew.join("; "));
        Err(FleetError::new(FleetErrorKind::CountsReset, message))
    }

    /// Returns `true` if counts may reset.
    pub fn restarts_counts(&self) -> bool {
        self.restarts_counts
    }

    /// Returns `true` if the rules equal the current ones, and no instance has seen a larger number.
    pub fn is_empty(&self) -> bool {
        let is_same = |before: &Published| has_same_rules(before.document(), &self.document);
        !self.is_behind && self.before.as_ref().is_some_and(is_same)
    }

    fn write_roll_out(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before.as_ref().and_then(|before| before.document().roll_out());
        let after = self.document.roll_out();
        let share =
            |roll_out: Option<&Rollout>| match roll_out.map(|roll_out| (roll_out.percent(), roll_out.partitions())) {
                None => "none".to_owned(),
                Some((percent, [])) => format!("{percent}%"),
                Some((percent, partitions)) => format!("{percent}% and {} listed callers", partitions.len()),
            };
        match (share(before), share(after)) {
            (before, after) if before == after => Ok(()),
            (before, after) => writeln!(f, "rollout: {before} → {after}"),
        }
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing changes");
        }
        if self.is_behind {
            let number = self.document.version();
            writeln!(
                f,
                "published as version {number}, which is above every version that instances have reported"
            )?;
        }
        if let Some(target) = &self.restores {
            let (version, author, time) = (target.version(), target.author(), date(target.time()));
            writeln!(f, "back to version {version} by {author:?}, {time}")?;
        }
        if self.before.is_none() {
            writeln!(f, "there is no earlier version to compare with")?;
        }
        self.write_roll_out(f)?;
        for (callers, diff) in &self.effects {
            writeln!(f, "{callers}:")?;
            for change in diff.changes() {
                writeln!(f, "  {change}")?;
            }
        }
        Ok(())
    }
}

fn sides(document: Option<&RulesDocument>) -> (Option<&Rules>, Option<&Rollout>) {
    (
        document.map(RulesDocument::rules),
        document.and_then(RulesDocument::roll_out),
    )
}

pub(super) fn effects(before: Option<&RulesDocument>, after: &RulesDocument) -> Vec<(String, RulesDiff)> {
    let none = Rules::new();
    let ((old, old_roll_out), (new, new_roll_out)) = (sides(before), sides(Some(after)));
    let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
    let percent = |roll_out: Option<&Rollout>| roll_out.map_or(0, Rollout::percent);
    let names = |roll_out: Option<&Rollout>| roll_out.is_some_and(|roll_out| !roll_out.partitions().is_empty());
    let (less, more) = (percent(old_roll_out), percent(new_roll_out));
    let mut effects = Vec::new();
    let mut compare = |callers: String, old: &Rules, new: &Rules| {
        let diff = RulesDiff::between(old, new);
        if !diff.is_empty() {
            effects.push((callers, diff));
        }
    };
    let share = |callers: &str, percent: u8, has_named: bool| {
        let named = if has_named { " and listed ones" } else { "" };
        format!("{callers} ({percent}% of all{named})")
    };
    // A caller in a smaller share is also in a larger one. A named caller may be in either, both, or neither.
    let any_named = names(old_roll_out) || names(new_roll_out);
    if let (Some(old), Some(new)) = (old_roll_out, new_roll_out) {
        let callers = share("callers who stay in the rollout", less.min(more), any_named);
        compare(callers, old.rules(), new.rules());
    }
    if let Some(roll_out) = new_roll_out.filter(|_| more > less || names(new_roll_out)) {
        let callers = share(
            "callers who join the rollout",
            more.saturating_sub(less),
            names(new_roll_out),
        );
        compare(callers, old, roll_out.rules());
    }
    if let Some(roll_out) = old_roll_out.filter(|_| more < less || names(old_roll_out)) {
        let callers = share(
            "callers who leave the rollout",
            less.saturating_sub(more),
            names(old_roll_out),
        );
        compare(callers, roll_out.rules(), new);
    }
    match less.max(more) {
        0 if !any_named => compare("all callers".to_owned(), old, new),
        100 => {}
        most => compare(share("callers outside the rollout", 100 - most, false), old, new),
    }
    effects
}

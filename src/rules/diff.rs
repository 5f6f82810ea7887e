use std::{collections::HashMap, fmt};

use super::data::Rules;
use crate::policy::QuotaPolicy;

/// The differences between two versions of [`Rules`]: policies added, removed, changed, or reset.
///
/// The counts of a policy **reset** if it replaces a policy whose counts it does not continue. Its callers then get a
/// full quota once, regardless of earlier usage.
///
/// ```
/// use tower_quota::{Algorithm, QuotaPolicy, Rules, updates::{ChangeKind, RulesDiff}};
///
/// let old = Rules::new().policy(QuotaPolicy::per_minute("minute", 60)).policy(QuotaPolicy::per_day("day", 5_000));
/// let new = Rules::new()
///     .policy(QuotaPolicy::per_minute("minute", 100))
///     .policy(QuotaPolicy::per_day("day", 5_000).with_algorithm(Algorithm::FixedWindow));
///
/// let diff = RulesDiff::between(&old, &new);
/// assert_eq!(
///     diff.to_string(),
///     "policy \"minute\" changes: quota 60 → 100\n\
///      policy \"day\" COUNTS RESET: algorithm token_bucket → fixed_window\n"
/// );
/// let reset: Vec<_> = diff.count_resets().map(|change| change.policy()).collect();
/// assert_eq!(reset, [Some("day")]);
/// assert_eq!(diff.changes()[0].kind(), ChangeKind::Changed);
/// assert!(RulesDiff::between(&new, &new).is_empty());
/// ```
///
/// # Which counts continue
///
/// Stores identify a policy's counts by its name, its unit, its algorithm (the two token buckets count as one, as do
/// the two leaky buckets), its key and, for fixed, sliding and calendar windows, the window. A removed policy and a new
/// one with the same unit are treated as a rename. Two names for the same key of the program count as two keys.
///
/// # Tiers
///
/// The diff compares the old and the new limits of the same caller. Callers of a removed tier and callers without a
/// tier get the first tier. For an added tier, only its name is listed. Rules without tiers apply to every tier. The
/// rules are not [validated](Rules::validate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesDiff {
    changes: Vec<RulesChange>,
}

/// A change of a policy or of a tier in a [`RulesDiff`], displayed as one line, such as `tier "free": policy "minute"
/// changes: quota 60 → 100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesChange {
    tier: Option<String>,
    policy: Option<String>,
    kind: ChangeKind,
    is_drastic: bool,
    details: Vec<String>,
}

/// The kind of a [`RulesChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A policy or a tier is added.
    Added,
    /// Settings change, and all counts continue.
    Changed,
    /// A policy or a tier is removed, and no policy replaces it.
    Removed,
    /// The policy replaces another policy, and its counts start from zero.
    CountsReset,
}

impl RulesDiff {
    /// Compares two versions of rules.
    pub fn between(old: &Rules, new: &Rules) -> Self {
        let mut diff = Self::default();
        match (&*old.tiers, &*new.tiers) {
            ([], []) => diff.compare(None, Some(&old.policies), Some(&new.policies)),
            ([], tiers) => {
                for (tier, policies) in tiers {
                    diff.push(Some(tier), None, ChangeKind::Added, Vec::new());
                    diff.compare(Some(tier), Some(&old.policies), policies.as_deref());
                }
            }
            ([first, ..], _) => diff.compare_tiers(old, new, &first.0),
        }
        diff
    }

    fn compare_tiers(&mut self, old: &Rules, new: &Rules, first: &str) {
        let (older, newer) = (tiers_by_name(old), tiers_by_name(new));
        for (tier, policies) in old.tiers() {
            let named = newer.get(tier).map(|policies| (tier, *policies));
            let heir = named.or(new.tiers().next());
            let after = heir.map_or(Some(&*new.policies), |(_, policies)| policies);
            if named.is_none() {
                let heir = heir.map(|(name, _)| format!("its callers are now counted in tier {name:?}"));
                let for_all = || "its callers are now counted by the policies for all callers".to_owned();
                let details = heir.unwrap_or_else(for_all);
                self.push(Some(tier), None, ChangeKind::Removed, vec![details]);
            }
            self.compare(Some(tier), policies, after);
        }
        for (tier, policies) in new.tiers() {
            if !older.contains_key(tier) {
                let details = policies.is_none().then(|| "it is unlimited".to_owned());
                self.push(Some(tier), None, ChangeKind::Added, details.into_iter().collect());
            }
        }
        if let Some((newer, policies)) = new.tiers.first()
            && newer != first
        {
            let details = format!("the default tier is {newer:?} instead of {first:?}");
            self.push(None, None, ChangeKind::Changed, vec![details]);
            self.compare(None, old.tiers[0].1.as_deref(), policies.as_deref());
        }
    }

    fn compare(&mut self, tier: Option<&str>, old: Option<&[QuotaPolicy]>, new: Option<&[QuotaPolicy]>) {
        let is_limited = |limited: bool| if limited { "limited" } else { "unlimited" };
        if old.is_some() != new.is_some() {
            let details = format!("{} → {}", is_limited(old.is_some()), is_limited(new.is_some()));
            self.push(tier, None, ChangeKind::Changed, vec![details]);
        }
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        let before = self.changes.len();
        let mut gone: Vec<&QuotaPolicy> = old.iter().filter(|old| named(new, old.name()).is_none()).collect();
        for policy in new {
            match named(old, policy.name()).or_else(|| take_replaced(&mut gone, policy)) {
                None => self.push(tier, Some(policy), ChangeKind::Added, vec![policy_text(policy)]),
                Some(older) => {
                    let details = older.differences(policy);
                    let before = self.changes.len();
                    match policy.continues(older) {
                        true if details.is_empty() => {}
                        true => self.push(tier, Some(policy), ChangeKind::Changed, details),
                        false => self.push(tier, Some(policy), ChangeKind::CountsReset, details),
                    }
                    let is_drastic = is_lowered_tenfold(older, policy);
                    self.changes[before..]
                        .iter_mut()
                        .for_each(|change| change.is_drastic = is_drastic);
                }
            }
        }
        for policy in gone {
            self.push(tier, Some(policy), ChangeKind::Removed, vec![policy_text(policy)]);
        }
        let names = |policies: &[QuotaPolicy]| -> Vec<String> {
            policies.iter().map(|policy| policy.name().to_owned()).collect()
        };
        if before == self.changes.len() && names(old) != names(new) {
            let details = format!(
                "order of policies {} → {}",
                names(old).join(", "),
                names(new).join(", ")
            );
            self.push(tier, None, ChangeKind::Changed, vec![details]);
        }
    }

    fn push(&mut self, tier: Option<&str>, policy: Option<&QuotaPolicy>, kind: ChangeKind, details: Vec<String>) {
        self.changes.push(RulesChange {
            tier: tier.map(str::to_owned),
            policy: policy.map(|policy| policy.name().to_owned()),
            kind,
            is_drastic: kind == ChangeKind::Added && policy.is_some_and(|policy| policy.quota() == 0),
            details,
        });
    }

    /// Returns the differences by tier, in the order of the policies.
    pub fn changes(&self) -> &[RulesChange] {
        &self.changes
    }

    /// Returns the policies whose counts reset.
    pub fn count_resets(&self) -> impl Iterator<Item = &RulesChange> {
        self.changes
            .iter()
            .filter(|change| change.kind == ChangeKind::CountsReset)
    }

    /// Returns whether both versions have the same effect for every caller.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The first of several tiers with equal names counts.
fn tiers_by_name(rules: &Rules) -> HashMap<&str, Option<&[QuotaPolicy]>> {
    let tiers = rules.tiers.iter().rev();
    tiers.map(|(name, policies)| (&**name, policies.as_deref())).collect()
}

fn is_lowered_tenfold(old: &QuotaPolicy, new: &QuotaPolicy) -> bool {
    let rate =
        |policy: &QuotaPolicy| policy.quota() as f64 / policy.usual_window().map_or(1.0, |window| window.as_secs_f64());
    old.quota() > 0 && (new.quota() == 0 || rate(new) * 10.0 <= rate(old))
}

fn named<'a>(policies: &'a [QuotaPolicy], name: &str) -> Option<&'a QuotaPolicy> {
    policies.iter().find(|policy| policy.name() == name)
}

/// The unit must be equal; policies with the same key and window are preferred.
fn take_replaced<'a>(gone: &mut Vec<&'a QuotaPolicy>, policy: &QuotaPolicy) -> Option<&'a QuotaPolicy> {
    let window = |policy: &QuotaPolicy| (policy.usual_window(), policy.algorithm());
    let same_unit = gone.iter().enumerate().filter(|(_, old)| old.unit() == policy.unit());
    let closest = same_unit.max_by_key(|(index, old)| {
        let first = std::cmp::Reverse(*index);
        (
            old.key_name() == policy.key_name(),
            window(old) == window(policy),
            first,
        )
    });
    let index = closest.map(|(index, _)| index)?;
    Some(gone.remove(index))
}

fn policy_text(policy: &QuotaPolicy) -> String {
    let unit = policy.unit();
    match policy.window() {
        Some(window) => format!("{} {unit} per {} s", policy.quota(), window.as_secs()),
        None => format!("{} {unit}", policy.quota()),
    }
}

impl RulesChange {
    /// Returns the affected tier, or `None` for rules without tiers and for callers without a tier.
    pub fn tier(&self) -> Option<&str> {
        self.tier.as_deref()
    }

    /// Returns the policy's name (after a rename, the new name), or `None` for a change of the tier.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the kind of the change.
    pub fn kind(&self) -> ChangeKind {
        self.kind
    }

    /// Returns whether a person should confirm the change: it closes a policy, or lowers its rate to a tenth or less.
    pub fn is_drastic(&self) -> bool {
        self.is_drastic
    }

    /// Returns descriptions of the changed settings, such as `quota 60 → 100`.
    pub fn details(&self) -> &[String] {
        &self.details
    }
}

impl ChangeKind {
    /// Returns a stable name for machines: `added`, `changed`, `removed` or `starts_anew`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::CountsReset => "starts_anew",
        }
    }
}

impl fmt::Display for RulesDiff {
    /// Writes one line per change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

impl fmt::Display for RulesChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            ChangeKind::Added => "is new",
            ChangeKind::Changed => "changes",
            ChangeKind::Removed => "is removed",
            ChangeKind::CountsReset => "COUNTS RESET",
        };
        match (&self.tier, &self.policy) {
            (Some(tier), Some(policy)) => write!(f, "tier {tier:?}: policy {policy:?} {verb}")?,
            (Some(tier), None) => write!(f, "tier {tier:?} {verb}")?,
            (None, Some(policy)) => write!(f, "policy {policy:?} {verb}")?,
            // Tiers are added and removed by name, so this can only be a change.
            (None, None) => f.write_str("the rules change")?,
        }
        match &*self.details {
            [] => Ok(()),
            details => write!(f, ": {}", details.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(name: &'static str, quota: u64) -> QuotaPolicy {
        QuotaPolicy::per_minute(name, quota)
    }

    fn diff(old: Rules, new: Rules) -> Vec<String> {
        let diff = RulesDiff::between(&old, &new);
        diff.changes().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_that_is_closed_or_opened_again_keeps_its_counts() {
        let [open, closed] = [60, 0].map(|quota| Rules::new().policy(minute("minute", quota)));
        for (old, new) in [(&open, &closed), (&closed, &open)] {
            let diff = RulesDiff::between(old, new);
            let kinds: Vec<_> = diff.changes().iter().map(|change| change.kind).collect();
            assert_eq!(kinds, [ChangeKind::Changed]);
        }
    }

    #[test]
    fn a_new_name_takes_the_place_of_the_closest_policy_of_the_same_unit_that_is_gone() {
        let day = QuotaPolicy::per_day("day", 500);
        let old = Rules::new().policy(minute("minute", 60)).policy(day.clone());
        let renamed = Rules::new()
            .policy(minute("m", 60))
            .policy(QuotaPolicy::per_day("d", 500));
        assert_eq!(
            diff(old.clone(), renamed),
            [
                r#"policy "m" COUNTS RESET: name "minute" → "m""#,
                r#"policy "d" COUNTS RESET: name "day" → "d""#
            ]
        );
        let merged = Rules::new().policy(QuotaPolicy::per_day("all", 500));
        assert_eq!(
            diff(old.clone(), merged),
            [
                r#"policy "all" COUNTS RESET: name "day" → "all""#,
                r#"policy "minute" is removed: 60 requests per 60 s"#
            ]
        );
        let tokens = Rules::new().policy(minute("tokens", 9).with_unit("tokens")).policy(day);
        assert_eq!(
            diff(old, tokens),
            [
                r#"policy "tokens" is new: 9 tokens per 60 s"#,
                r#"policy "minute" is removed: 60 requests per 60 s"#
            ]
        );
    }

    #[test]
    fn a_policy_beside_the_others_starts_nothing_anew() {
        let old = Rules::new().policy(minute("minute", 60));
        let new = old.clone().policy(QuotaPolicy::per_day("day", 500));
        assert_eq!(
            diff(old.clone(), new.clone()),
            [r#"policy "day" is new: 500 requests per 86400 s"#]
        );
        assert_eq!(diff(new, old), [r#"policy "day" is removed: 500 requests per 86400 s"#]);
    }

    #[test]
    fn callers_of_a_tier_that_is_gone_are_compared_with_the_first_one() {
        let free = || Rules::new().tier("free", [minute("minute", 60)]);
        let old = free().tier("gold", [minute("gold minute", 600)]).unlimited("admin");
        assert_eq!(
            diff(old, free().tier("team", [minute("minute", 90)])),
            [
                r#"tier "gold" is removed: its callers are now counted in tier "free""#,
                r#"tier "gold": policy "minute" COUNTS RESET: name "gold minute" → "minute", quota 600 → 60"#,
                r#"tier "admin" is removed: its callers are now counted in tier "free""#,
                r#"tier "admin" changes: unlimited → limited"#,
                r#"tier "admin": policy "minute" is new: 60 requests per 60 s"#,
                r#"tier "team" is new"#,
            ]
        );
    }

    #[test]
    fn rules_without_tiers_are_the_same_for_every_tier() {
        let all = || Rules::new().policy(minute("minute", 60));
        let tiers = || Rules::new().tier("free", [minute("minute", 30)]).unlimited("admin");
        assert_eq!(
            diff(all(), tiers()),
            [
                r#"tier "free" is new"#,
                r#"tier "free": policy "minute" changes: quota 60 → 30"#,
                r#"tier "admin" is new"#,
                r#"tier "admin" changes: limited → unlimited"#,
                r#"tier "admin": policy "minute" is removed: 60 requests per 60 s"#,
            ]
        );
        assert_eq!(
            diff(tiers(), all())[..2],
            [
                r#"tier "free" is removed: its callers are now counted by the policies for all callers"#,
                r#"tier "free": policy "minute" changes: quota 30 → 60"#,
            ]
        );
    }

    #[test]
    fn another_first_tier_is_another_one_for_callers_without_a_tier() {
        let old = Rules::new().tier("a", [minute("one", 1)]).tier("b", [minute("two", 2)]);
        let new = Rules::new().tier("b", [minute("two", 2)]).tier("a", [minute("one", 1)]);
        assert_eq!(
            diff(old, new),
            [
                r#"the rules change: the default tier is "b" instead of "a""#,
                r#"policy "two" COUNTS RESET: name "one" → "two", quota 1 → 2"#,
            ]
        );
    }

    #[test]
    fn an_order_of_policies_is_a_change_that_starts_nothing_anew() {
        let (one, two) = (minute("one", 1), minute("two", 2));
        let old = Rules::new().policy(one.clone()).policy(two.clone());
        assert_eq!(
            diff(old, Rules::new().policy(two).policy(one)),
            ["the rules change: order of policies one, two → two, one"]
        );
    }
}

//! Rules as data: what a file or a service of rules says.

use crate::policy::QuotaPolicy;

/// The policies of a layer: the same for all callers, or by tier.
///
/// You want them where rules come from outside of the program, or change [while it runs](crate::RulesHandle). A layer that has
/// its policies from [`policy`](crate::RateLimitLayerBuilder::policy) and [`Tiers`](crate::Tiers) needs none.
///
/// They are data and nothing more: rules that are not valid are rejected where they take effect, by
/// [`build`](crate::RateLimitLayerBuilder::build) or [`RulesHandle::replace`](crate::RulesHandle::replace). Rules have policies or tiers, not both.
///
/// ```
/// use tower_quota::{QuotaPolicy, Rules};
///
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 60)).policy(QuotaPolicy::per_day("day", 5_000));
/// assert_eq!(rules.policies()[1].name(), "day");
///
/// let rules = Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin");
/// let tiers: Vec<_> = rules.tiers().map(|(name, policies)| (name, policies.map(<[_]>::len))).collect();
/// assert_eq!(tiers, [("free", Some(1)), ("admin", None)]);
/// ```
///
/// With the feature `serde` they can be read from any format, see [`QuotaPolicy`]:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_quota::{QuotaPolicy, Rules};
///
/// let rules: Rules = serde_json::from_str(
///     r#"{"tiers": [
///         {"name": "free", "policies": [{"name": "minute", "quota": 60, "window_seconds": 60}]},
///         {"name": "admin", "unlimited": true}
///     ]}"#,
/// )?;
/// assert_eq!(rules, Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin"));
/// # }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub(super) policies: Vec<QuotaPolicy>,
    /// In place of policies for all; a tier without policies is not limited.
    pub(super) tiers: Vec<(String, Option<Vec<QuotaPolicy>>)>,
}

impl Rules {
    /// No rules. Nothing can be built of them until they have policies.
    pub const fn new() -> Self {
        Self {
            policies: Vec::new(),
            tiers: Vec::new(),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.policies.extend(other.policies);
        self.tiers.extend(other.tiers);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.tiers.is_empty()
    }

    /// The policies for all callers.
    pub fn policies(&self) -> &[QuotaPolicy] {
        &self.policies
    }

    /// The tiers in their order, with their policies; `None` for those that are not limited.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, Option<&[QuotaPolicy]>)> {
        self.tiers.iter().map(|(name, policies)| (&**name, policies.as_deref()))
    }

    /// All policies, each with its tier; `None` for those of all callers.
    ///
    /// ```
    /// use tower_quota::{QuotaPolicy, Rules};
    ///
    /// let rules = Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin");
    /// let names: Vec<_> = rules.all_policies().map(|(tier, policy)| (tier, policy.name())).collect();
    /// assert_eq!(names, [(Some("free"), "minute")]);
    /// ```
    pub fn all_policies(&self) -> impl Iterator<Item = (Option<&str>, &QuotaPolicy)> {
        let of_tiers = self.tiers().flat_map(|(tier, policies)| {
            let policies = policies.unwrap_or_default().iter();
            policies.map(move |policy| (Some(tier), policy))
        });
        self.policies.iter().map(|policy| (None, policy)).chain(of_tiers)
    }

    /// Adds a policy for all callers.
    #[must_use]
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Adds a tier with its policies, as [`Tiers::tier`](crate::Tiers::tier) does.
    #[must_use]
    pub fn tier(mut self, name: impl Into<String>, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        self.tiers.push((name.into(), Some(policies.into_iter().collect())));
        self
    }

    /// Adds a tier that is not limited at all.
    #[must_use]
    pub fn unlimited(mut self, name: impl Into<String>) -> Self {
        self.tiers.push((name.into(), None));
        self
    }
}

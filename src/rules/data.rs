use crate::policy::QuotaPolicy;

/// The policies of a layer, either for all callers or by tier.
///
/// Use this type if rules come from outside the program or change [at run time](crate::RulesHandle). They contain
/// policies or tiers, but not both, and are validated by [`build`](crate::RateLimitLayerBuilder::build) or
/// [`RulesHandle::replace`](crate::RulesHandle::replace).
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
/// With the feature `serde`, rules can be deserialized from any format, see [`QuotaPolicy`]:
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
    pub(super) tiers: Vec<(String, Option<Vec<QuotaPolicy>>)>,
}

impl Rules {
    /// Creates empty rules, which are not valid until a policy or a tier is added.
    pub const fn new() -> Self {
        Self {
            policies: Vec::new(),
            tiers: Vec::new(),
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.policies.extend(other.policies);
        self.tiers.extend(other.tiers);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.tiers.is_empty()
    }

    /// Returns the policies for all callers.
    pub fn policies(&self) -> &[QuotaPolicy] {
        &self.policies
    }

    /// Returns the tiers in order, each with its policies, or `None` if it is unlimited.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, Option<&[QuotaPolicy]>)> {
        self.tiers.iter().map(|(name, policies)| (&**name, policies.as_deref()))
    }

    /// Returns all policies, each with its tier, or `None` for policies of all callers.
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

    /// Adds an unlimited tier.
    #[must_use]
    pub fn unlimited(mut self, name: impl Into<String>) -> Self {
        self.tiers.push((name.into(), None));
        self
    }
}

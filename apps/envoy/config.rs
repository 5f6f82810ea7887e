use serde::Deserialize;
use tower_quota::{QuotaPolicy, Rules};

/// A domain of the rules file: [`Rules`] whose tiers can accept reports.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a domain: a map with `policies` or `tiers`")]
pub(crate) struct DomainForm {
    /// For all tiers that do not set it.
    #[serde(default)]
    reports: bool,
    #[serde(default)]
    policies: Vec<QuotaPolicy>,
    #[serde(default)]
    tiers: Vec<TierForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tier: a map with `name`")]
struct TierForm {
    name: String,
    reports: Option<bool>,
    policies: Option<Vec<QuotaPolicy>>,
    #[serde(default)]
    unlimited: bool,
}

pub(crate) struct TierConfig {
    /// Lists the entries of a descriptor. `None` for rules without tiers, which apply to all descriptors.
    pub(crate) name: Option<String>,
    pub(crate) has_reports: bool,
    /// Empty if the tier is unlimited.
    pub(crate) policies: Vec<QuotaPolicy>,
}

impl DomainForm {
    pub(crate) fn read(self) -> Result<(Rules, Vec<TierConfig>), String> {
        let all = self.policies.iter().cloned().map(allow_lower_quotas);
        let mut rules = all.fold(Rules::new(), Rules::policy);
        let mut tiers = Vec::new();
        for tier in self.tiers {
            rules = match (&tier.policies, tier.unlimited) {
                (Some(policies), false) => rules.tier(&tier.name, policies.iter().cloned().map(allow_lower_quotas)),
                (None, true) => rules.unlimited(&tier.name),
                _ => {
                    let name = tier.name;
                    return Err(format!(
                        "tier {name:?}: either `policies` or `unlimited = true` is required"
                    ));
                }
            };
            tiers.push(TierConfig {
                name: Some(tier.name),
                has_reports: tier.reports.unwrap_or(self.reports),
                policies: tier.policies.unwrap_or_default(),
            });
        }
        if !self.policies.is_empty() {
            tiers.push(TierConfig {
                name: None,
                has_reports: self.reports,
                policies: self.policies,
            });
        }
        Ok((rules, tiers))
    }
}

/// Overrides of Envoy lower the quota of a policy.
fn allow_lower_quotas(policy: QuotaPolicy) -> QuotaPolicy {
    let quota = policy.quota();
    policy.with_caller_quotas(0..=quota)
}

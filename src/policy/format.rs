//! Rules as any serde format has them. What is out of its range is found where rules take effect.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error};

use super::Rules;
use crate::{
    fields::ExtensionValue,
    quota::{Algorithm, Content, QuotaPolicy},
};

impl<'de> Deserialize<'de> for QuotaPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = PolicyForm::deserialize(deserializer)?;
        let name = form.name.clone();
        form.into_policy()
            .map_err(|problem| D::Error::custom(format!("policy {name:?}: {problem}")))
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = RulesForm::deserialize(deserializer)?;
        let mut rules = Self {
            policies: form.policies,
            tiers: Vec::new(),
        };
        for TierForm {
            name,
            policies,
            unlimited,
        } in form.tiers
        {
            rules = match (policies, unlimited) {
                (Some(policies), false) => rules.tier(name, policies),
                (None, true) => rules.unlimited(name),
                _ => {
                    let message = format!("tier {name:?}: it needs either `policies` or `unlimited = true`");
                    return Err(D::Error::custom(message));
                }
            };
        }
        Ok(rules)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesForm {
    #[serde(default)]
    policies: Vec<QuotaPolicy>,
    #[serde(default)]
    tiers: Vec<TierForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TierForm {
    name: String,
    policies: Option<Vec<QuotaPolicy>>,
    #[serde(default)]
    unlimited: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyForm {
    name: String,
    quota: u64,
    window_seconds: Option<u64>,
    burst_capacity: Option<u64>,
    #[serde(default)]
    algorithm: AlgorithmForm,
    #[serde(default)]
    unit: UnitForm,
    key: Option<String>,
    unit_block: Option<u64>,
    hidden: Option<bool>,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    partition_key: bool,
    #[serde(default)]
    extensions: BTreeMap<String, ExtensionForm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AlgorithmForm {
    FixedWindow,
    LeakyBucketMeter,
    LeakyBucketQueue {
        max_waiting: u64,
    },
    SlidingWindowCounter,
    SlidingWindowLog,
    StrictTokenBucket,
    #[default]
    TokenBucket,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UnitForm {
    ConcurrentRequests,
    ContentBytes,
    RequestContentBytes,
    #[default]
    Requests,
    ResponseContentBytes,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ExtensionForm {
    Boolean(bool),
    Integer(u64),
    Text(String),
}

impl PolicyForm {
    fn into_policy(self) -> Result<QuotaPolicy, String> {
        let mut policy = match (&self.unit, self.window_seconds) {
            (UnitForm::ConcurrentRequests, None) => QuotaPolicy::concurrent("", self.quota).with_name(self.name),
            (UnitForm::ConcurrentRequests, Some(_)) => {
                return Err("concurrent requests have no `window_seconds`".to_owned());
            }
            (_, None) => return Err("`window_seconds` is missing".to_owned()),
            (_, Some(seconds)) => QuotaPolicy::new(self.name, self.quota, std::time::Duration::from_secs(seconds)),
        };
        policy = match self.unit {
            UnitForm::ConcurrentRequests | UnitForm::Requests => policy,
            UnitForm::ContentBytes => policy.with_content_bytes(Content::Both),
            UnitForm::RequestContentBytes => policy.with_content_bytes(Content::Request),
            UnitForm::ResponseContentBytes => policy.with_content_bytes(Content::Response),
        };
        policy = policy.with_algorithm(self.algorithm.into());
        if let Some(capacity) = self.burst_capacity {
            policy = policy.with_burst_capacity(capacity);
        }
        if let Some(key) = self.key {
            policy = policy.counted_by(key);
        }
        if let Some(units) = self.unit_block {
            policy = policy.with_unit_block(units);
        }
        if self.shadow {
            policy = policy.shadow();
        }
        policy = match self.hidden {
            Some(true) => policy.hidden(),
            Some(false) => policy.shown(),
            None => policy,
        };
        if self.partition_key {
            policy = policy.with_partition_key();
        }
        for (name, value) in self.extensions {
            policy = policy.with_extension(name, value.into_value()?);
        }
        Ok(policy)
    }
}

impl ExtensionForm {
    fn into_value(self) -> Result<ExtensionValue, String> {
        match self {
            Self::Boolean(value) => Ok(value.into()),
            Self::Integer(number) => ExtensionValue::integer(number).map_err(|error| error.to_string()),
            Self::Text(text) => ExtensionValue::string(&text).map_err(|error| error.to_string()),
        }
    }
}

impl From<AlgorithmForm> for Algorithm {
    fn from(form: AlgorithmForm) -> Self {
        match form {
            AlgorithmForm::FixedWindow => Self::FixedWindow,
            AlgorithmForm::LeakyBucketMeter => Self::LeakyBucketMeter,
            AlgorithmForm::LeakyBucketQueue { max_waiting } => Self::LeakyBucketQueue { max_waiting },
            AlgorithmForm::SlidingWindowCounter => Self::SlidingWindowCounter,
            AlgorithmForm::SlidingWindowLog => Self::SlidingWindowLog,
            AlgorithmForm::StrictTokenBucket => Self::StrictTokenBucket,
            AlgorithmForm::TokenBucket => Self::TokenBucket,
        }
    }
}

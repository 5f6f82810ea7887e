//! Rules as any serde format has them. What is out of its range is found where rules take effect.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

use super::Rules;
use crate::{
    fields::ExtensionValue,
    policy::{Algorithm, Direction, MAX_QUOTA, MAX_WINDOW, QuotaPolicy},
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
#[serde(deny_unknown_fields, expecting = "rules: a map with `policies` or `tiers`")]
struct RulesForm {
    #[serde(default)]
    policies: Vec<QuotaPolicy>,
    #[serde(default)]
    tiers: Vec<TierForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tier: a map with `name`")]
struct TierForm {
    #[serde(deserialize_with = "field::name")]
    name: String,
    policies: Option<Vec<QuotaPolicy>>,
    #[serde(default, deserialize_with = "field::unlimited")]
    unlimited: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a policy: a map with `name` and `quota`")]
struct PolicyForm {
    #[serde(deserialize_with = "field::name")]
    name: String,
    #[serde(deserialize_with = "field::quota")]
    quota: Whole<MAX_QUOTA>,
    #[serde(default, deserialize_with = "field::window_seconds")]
    window_seconds: Option<Whole<MAX_WINDOW>>,
    #[serde(default, deserialize_with = "field::burst_capacity")]
    burst_capacity: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::algorithm")]
    algorithm: AlgorithmForm,
    #[serde(default, deserialize_with = "field::unit")]
    unit: UnitForm,
    #[serde(default, deserialize_with = "field::key")]
    key: Option<String>,
    #[serde(default, deserialize_with = "field::prefetch")]
    prefetch: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::hidden")]
    hidden: Option<bool>,
    #[serde(default, deserialize_with = "field::shadow")]
    shadow: bool,
    #[serde(default, deserialize_with = "field::partition_key")]
    partition_key: bool,
    #[serde(default, deserialize_with = "field::extensions")]
    extensions: BTreeMap<String, ExtensionForm>,
}

/// Readers of fields whose errors name the field: those of serde do not.
mod field {
    use super::{
        AlgorithmForm, BTreeMap, Deserialize, Deserializer, Error, ExtensionForm, MAX_QUOTA, MAX_WINDOW, UnitForm,
        Whole,
    };

    macro_rules! fields {
        ($($field:ident: $type:ty,)*) => {
            $(pub(super) fn $field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let name = |error| D::Error::custom(format_args!("{}: {error}", stringify!($field)));
                Deserialize::deserialize(deserializer).map_err(name)
            })*
        };
    }

    fields! {
        algorithm: AlgorithmForm,
        burst_capacity: Option<Whole<MAX_QUOTA>>,
        extensions: BTreeMap<String, ExtensionForm>,
        hidden: Option<bool>,
        key: Option<String>,
        max_waiting: Whole<MAX_QUOTA>,
        name: String,
        partition_key: bool,
        quota: Whole<MAX_QUOTA>,
        shadow: bool,
        unit: UnitForm,
        prefetch: Option<Whole<MAX_QUOTA>>,
        unlimited: bool,
        window_seconds: Option<Whole<MAX_WINDOW>>,
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AlgorithmForm {
    FixedWindow,
    LeakyBucketMeter,
    LeakyBucketQueue {
        #[serde(deserialize_with = "field::max_waiting")]
        max_waiting: Whole<MAX_QUOTA>,
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

/// A number of which so many are the most. What is no whole number is told so here, with the bounds; what is out of them
/// is told where rules take effect, with the policy.
struct Whole<const MOST: u64>(u64);

impl<'de, const MOST: u64> Deserialize<'de> for Whole<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor::<MOST>)
    }
}

struct WholeVisitor<const MOST: u64>;

impl<const MOST: u64> Visitor<'_> for WholeVisitor<MOST> {
    type Value = Whole<MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number in 1..={MOST}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self));
        number.map(Whole)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Whole(number))
    }
}

enum ExtensionForm {
    Boolean(bool),
    Integer(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for ExtensionForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExtensionVisitor)
    }
}

struct ExtensionVisitor;

impl Visitor<'_> for ExtensionVisitor {
    type Value = ExtensionForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a boolean, a text or a whole number in 0..={MAX_QUOTA}")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Boolean(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self));
        number.map(ExtensionForm::Integer)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Integer(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Text(text.to_owned()))
    }
}

impl PolicyForm {
    fn into_policy(self) -> Result<QuotaPolicy, String> {
        let mut policy = match (&self.unit, self.window_seconds) {
            (UnitForm::ConcurrentRequests, None) => QuotaPolicy::concurrent("", self.quota.0).with_name(self.name),
            (UnitForm::ConcurrentRequests, Some(_)) => {
                return Err("concurrent requests have no `window_seconds`".to_owned());
            }
            (_, None) => return Err("`window_seconds` is missing".to_owned()),
            (_, Some(Whole(seconds))) => QuotaPolicy::new(self.name, self.quota.0, Duration::from_secs(seconds)),
        };
        policy = match self.unit {
            UnitForm::ConcurrentRequests | UnitForm::Requests => policy,
            UnitForm::ContentBytes => policy.with_content_bytes(Direction::Both),
            UnitForm::RequestContentBytes => policy.with_content_bytes(Direction::Request),
            UnitForm::ResponseContentBytes => policy.with_content_bytes(Direction::Response),
        };
        policy = policy.with_algorithm(self.algorithm.into());
        if let Some(Whole(capacity)) = self.burst_capacity {
            policy = policy.with_burst_capacity(capacity);
        }
        if let Some(key) = self.key {
            policy = policy.counted_by(key);
        }
        if let Some(Whole(units)) = self.prefetch {
            policy = policy.with_prefetch(units);
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
            policy = policy.show_partition_key();
        }
        for (name, value) in self.extensions {
            let value = value
                .into_value()
                .map_err(|problem| format!("extension {name:?}: {problem}"))?;
            policy = policy.with_extension(name, value);
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
            AlgorithmForm::LeakyBucketQueue {
                max_waiting: Whole(max_waiting),
            } => Self::LeakyBucketQueue { max_waiting },
            AlgorithmForm::SlidingWindowCounter => Self::SlidingWindowCounter,
            AlgorithmForm::SlidingWindowLog => Self::SlidingWindowLog,
            AlgorithmForm::StrictTokenBucket => Self::StrictTokenBucket,
            AlgorithmForm::TokenBucket => Self::TokenBucket,
        }
    }
}

//! Rules as any serde format has them. Numbers out of their range are found where rules take effect.

mod calendar;
mod named;
mod written;

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Unexpected, Visitor},
};

use self::calendar::CalendarForm;
pub(crate) use self::named::named_readers;
use super::Rules;
use crate::{
    fields::{ExtensionValue, FieldError},
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
        let mut rules = Self::new();
        rules.policies = form.policies;
        for tier in form.tiers {
            rules = match (tier.policies, tier.unlimited) {
                (Some(policies), false) => rules.tier(tier.name, policies),
                (None, true) => rules.unlimited(tier.name),
                _ => {
                    let message = format!("tier {:?}: it needs either `policies` or `unlimited = true`", tier.name);
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
    quota: u64,
    #[serde(default, deserialize_with = "field::window_seconds")]
    window_seconds: Option<Whole<MAX_WINDOW>>,
    #[serde(default, deserialize_with = "field::calendar")]
    calendar: Option<CalendarForm>,
    #[serde(default, deserialize_with = "field::burst_capacity")]
    burst_capacity: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::algorithm")]
    algorithm: Option<Algorithm>,
    #[serde(default, deserialize_with = "field::unit")]
    unit: UnitForm,
    #[serde(default, deserialize_with = "field::key")]
    key: Option<String>,
    #[serde(default, deserialize_with = "field::prefetch")]
    prefetch: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::lockout_seconds")]
    lockout_seconds: Option<Whole<MAX_WINDOW>>,
    #[serde(default, deserialize_with = "field::hidden")]
    hidden: Option<bool>,
    #[serde(default, deserialize_with = "field::shadow")]
    shadow: bool,
    #[serde(default, deserialize_with = "field::partition_key")]
    partition_key: bool,
    #[serde(default, deserialize_with = "field::extensions")]
    extensions: BTreeMap<String, ExtensionForm>,
}

/// Readers of fields.
mod field {
    use super::*;

    named_readers! {
        algorithm_form => algorithm: Option<Algorithm>;
        whole::<0, _> => quota: u64;
        whole::<1, _> => max_waiting: u64;
        Deserialize::deserialize =>
            burst_capacity: Option<Whole<MAX_QUOTA>>, prefetch: Option<Whole<MAX_QUOTA>>,
            lockout_seconds: Option<Whole<MAX_WINDOW>>, window_seconds: Option<Whole<MAX_WINDOW>>,
            calendar: Option<CalendarForm>, hidden: Option<bool>, partition_key: bool, shadow: bool, unlimited: bool,
            key: Option<String>, name: String,
            extensions: BTreeMap<String, ExtensionForm>, unit: UnitForm;
    }
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Algorithm", rename_all = "snake_case")]
enum AlgorithmForm {
    FixedWindow,
    LeakyBucketMeter,
    LeakyBucketQueue {
        #[serde(deserialize_with = "field::max_waiting")]
        max_waiting: u64,
    },
    SlidingWindowCounter,
    SlidingWindowLog,
    StrictTokenBucket,
    TokenBucket,
}

fn algorithm_form<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Algorithm>, D::Error> {
    AlgorithmForm::deserialize(deserializer).map(Some)
}

/// The name of a unit. One that the crate does not have is the program's own.
#[derive(Default, Deserialize)]
#[serde(from = "String")]
enum UnitForm {
    ConcurrentRequests,
    Content(Direction),
    Custom(String),
    #[default]
    Requests,
}

impl From<String> for UnitForm {
    fn from(name: String) -> Self {
        match &*name {
            "concurrent_requests" => Self::ConcurrentRequests,
            "content_bytes" => Self::Content(Direction::Both),
            "request_content_bytes" => Self::Content(Direction::Request),
            "requests" => Self::Requests,
            "response_content_bytes" => Self::Content(Direction::Response),
            _ => Self::Custom(name),
        }
    }
}

/// A number with these bounds. A value that is no whole number is an error here, with the bounds; a number out of them is
/// one where rules take effect, with the policy.
struct Whole<const MOST: u64, const LEAST: u64 = 1>(u64);

impl<'de, const MOST: u64, const LEAST: u64> Deserialize<'de> for Whole<MOST, LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor::<MOST, LEAST>)
    }
}

fn whole<'de, const LEAST: u64, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Whole::<MAX_QUOTA, LEAST>::deserialize(deserializer).map(|Whole(number)| number)
}

struct WholeVisitor<const MOST: u64, const LEAST: u64>;

impl<const MOST: u64, const LEAST: u64> Visitor<'_> for WholeVisitor<MOST, LEAST> {
    type Value = Whole<MOST, LEAST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number in {LEAST}..={MOST}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self));
        number.map(Whole)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Whole(number))
    }
}

struct ExtensionForm(Result<ExtensionValue, FieldError>);

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
        Ok(ExtensionForm(Ok(value.into())))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self));
        self.visit_u64(number?)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(ExtensionForm(ExtensionValue::integer(number)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ExtensionForm(ExtensionValue::string(text)))
    }
}

impl PolicyForm {
    fn into_policy(self) -> Result<QuotaPolicy, String> {
        let mut policy = with_window(&self.unit, self.name, self.quota, self.window_seconds, self.calendar)?;
        policy = match self.unit {
            UnitForm::ConcurrentRequests | UnitForm::Requests => policy,
            UnitForm::Content(content) => policy.with_content_bytes(content),
            UnitForm::Custom(unit) => policy.with_unit(&unit),
        };
        if let Some(algorithm) = self.algorithm {
            policy = policy.with_algorithm(algorithm);
        }
        if let Some(Whole(capacity)) = self.burst_capacity {
            policy = policy.with_burst_capacity(capacity);
        }
        if let Some(key) = self.key {
            policy = policy.keyed_by(key);
        }
        if let Some(Whole(units)) = self.prefetch {
            policy = policy.with_prefetch(units);
        }
        if let Some(Whole(seconds)) = self.lockout_seconds {
            policy = policy.with_lockout(Duration::from_secs(seconds));
        }
        if self.shadow {
            policy = policy.shadow();
        }
        policy = match self.hidden {
            Some(true) => policy.hidden(),
            Some(false) => policy.visible(),
            None => policy,
        };
        if self.partition_key {
            policy = policy.show_partition_key();
        }
        for (name, ExtensionForm(value)) in self.extensions {
            let value = value.map_err(|problem| format!("extension {name:?}: {problem}"))?;
            policy = policy.with_extension(name, value);
        }
        Ok(policy)
    }
}

/// A policy with the only window that it has.
fn with_window(
    unit: &UnitForm,
    name: String,
    quota: u64,
    window_seconds: Option<Whole<MAX_WINDOW>>,
    calendar: Option<CalendarForm>,
) -> Result<QuotaPolicy, String> {
    let is_timed = !matches!(unit, UnitForm::ConcurrentRequests);
    let message = match (is_timed, window_seconds, calendar) {
        (true, Some(Whole(seconds)), None) => {
            return Ok(QuotaPolicy::new(name, quota, Duration::from_secs(seconds)));
        }
        (true, None, Some(window)) => return Ok(QuotaPolicy::per_calendar(name, quota, window.into_window()?)),
        (false, None, None) => return Ok(QuotaPolicy::concurrent("", quota).with_name(name)),
        (true, None, None) => "it needs `window_seconds` or `calendar`",
        (true, Some(_), Some(_)) => "it has both `window_seconds` and `calendar`",
        (false, Some(_), _) => "concurrent requests have no `window_seconds`",
        (false, None, Some(_)) => "concurrent requests have no `calendar`",
    };
    Err(message.to_owned())
}

mod calendar;
mod caller_quotas;
mod named;
mod values;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use self::{
    calendar::CalendarForm,
    named::named_readers,
    values::{AlgorithmForm, ExtensionForm, Whole},
};
use super::data::Rules;
use crate::policy::{
    Algorithm, CalendarWindow, CallerQuotaBounds, Direction, MAX_QUOTA, MAX_WINDOW, QuotaPolicy, QuotaUnit, UnitName,
};

impl<'de> Deserialize<'de> for QuotaPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = PolicyForm::deserialize(deserializer)?;
        let name = form.name.clone();
        form.into_policy()
            .map_err(|problem| de::Error::custom(format!("policy {name:?}: {problem}")))
    }
}

impl Serialize for QuotaPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = PolicyForm::of(self);
        let form = form.map_err(|problem| ser::Error::custom(format!("policy {:?}: {problem}", self.name())));
        form?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RulesForm { policies, tiers } = RulesForm::deserialize(deserializer)?;
        let tiers: Result<_, String> = tiers.into_iter().map(TierForm::into_tier).collect();
        let tiers = tiers.map_err(de::Error::custom)?;
        Ok(Self { policies, tiers })
    }
}

impl Serialize for Rules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tiers = self.tiers.iter().cloned().map(|(name, policies)| TierForm {
            name,
            unlimited: policies.is_none(),
            policies,
        });
        let form = RulesForm {
            policies: self.policies.clone(),
            tiers: tiers.collect(),
        };
        form.serialize(serializer)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "rules: a map with `policies` or `tiers`")]
struct RulesForm {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    policies: Vec<QuotaPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<TierForm>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a tier: a map with `name`")]
struct TierForm {
    #[serde(deserialize_with = "field::name")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<Vec<QuotaPolicy>>,
    #[serde(default, deserialize_with = "field::unlimited")]
    #[serde(skip_serializing_if = "is_false")]
    unlimited: bool,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a policy: a map with `name` and `quota`")]
struct PolicyForm {
    #[serde(deserialize_with = "field::name")]
    name: String,
    #[serde(deserialize_with = "field::quota")]
    quota: Whole<MAX_QUOTA, 0>,
    #[serde(default, deserialize_with = "field::window_seconds")]
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<Whole<MAX_WINDOW>>,
    #[serde(default, deserialize_with = "field::calendar")]
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<CalendarForm>,
    #[serde(default, deserialize_with = "field::algorithm")]
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<AlgorithmForm>,
    #[serde(default, deserialize_with = "field::burst_capacity")]
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_capacity: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::initial_units")]
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_units: Option<Whole<MAX_QUOTA, 0>>,
    #[serde(default, deserialize_with = "field::unit")]
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(default, deserialize_with = "field::key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, deserialize_with = "field::prefetch")]
    #[serde(skip_serializing_if = "Option::is_none")]
    prefetch: Option<Whole<MAX_QUOTA>>,
    #[serde(default, deserialize_with = "field::caller_quotas")]
    #[serde(skip_serializing_if = "Option::is_none")]
    caller_quotas: Option<[Whole<MAX_QUOTA, 0>; 2]>,
    #[serde(default, deserialize_with = "field::overage_percent")]
    #[serde(skip_serializing_if = "Option::is_none")]
    overage_percent: Option<Whole<10_000>>,
    #[serde(default, deserialize_with = "field::lockout_seconds")]
    #[serde(skip_serializing_if = "Option::is_none")]
    lockout_seconds: Option<Whole<MAX_WINDOW>>,
    #[serde(default, deserialize_with = "field::hidden")]
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<bool>,
    #[serde(default, deserialize_with = "field::shadow")]
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(default, deserialize_with = "field::partition_key")]
    #[serde(skip_serializing_if = "is_false")]
    partition_key: bool,
    #[serde(default, deserialize_with = "field::extensions")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extensions: BTreeMap<String, ExtensionForm>,
}

mod field {
    use super::*;

    named_readers! {
        present => algorithm: Option<AlgorithmForm>, unit: Option<String>;
        Deserialize::deserialize =>
            quota: Whole<MAX_QUOTA, 0>,
            burst_capacity: Option<Whole<MAX_QUOTA>>, initial_units: Option<Whole<MAX_QUOTA, 0>>,
            prefetch: Option<Whole<MAX_QUOTA>>,
            caller_quotas: Option<[Whole<MAX_QUOTA, 0>; 2]>, overage_percent: Option<Whole<10_000>>,
            lockout_seconds: Option<Whole<MAX_WINDOW>>, window_seconds: Option<Whole<MAX_WINDOW>>,
            calendar: Option<CalendarForm>, hidden: Option<bool>, partition_key: bool, shadow: bool, unlimited: bool,
            key: Option<String>, name: String, extensions: BTreeMap<String, ExtensionForm>;
    }
}

/// Can be omitted, but must not be null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl TierForm {
    fn into_tier(self) -> Result<(String, Option<Vec<QuotaPolicy>>), String> {
        match (self.policies, self.unlimited) {
            (policies @ Some(_), false) | (policies @ None, true) => Ok((self.name, policies)),
            _ => Err(format!(
                "tier {:?}: either `policies` or `unlimited = true` is required",
                self.name
            )),
        }
    }
}

impl PolicyForm {
    fn of(policy: &QuotaPolicy) -> Result<Self, String> {
        let algorithm = policy.algorithm();
        let extensions = policy.extensions.iter().map(|(name, value)| {
            let form = ExtensionForm::of(value).ok_or_else(|| {
                format!(
                    "extension {name:?}: {value} cannot be \
                serialized"
                )
            });
            Ok((name.clone().into_owned(), form?))
        });
        Ok(Self {
            name: policy.name().to_owned(),
            quota: Whole(policy.quota()),
            window_seconds: whole_seconds("window", policy.window())?,
            calendar: policy.calendar_window().map(CalendarForm::of),
            algorithm: (algorithm != usual_algorithm(policy.calendar_window())).then_some(AlgorithmForm(algorithm)),
            burst_capacity: policy.burst_capacity.map(Whole),
            initial_units: policy.initial_units().map(Whole),
            unit: unit_name(policy.unit())?,
            key: policy.key_name().map(str::to_owned),
            prefetch: policy.prefetch().map(Whole),
            caller_quotas: policy
                .caller_quotas
                .map(|bounds| [Whole(bounds.least), Whole(bounds.most)]),
            overage_percent: policy.overage.map(|percent| Whole(percent.into())),
            lockout_seconds: whole_seconds("lockout", policy.lockout())?,
            // Shadows are hidden by default.
            hidden: (policy.is_hidden() != policy.is_shadow()).then_some(policy.is_hidden()),
            shadow: policy.is_shadow(),
            partition_key: policy.shows_partition_key,
            extensions: extensions.collect::<Result<_, String>>()?,
        })
    }

    fn into_policy(self) -> Result<QuotaPolicy, String> {
        let unit = self.unit.map_or(QuotaUnit::Requests, unit_of);
        check_windows(&unit, self.window_seconds.is_some(), self.calendar.is_some())?;
        let calendar = self.calendar.map(CalendarForm::into_window).transpose()?;
        let extensions = self.extensions.into_iter().map(|(name, form)| {
            let value = form
                .into_value()
                .map_err(|problem| format!("extension {name:?}: {problem}"))?;
            Ok((name.into(), value))
        });
        Ok(QuotaPolicy {
            name: self.name.into(),
            quota: self.quota.0,
            window: self.window_seconds.map(Whole::seconds),
            algorithm: self.algorithm.map_or(usual_algorithm(calendar.as_ref()), |form| form.0),
            calendar,
            burst_capacity: self.burst_capacity.map(|Whole(capacity)| capacity),
            initial_units: self.initial_units.map(|Whole(units)| units),
            unit,
            prefetch: self.prefetch.map(|Whole(units)| units),
            caller_quotas: self
                .caller_quotas
                .map(|[Whole(least), Whole(most)]| CallerQuotaBounds { least, most }),
            overage: self
                .overage_percent
                .and_then(|Whole(percent)| u32::try_from(percent).ok()),
            lockout: self.lockout_seconds.map(Whole::seconds),
            is_hidden: self.hidden.unwrap_or(self.shadow),
            is_shadow: self.shadow,
            shows_partition_key: self.partition_key,
            key: self.key.map(Into::into),
            extensions: extensions.collect::<Result<_, String>>()?,
        })
    }
}

fn usual_algorithm(calendar: Option<&CalendarWindow>) -> Algorithm {
    match calendar {
        Some(_) => Algorithm::FixedWindow,
        None => Algorithm::default(),
    }
}

fn whole_seconds(name: &str, time: Option<Duration>) -> Result<Option<Whole<MAX_WINDOW>>, String> {
    match time {
        Some(time) if time.subsec_nanos() != 0 => Err(format!("{name} {time:?} is not a whole number of seconds")),
        time => Ok(time.map(|time| Whole(time.as_secs()))),
    }
}

fn unit_name(unit: QuotaUnit) -> Result<Option<String>, String> {
    if let QuotaUnit::Custom(unit) = unit {
        unit.check().map_err(|error| error.to_string())?;
    }
    Ok((unit != QuotaUnit::Requests).then(|| unit.to_string()))
}

fn unit_of(name: String) -> QuotaUnit {
    match &*name {
        "concurrent_requests" => QuotaUnit::ConcurrentRequests,
        "content_bytes" => QuotaUnit::ContentBytes(Direction::Both),
        "request_content_bytes" => QuotaUnit::ContentBytes(Direction::Request),
        "requests" => QuotaUnit::Requests,
        "response_content_bytes" => QuotaUnit::ContentBytes(Direction::Response),
        _ => QuotaUnit::Custom(UnitName::new(&name)),
    }
}

fn check_windows(unit: &QuotaUnit, has_seconds: bool, has_calendar: bool) -> Result<(), String> {
    let is_timed = *unit != QuotaUnit::ConcurrentRequests;
    let message = match (is_timed, has_seconds, has_calendar) {
        (true, true, false) | (true, false, true) | (false, false, false) => return Ok(()),
        (true, false, false) => "`window_seconds` or `calendar` is required",
        (true, true, true) => "`window_seconds` and `calendar` cannot be combined",
        (false, true, _) => "a concurrency limit has no `window_seconds`",
        (false, false, true) => "a concurrency limit has no `calendar`",
    };
    Err(message.to_owned())
}

//! Rules written in the form in which they are read.

use std::{collections::BTreeMap, time::Duration};

use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeStruct},
};

use super::{AlgorithmForm, calendar::CalendarForm};
use crate::{
    fields::ExtensionValue,
    policy::{Algorithm, Direction, QuotaPolicy, QuotaUnit, UnitName},
    rules::Rules,
};

impl Serialize for QuotaPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = WrittenPolicy::new(self);
        let written = written.map_err(|problem| S::Error::custom(format!("policy {:?}: {problem}", self.name())));
        written?.serialize(serializer)
    }
}

impl Serialize for Rules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_there = [!self.policies.is_empty(), !self.tiers.is_empty()];
        let mut written =
            serializer.serialize_struct("Rules", is_there.iter().filter(|is_there| **is_there).count())?;
        if is_there[0] {
            written.serialize_field("policies", &self.policies)?;
        }
        if is_there[1] {
            let tiers = self.tiers.iter().map(|(name, policies)| WrittenTier {
                name,
                policies: policies.as_deref(),
                unlimited: policies.is_none(),
            });
            written.serialize_field("tiers", &tiers.collect::<Vec<_>>())?;
        }
        written.end()
    }
}

#[derive(Serialize)]
struct WrittenTier<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<&'a [QuotaPolicy]>,
    #[serde(skip_serializing_if = "is_false")]
    unlimited: bool,
}

#[derive(Serialize)]
struct WrittenPolicy<'a> {
    name: &'a str,
    quota: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<CalendarForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<WrittenAlgorithm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_capacity: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefetch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lockout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<bool>,
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(skip_serializing_if = "is_false")]
    partition_key: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extensions: BTreeMap<&'a str, WrittenExtension<'a>>,
}

#[derive(Serialize)]
struct WrittenAlgorithm(#[serde(with = "AlgorithmForm")] Algorithm);

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenExtension<'a> {
    Flag(bool),
    Number(u64),
    Text(&'a str),
}

impl<'a> WrittenPolicy<'a> {
    fn new(policy: &'a QuotaPolicy) -> Result<Self, String> {
        let calendar = policy.calendar_window();
        // The default algorithm of such a window is left out.
        let usual = match calendar {
            Some(_) => Algorithm::FixedWindow,
            None => Algorithm::default(),
        };
        let mut extensions = BTreeMap::new();
        for (name, value) in &policy.extensions {
            let written = extension(value).ok_or_else(|| format!("extension {name:?}: {value} cannot be written"))?;
            extensions.insert(&**name, written);
        }
        Ok(Self {
            name: policy.name(),
            quota: policy.quota(),
            window_seconds: whole_seconds("window", policy.window())?,
            calendar: calendar.map(CalendarForm::of),
            algorithm: (policy.algorithm() != usual).then_some(WrittenAlgorithm(policy.algorithm())),
            burst_capacity: policy.burst_capacity,
            unit: unit(policy)?,
            key: policy.key_name(),
            prefetch: policy.prefetch(),
            lockout_seconds: whole_seconds("lockout", policy.lockout())?,
            // A shadow is hidden unless it is shown.
            hidden: (policy.is_hidden() != policy.is_shadow()).then_some(policy.is_hidden()),
            shadow: policy.is_shadow(),
            partition_key: policy.shows_partition_key,
            extensions,
        })
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn whole_seconds(name: &str, time: Option<Duration>) -> Result<Option<u64>, String> {
    match time {
        Some(time) if time.subsec_nanos() != 0 => Err(format!("{name} {time:?} is not a whole number of seconds")),
        time => Ok(time.map(|time| time.as_secs())),
    }
}

/// The name of a unit, unless requests are counted.
fn unit(policy: &QuotaPolicy) -> Result<Option<&str>, String> {
    Ok(match &policy.unit {
        _ if !policy.is_timed() => Some("concurrent_requests"),
        QuotaUnit::Requests => None,
        QuotaUnit::ConcurrentRequests => Some("concurrent_requests"),
        QuotaUnit::ContentBytes(Direction::Both) => Some("content_bytes"),
        QuotaUnit::ContentBytes(Direction::Request) => Some("request_content_bytes"),
        QuotaUnit::ContentBytes(Direction::Response) => Some("response_content_bytes"),
        QuotaUnit::Custom(unit) => Some(
            unit.check()
                .map(|()| UnitName::as_str(unit))
                .map_err(|error| error.to_string())?,
        ),
    })
}

fn extension(value: &ExtensionValue) -> Option<WrittenExtension<'_>> {
    let flag = value.as_bool().map(WrittenExtension::Flag);
    let number = || Some(WrittenExtension::Number(u64::try_from(value.as_integer()?).ok()?));
    flag.or_else(number)
        .or_else(|| value.as_str().map(WrittenExtension::Text))
}

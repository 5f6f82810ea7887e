use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::{
    document::check_text,
    error::{FleetError, FleetErrorKind},
};
use tower_quota::{CallerQuotas, clock::Timestamp};

/// The individual quotas of a caller, stored in [`Contracts`](crate::Contracts).
///
/// ```
/// use tower_quota::CallerQuotas;
/// use tower_quota_fleet::Contract;
///
/// let contract = Contract::new(CallerQuotas::new().quota("minute", 5_000)).because("offer 2026-117");
/// assert_eq!((contract.reason(), contract.author()), ("offer 2026-117", ""));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Contract {
    quotas: CallerQuotas,
    #[serde(default)]
    author: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    time: u64,
    #[serde(skip)]
    pub(super) top_ups: Vec<TopUp>,
}

impl Contract {
    /// Creates a contract with these quotas, which can have an [end](CallerQuotas::until).
    pub fn new(quotas: CallerQuotas) -> Self {
        Self {
            quotas,
            ..Self::default()
        }
    }

    /// Sets the reason: at most 256 bytes without control characters.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Returns the quotas without the [top-ups](Self::top_ups).
    pub fn quotas(&self) -> &CallerQuotas {
        &self.quotas
    }

    pub(super) fn topped_up(self) -> CallerQuotas {
        self.top_ups.into_iter().fold(self.quotas, |quotas, top_up| {
            let end = Timestamp::from_micros(top_up.until.saturating_mul(1_000_000));
            quotas.top_up(top_up.policy, top_up.units, end)
        })
    }

    /// Returns the author, or an empty string.
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the time of writing in Unix seconds, or 0 if the caller has only top-ups.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the top-ups, some of which may have expired.
    pub fn top_ups(&self) -> &[TopUp] {
        &self.top_ups
    }

    pub(super) fn signed(&self, author: &str, time: u64) -> Result<Self, FleetError> {
        check_text("author", author)?;
        check_text("reason", &self.reason)?;
        let quotas = serde_json::to_value(&self.quotas)?;
        if !quotas["top_ups"].is_null() {
            return Err(invalid("contract: add top-ups with `top_up`"));
        }
        for policy in quotas["policies"].as_object().into_iter().flat_map(Map::keys) {
            check_policy(policy)?;
        }
        check_end(quotas["until"].as_u64().unwrap_or_default())?;
        Ok(Self {
            author: author.to_owned(),
            time,
            ..self.clone()
        })
    }
}

/// Additional units for a caller until a point in time, granted once per ID.
///
/// ```
/// use tower_quota_fleet::TopUp;
///
/// let top_up = TopUp::new("order 4711", "month", 10_000, 1_798_761_600).because("paid by invoice 815");
/// assert_eq!((top_up.id(), top_up.units()), ("order 4711", 10_000));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TopUp {
    pub(super) id: String,
    policy: String,
    units: u64,
    until: u64,
    #[serde(default)]
    author: String,
    #[serde(default)]
    reason: String,
}

impl TopUp {
    /// Creates a top-up: `units` more in each window of `policy`, until `until` in Unix seconds.
    pub fn new(id: impl Into<String>, policy: impl Into<String>, units: u64, until: u64) -> Self {
        Self {
            id: id.into(),
            policy: policy.into(),
            units,
            until,
            author: String::new(),
            reason: String::new(),
        }
    }

    /// Sets the reason: at most 256 bytes without control characters.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Returns the ID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the name of the policy.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the additional units per window.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Returns the end in Unix seconds.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Returns the author, or an empty string.
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn signed(&self, author: &str, now: u64) -> Result<Self, FleetError> {
        for (field, text) in [("author", author), ("reason", &self.reason), ("id", &self.id)] {
            check_text(field, text)?;
        }
        check_policy(&self.policy)?;
        check_end(self.until)?;
        match self {
            Self { id, .. } if id.is_empty() => Err(invalid("top-up: id is empty")),
            Self { units: 0, .. } => Err(invalid("top-up: units must be at least 1")),
            Self { until, .. } if *until <= now => Err(invalid(format!(
                "top-up: end {until} is not in the future (now: {now})"
            ))),
            _ => Ok(Self {
                author: author.to_owned(),
                ..self.clone()
            }),
        }
    }
}

fn invalid(message: impl Into<String>) -> FleetError {
    FleetError::new(FleetErrorKind::Invalid, message)
}

fn check_policy(name: &str) -> Result<(), FleetError> {
    check_text("policy", name)?;
    match name {
        "" => Err(invalid("contract: policy name is empty")),
        _ => Ok(()),
    }
}

/// A later end was probably specified in milliseconds.
fn check_end(until: u64) -> Result<(), FleetError> {
    const YEAR_10_000: u64 = 253_402_300_800;

    match until {
        ..YEAR_10_000 => Ok(()),
        _ => Err(invalid(format!(
            "contract: end {until} is after the year 9999; ends are in seconds"
        ))),
    }
}

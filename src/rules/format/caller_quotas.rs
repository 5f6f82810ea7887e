use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::Whole;
use crate::{
    clock::Timestamp,
    policy::{CallerQuotas, MAX_QUOTA},
};

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct QuotasForm {
    policies: BTreeMap<String, NumbersForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    month_begins: Option<Whole<31>>,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_ups: Vec<TopUpForm>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NumbersForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quota: Option<Whole<MAX_QUOTA, 0>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst_capacity: Option<Whole<MAX_QUOTA>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TopUpForm {
    policy: String,
    units: Whole<MAX_QUOTA>,
    until: u64,
}

impl<'de> Deserialize<'de> for CallerQuotas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let moment = |seconds: u64| Timestamp::from_micros(seconds.saturating_mul(1_000_000));
        let form = QuotasForm::deserialize(deserializer)?;
        let mut quotas = Self::new();
        for (policy, numbers) in form.policies {
            if let Some(Whole(quota)) = numbers.quota {
                quotas = quotas.quota(policy.clone(), quota);
            }
            if let Some(Whole(capacity)) = numbers.burst_capacity {
                quotas = quotas.burst_capacity(policy, capacity);
            }
        }
        if let Some(Whole(day)) = form.month_begins {
            quotas = quotas.month_begins(day.min(31) as u8);
        }
        if let Some(end) = form.until {
            quotas = quotas.until(moment(end));
        }
        let top_ups = form.top_ups.into_iter();
        Ok(top_ups.fold(quotas, |quotas, TopUpForm { policy, units, until }| {
            quotas.top_up(policy, units.0, moment(until))
        }))
    }
}

impl Serialize for CallerQuotas {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let seconds = |moment: Timestamp| moment.as_micros().div_ceil(1_000_000);
        let all = self.all();
        let policies = all.numbers.iter().map(|(policy, numbers)| {
            let numbers = NumbersForm {
                quota: numbers.quota.map(Whole),
                burst_capacity: numbers.burst_capacity.map(Whole),
            };
            (policy.clone().into_owned(), numbers)
        });
        let top_ups = all.top_ups.iter().map(|top_up| TopUpForm {
            policy: top_up.policy.clone().into_owned(),
            units: Whole(top_up.units),
            until: seconds(top_up.until),
        });
        let form = QuotasForm {
            policies: policies.collect(),
            month_begins: all.month_begins.map(|day| Whole(day.into())),
            until: all.until.map(seconds),
            top_ups: top_ups.collect(),
        };
        form.serialize(serializer)
    }
}

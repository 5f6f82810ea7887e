use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Unexpected, Visitor},
};

use crate::{
    fields::{ExtensionValue, FieldError},
    policy::{Algorithm, MAX_QUOTA},
};

#[derive(Deserialize, Serialize)]
pub(super) struct AlgorithmForm(#[serde(with = "AlgorithmName")] pub(super) Algorithm);

#[derive(Deserialize, Serialize)]
#[serde(remote = "Algorithm", rename_all = "snake_case")]
enum AlgorithmName {
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

mod field {
    crate::rules::format::named::named_readers! { super::whole => max_waiting: u64; }
}

fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Whole::<MAX_QUOTA>::deserialize(deserializer).map(|Whole(number)| number)
}

/// Deserialization rejects only values that are not whole numbers. The range is checked later, with an error that names
/// the policy.
#[derive(Serialize)]
pub(super) struct Whole<const MOST: u64, const LEAST: u64 = 1>(pub(super) u64);

impl<const MOST: u64> Whole<MOST> {
    pub(super) fn seconds(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl<'de, const MOST: u64, const LEAST: u64> Deserialize<'de> for Whole<MOST, LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor::<MOST, LEAST>)
    }
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

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ExtensionForm {
    Flag(bool),
    Number(u64),
    Text(String),
}

impl ExtensionForm {
    pub(super) fn of(value: &ExtensionValue) -> Option<Self> {
        let number = || Some(Self::Number(u64::try_from(value.as_integer()?).ok()?));
        let text = || value.as_str().map(|text| Self::Text(text.to_owned()));
        value.as_bool().map(Self::Flag).or_else(number).or_else(text)
    }

    pub(super) fn into_value(self) -> Result<ExtensionValue, FieldError> {
        match self {
            Self::Flag(flag) => Ok(flag.into()),
            Self::Number(number) => ExtensionValue::integer(number),
            Self::Text(text) => ExtensionValue::string(&text),
        }
    }
}

/// Not derived, because serde reports errors in an untagged enum at the wrong position.
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

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self));
        number.map(ExtensionForm::Number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ExtensionForm::Text(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::{
        IntoDeserializer,
        value::{self, I64Deserializer},
    };

    use super::*;

    /// Formats in which all numbers are signed, like TOML.
    #[test]
    fn a_number_that_a_format_takes_for_a_signed_one_is_read() {
        let signed: I64Deserializer<value::Error> = 10_i64.into_deserializer();
        assert_eq!(Whole::<MAX_QUOTA>::deserialize(signed).unwrap().0, 10);
    }

    #[test]
    fn an_unknown_algorithm_is_an_error_that_lists_each_one() {
        let error = serde_json::from_str::<AlgorithmForm>("\"magic\"")
            .err()
            .unwrap()
            .to_string();
        for algorithm in Algorithm::EACH {
            let form = serde_json::to_string(&AlgorithmForm(algorithm)).unwrap();
            let name = form.split('"').nth(1).unwrap();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        assert_eq!(error.matches('`').count(), 2 * (Algorithm::EACH.len() + 1), "{error}");
    }
}

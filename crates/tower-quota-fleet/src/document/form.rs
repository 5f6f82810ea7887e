//! A document as JSON has it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{AccessEntry, Rollout};
use tower_quota::{PartitionId, Rules};

/// The one field that every format has.
#[derive(Deserialize)]
#[serde(expecting = "a map with `format`")]
pub(super) struct FormatForm {
    #[serde(deserialize_with = "field::format")]
    pub(super) format: u64,
}

/// The version of a document that need not be valid.
#[derive(Deserialize)]
pub(super) struct VersionForm {
    pub(super) version: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a map with `format`, `version` and `rules`")]
pub(super) struct DocumentForm {
    pub(super) format: u64,
    #[serde(deserialize_with = "field::version")]
    pub(super) version: u64,
    #[serde(default, deserialize_with = "field::author")]
    pub(super) author: String,
    #[serde(default, deserialize_with = "field::time")]
    pub(super) time: u64,
    #[serde(deserialize_with = "field::rules")]
    pub(super) rules: Rules,
    #[serde(
        default,
        deserialize_with = "field::roll_out",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) roll_out: Option<Rollout>,
    #[serde(default, deserialize_with = "field::switched_off")]
    pub(super) switched_off: bool,
    #[serde(default, deserialize_with = "field::access")]
    pub(super) access: Vec<AccessEntry>,
    #[serde(default, deserialize_with = "field::block_unknown_addresses")]
    pub(super) block_unknown_addresses: bool,
}

/// Readers of fields whose errors name the field: those of serde do not.
pub(super) mod field {
    use super::*;

    macro_rules! named_readers {
        ($($field:ident: $type:ty),+) => {
            $(pub(in super::super) fn $field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let name = |error| D::Error::custom(format_args!("{}: {error}", stringify!($field)));
                Deserialize::deserialize(deserializer).map_err(name)
            })+
        };
    }

    named_readers! {
        access: Vec<AccessEntry>, author: String, block_unknown_addresses: bool, format: u64, percent: u8,
        roll_out: Option<Rollout>, rules: Rules, switched_off: bool, time: u64, until: Option<u64>, version: u64
    }
}

/// Digests of partitions in hexadecimal digits.
pub(super) mod partitions {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PartitionId>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let error = |text| D::Error::custom(format_args!("partitions: {text:?} is not 32 hexadecimal digits"));
        let partitions = texts.iter().map(|text| text.parse().map_err(|_| error(text)));
        partitions.collect()
    }

    pub(in super::super) fn serialize<S: Serializer>(
        partitions: &[PartitionId],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(partitions.iter().map(ToString::to_string))
    }
}

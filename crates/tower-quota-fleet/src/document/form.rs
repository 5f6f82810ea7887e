use serde::{Deserialize, Serialize};

use super::{access::AccessEntry, field, roll_out::Rollout};
use tower_quota::Rules;

#[derive(Deserialize)]
#[serde(expecting = "a map with `format`")]
pub(super) struct FormatForm {
    #[serde(deserialize_with = "field::format")]
    pub(super) format: u64,
}

/// The rest of the document may be invalid.
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

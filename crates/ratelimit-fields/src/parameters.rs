use sfv::{BareItem, KeyRef, ParameterSerializer, RefBareItem};

use super::{error::Problem, syntax::in_range};

pub(super) const AVAILABLE_QUOTA: &KeyRef = KeyRef::constant("r");
pub(super) const EFFECTIVE_WINDOW: &KeyRef = KeyRef::constant("t");
pub(super) const PARTITION_KEY: &KeyRef = KeyRef::constant("pk");
pub(super) const QUOTA: &KeyRef = KeyRef::constant("q");
pub(super) const QUOTA_UNIT: &KeyRef = KeyRef::constant("qu");
pub(super) const WINDOW: &KeyRef = KeyRef::constant("w");

/// The parameters of an item that have not been parsed yet.
#[derive(Debug)]
pub struct Parameters(pub(super) sfv::Parameters);

impl Parameters {
    pub(super) fn take(&mut self, key: &KeyRef) -> Option<BareItem> {
        self.0.shift_remove(key.as_str())
    }

    pub(super) fn take_integer(&mut self, key: &'static KeyRef, minimum: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let number = value.as_integer().ok_or(Problem::Type(key.as_str(), "an Integer"))?;
        in_range(key.as_str(), number, minimum).map(Some)
    }

    pub(super) fn require_integer(&mut self, key: &'static KeyRef, minimum: u64) -> Result<u64, Problem> {
        self.take_integer(key, minimum)?.ok_or(Problem::Missing(key.as_str()))
    }
}

pub(super) type Serializer<'a> = ParameterSerializer<&'a mut String>;

pub(super) fn write_parameter<'a, 'v>(
    item: Serializer<'a>,
    key: &KeyRef,
    value: Option<impl Into<RefBareItem<'v>>>,
) -> Serializer<'a> {
    match value {
        Some(value) => item.parameter(key, value),
        None => item,
    }
}

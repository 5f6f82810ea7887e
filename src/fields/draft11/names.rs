//! Names and partition keys in the form of draft-11.

use sfv::{BareItem, String as Text};

use crate::fields::{
    error::Problem,
    parameters::{PARTITION_KEY, Parameters},
};

/// A policy's name that is to be written.
pub(super) fn name(name: &str) -> Result<Text, Problem> {
    Text::try_from(name.to_owned()).map_err(|_| Problem::Name("printable ASCII"))
}

/// A policy's name that was read.
pub(super) fn take_name(bare_item: BareItem) -> Result<Text, Problem> {
    match bare_item {
        BareItem::String(name) => Ok(name),
        _ => Err(Problem::Item("an item with a String")),
    }
}

pub(super) fn take_partition_key(parameters: &mut Parameters) -> Result<Option<Vec<u8>>, Problem> {
    match parameters.take(PARTITION_KEY) {
        None => Ok(None),
        Some(BareItem::ByteSequence(key)) => Ok(Some(key)),
        Some(_) => Err(Problem::Type(PARTITION_KEY.as_str(), "a Byte Sequence")),
    }
}

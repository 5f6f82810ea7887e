//! Names, units and partition keys as Tokens.

use sfv::{BareItem, KeyRef, ParameterSerializer, StringRef, Token, TokenRef};

use crate::fields::{
    Unit,
    error::Problem,
    parameters::{PARTITION_KEY, Parameters, QUOTA_UNIT},
};

/// A policy's name that is to be written.
pub(super) fn name(name: &str) -> Result<Token, Problem> {
    Token::try_from(name.to_owned()).map_err(|_| Problem::Name("a Token"))
}

/// A policy's name that was read.
pub(super) fn take_name(bare_item: BareItem) -> Result<Token, Problem> {
    match bare_item {
        BareItem::Token(name) => Ok(name),
        _ => Err(Problem::Item("an item with a Token")),
    }
}

pub(super) fn take_unit(parameters: &mut Parameters) -> Result<Unit, Problem> {
    let text = match parameters.take(QUOTA_UNIT) {
        None => return Ok(Unit::default()),
        Some(BareItem::Token(token)) => sfv::String::try_from(String::from(token)).ok(),
        Some(BareItem::String(text)) => Some(text),
        Some(_) => None,
    };
    match text {
        Some(text) if text.as_str() == "bytes" => Ok(Unit::ContentBytes),
        Some(text) => Ok(Unit::from_text(text)),
        None => Err(Problem::Type(QUOTA_UNIT.as_str(), "a Token or a String")),
    }
}

pub(super) fn take_partition_key(parameters: &mut Parameters) -> Result<Option<Vec<u8>>, Problem> {
    match parameters.take(PARTITION_KEY) {
        None => Ok(None),
        Some(BareItem::Token(key)) => Ok(Some(String::from(key).into())),
        Some(BareItem::String(key)) => Ok(Some(String::from(key).into())),
        Some(BareItem::ByteSequence(key)) => Ok(Some(key)),
        Some(_) => Err(Problem::Type(
            PARTITION_KEY.as_str(),
            "a Token, a String or a Byte Sequence",
        )),
    }
}

type Item<'a> = ParameterSerializer<&'a mut String>;

pub(super) fn write_unit<'a>(item: Item<'a>, unit: &Unit) -> Item<'a> {
    match unit {
        Unit::ContentBytes => item.parameter(QUOTA_UNIT, TokenRef::constant("bytes")),
        unit => match unit.text() {
            Some(text) => write_text(item, QUOTA_UNIT, text),
            None => item,
        },
    }
}

pub(super) fn write_partition_key<'a>(item: Item<'a>, key: Option<&[u8]>) -> Item<'a> {
    let Some(key) = key else {
        return item;
    };
    match std::str::from_utf8(key).ok().map(TokenRef::from_str) {
        Some(Ok(token)) => item.parameter(PARTITION_KEY, token),
        _ => item.parameter(PARTITION_KEY, key),
    }
}

/// As a Token where it fits.
fn write_text<'a>(item: Item<'a>, key: &KeyRef, text: &StringRef) -> Item<'a> {
    match TokenRef::from_str(text.as_str()) {
        Ok(token) => item.parameter(key, token),
        Err(_) => item.parameter(key, text),
    }
}

//! Add the name of the field to serde's errors.

use serde::{Deserialize, Deserializer, de::Error};

macro_rules! named_readers {
    ($($field:ident),+) => {
        $(pub(super) fn $field<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
            let name = |error| D::Error::custom(format_args!("{}: {error}", stringify!($field)));
            Deserialize::deserialize(deserializer).map_err(name)
        })+
    };
}

named_readers! {
    access, author, block_unknown_addresses, format, percent, roll_out, rules, switched_off, time, until, version
}

//! Deserializers whose errors name the field, unlike serde's own.

macro_rules! named_readers {
    ($($read:path => $($field:ident: $type:ty),+;)+) => {
        $($(pub(crate) fn $field<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
            let name = |error| <D::Error as serde::de::Error>::custom(format_args!("{}: {error}", stringify!($field)));
            $read(deserializer).map_err(name)
        })+)+
    };
}

pub(crate) use named_readers;

//! The common part of all fields that are one number.

/// A field that is a number: the type, its name and its value.
macro_rules! number_value {
    ($(#[$attribute:meta])* $field:ident named $name:literal) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $field(u64);

        impl $field {
            /// The name of the field.
            pub const NAME: HeaderName = HeaderName::from_static($name);

            /// The value of the field line.
            pub fn to_header_value(self) -> HeaderValue {
                HeaderValue::from(self.0)
            }
        }

        impl fmt::Display for $field {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A field that is an Integer: the type and its common methods.
macro_rules! number_field {
    ($(#[$documentation:meta])* $field:ident spelled $spelled:literal named $name:literal) => {
        number_value! {
            $(#[$documentation])*
            #[derive(PartialOrd, Ord)]
            $field named $name
        }

        impl $field {
            /// A field with this number.
            ///
            /// Fails if it has more than 15 digits.
            pub fn new(number: u64) -> Result<Self, FieldError> {
                writable($spelled, "it", number, 0).map(Self)
            }

            /// Reads the lines of one field; more than one are malformed. Parameters are comments.
            ///
            /// If it is malformed, ignore the field.
            pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
                integer_item($spelled, lines).map(Self)
            }

            /// Reads the field of a response; `None` if it is absent.
            ///
            /// Give it the header section only, never trailers: the fields must not appear there. Fails as
            /// [`parse`](Self::parse) does.
            pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
                read(headers, Self::NAME, Self::parse)
            }

            /// The number, of at most 15 digits.
            pub fn get(self) -> u64 {
                self.0
            }
        }
    };
}

pub(super) use {number_field, number_value};

macro_rules! number_value {
    ($(#[$attribute:meta])* $field:ident named $name:literal) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $field(u64);

        impl $field {
            /// The name of the field.
            pub const NAME: HeaderName = HeaderName::from_static($name);

            /// Serializes the field as the value of one line.
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

macro_rules! number_field {
    ($(#[$documentation:meta])* $field:ident spelled $spelled:literal named $name:literal) => {
        number_value! {
            $(#[$documentation])*
            #[derive(PartialOrd, Ord)]
            $field named $name
        }

        impl $field {
            /// Creates the field. Fails if `number` has more than 15 digits.
            pub fn new(number: u64) -> Result<Self, FieldError> {
                writable($spelled, "the value", number, 0).map(Self)
            }

            /// Parses the lines of a field, without its parameters. Fails if there is more than one line, or if the
            /// line is malformed.
            pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
                integer_item($spelled, lines).map(Self)
            }

            /// Parses the field of a response, if present. Fails like [`parse`](Self::parse).
            pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
                read(headers, Self::NAME, Self::parse)
            }

            /// Returns the number.
            pub fn get(self) -> u64 {
                self.0
            }
        }
    };
}

pub(super) use {number_field, number_value};

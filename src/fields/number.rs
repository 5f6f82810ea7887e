//! The common part of all fields that are one number.

/// A field that is an Integer: the type and its common methods.
macro_rules! number_field {
    ($(#[$documentation:meta])* $field:ident spelled $spelled:literal named $name:literal) => {
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $field(u64);

        impl $field {
            /// The name of the field.
            pub const NAME: ::http::HeaderName = ::http::HeaderName::from_static($name);

            /// A field with this number.
            ///
            /// Fails if it has more than 15 digits.
            pub fn new(number: u64) -> Result<Self, $crate::fields::FieldError> {
                $crate::fields::syntax::writable("it", number, 0)
                    .map(Self)
                    .map_err(|problem| problem.of($spelled))
            }

            /// Reads the lines of one field; more than one are malformed. Parameters are comments.
            ///
            /// If it is malformed, ignore the field.
            pub fn parse<L: AsRef<[u8]>>(
                lines: impl IntoIterator<Item = L>,
            ) -> Result<Self, $crate::fields::FieldError> {
                $crate::fields::syntax::integer_item($spelled, lines).map(Self)
            }

            /// Reads the field of a response; `None` if it is absent.
            ///
            /// Give it the header section only, never trailers: the fields must not appear there. Fails as
            /// [`parse`](Self::parse) does.
            pub fn read(headers: &::http::HeaderMap) -> Result<Option<Self>, $crate::fields::FieldError> {
                if !headers.contains_key(Self::NAME) {
                    return Ok(None);
                }
                Self::parse(headers.get_all(Self::NAME)).map(Some)
            }

            /// The number, of at most 15 digits.
            pub fn get(self) -> u64 {
                self.0
            }

            /// The value of the field line.
            pub fn to_header_value(self) -> ::http::HeaderValue {
                ::http::HeaderValue::from(self.0)
            }
        }

        impl ::std::fmt::Display for $field {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

pub(super) use number_field;

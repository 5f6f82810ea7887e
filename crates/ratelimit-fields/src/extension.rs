use std::fmt;

use sfv::{BareItem, Integer, ItemSerializer, Key, KeyRef, String as Text, Token, Version};

use super::{
    error::{FieldError, Problem},
    list::Member,
    parameters::{Parameters, Serializer},
    syntax::{self, writable},
};

const NO_FIELD: &str = "extension parameter";

/// The value of an extension parameter: a bare item of a structured field.
///
/// Parsers ignore extension parameters. Decimals, dates and display strings have no accessors, but are preserved.
/// `Display` formats a value as in the field.
///
/// ```
/// use ratelimit_fields::{ExtensionValue, draft11::RateLimitPolicy};
///
/// let field = RateLimitPolicy::parse([r#""sliding";q=100;w=60;burst=1000;acme-ratio=0.5;acme-id=:aGk=:;acme-soft"#])?;
/// let policy = &field.items()[0];
/// assert_eq!(policy.extension("burst").and_then(ExtensionValue::as_integer), Some(1000));
/// assert_eq!(policy.extension("acme-ratio").unwrap().to_string(), "0.5");
/// assert_eq!(policy.extension("acme-id").and_then(ExtensionValue::as_bytes), Some(b"hi".as_slice()));
/// assert_eq!(policy.extension("acme-soft").and_then(ExtensionValue::as_bool), Some(true));
///
/// // The serialized form of each type.
/// assert_eq!(ExtensionValue::integer(5)?.to_string(), "5");
/// assert_eq!(ExtensionValue::string("a b")?.to_string(), r#""a b""#);
/// assert_eq!(ExtensionValue::token("sliding")?.to_string(), "sliding");
/// assert_eq!(ExtensionValue::from(b"hi".as_slice()).to_string(), ":aGk=:");
/// assert_eq!(ExtensionValue::from(true).to_string(), "?1");
/// # assert_eq!((ExtensionValue::string("a")?.as_str(), ExtensionValue::string("a")?.as_token()), (Some("a"), None));
/// # assert_eq!((ExtensionValue::token("a")?.as_str(), ExtensionValue::token("a")?.as_token()), (None, Some("a")));
/// # let error = ExtensionValue::string("größe").unwrap_err();
/// # assert!(error.to_string().ends_with("extension parameter value cannot be represented in this dialect"));
/// # assert!(ExtensionValue::token("1st").is_err());
/// # assert!(ExtensionValue::token("a b").is_err());
/// # assert_eq!(ExtensionValue::integer(20)?, ExtensionValue::from(20_u32));
/// # let error = ExtensionValue::integer(ratelimit_fields::MAX_INTEGER + 1).unwrap_err();
/// # assert_eq!(error.field(), "extension parameter");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExtensionValue(pub(super) BareItem);

// Values contain no floating-point numbers: a decimal is an integer number of thousandths.
impl Eq for ExtensionValue {}

impl ExtensionValue {
    /// Creates a String. Fails unless `text` is printable ASCII.
    pub fn string(text: &str) -> Result<Self, FieldError> {
        Text::try_from(text.to_owned())
            .map(|text| Self(text.into()))
            .map_err(|_| Problem::ExtensionValue.of(NO_FIELD))
    }

    /// Creates a Token: a letter or `*`, then letters, digits and most punctuation. Fails for any other text.
    pub fn token(token: &str) -> Result<Self, FieldError> {
        Token::try_from(token.to_owned())
            .map(|token| Self(token.into()))
            .map_err(|_| Problem::ExtensionValue.of(NO_FIELD))
    }

    /// Creates an Integer. Fails if `number` has more than 15 digits. A `u32` can be converted instead.
    pub fn integer(number: u64) -> Result<Self, FieldError> {
        let number = writable(NO_FIELD, "the value", number, 0)?;
        Ok(Self(syntax::integer(number).into()))
    }

    /// Returns the number if the value is an Integer, which can be negative.
    pub fn as_integer(&self) -> Option<i64> {
        self.0.as_integer().map(i64::from)
    }

    /// Returns the text if the value is a String.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_string().map(|text| text.as_str())
    }

    /// Returns the text if the value is a Token.
    pub fn as_token(&self) -> Option<&str> {
        self.0.as_token().map(|token| token.as_str())
    }

    /// Returns the bytes if the value is a Byte Sequence.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_byte_sequence()
    }

    /// Returns the value if it is a Boolean. A parameter without a value is `true`.
    pub fn as_bool(&self) -> Option<bool> {
        self.0.as_boolean()
    }
}

impl From<u32> for ExtensionValue {
    fn from(number: u32) -> Self {
        Self(Integer::from(number).into())
    }
}

impl From<bool> for ExtensionValue {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<&[u8]> for ExtensionValue {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Display for ExtensionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ItemSerializer::new().bare_item(&self.0).finish())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extensions(pub(super) Vec<(Key, ExtensionValue)>);

impl From<Parameters> for Extensions {
    fn from(parameters: Parameters) -> Self {
        let extensions = parameters.0.into_iter();
        Self(extensions.map(|(name, value)| (name, ExtensionValue(value))).collect())
    }
}

impl Extensions {
    pub(super) fn get(&self, name: &str) -> Option<&ExtensionValue> {
        self.iter()
            .find_map(|(present, value)| (present == name).then_some(value))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(super) fn set<M: Member>(
        &mut self,
        name: &str,
        value: impl Into<ExtensionValue>,
        needs_prefix: bool,
    ) -> Result<(), FieldError> {
        let error = |problem: Problem| Err(problem.of(M::FIELD));
        let value = value.into();
        let Ok(key) = KeyRef::from_str(name) else {
            let reason = "contains characters other than lower-case letters, digits, _, -, . and *";
            return error(Problem::ExtensionName(reason));
        };
        if M::KNOWN.contains(&name) {
            return error(Problem::ExtensionName("is reserved"));
        }
        if needs_prefix && !is_prefixed(name) {
            return error(Problem::ExtensionName(
                "has no vendor prefix, such as acme- in acme-burst",
            ));
        }
        // Dates and display strings exist only in RFC 9651.
        let has_date = matches!(value.0, BareItem::Date(_) | BareItem::DisplayString(_));
        if has_date && matches!(M::VERSION, Version::Rfc8941) {
            return error(Problem::ExtensionValue);
        }
        match self.0.iter_mut().find(|(present, _)| present.as_str() == name) {
            Some((_, present)) => *present = value,
            None => self.0.push((key.to_owned(), value)),
        }
        Ok(())
    }

    pub(super) fn write<'a>(&self, item: Serializer<'a>) -> Serializer<'a> {
        item.parameters(self.0.iter().map(|(name, value)| (&**name, &value.0)))
    }
}

macro_rules! extension_methods {
    () => {
        /// Returns the extension parameter `name`.
        pub fn extension(&self, name: &str) -> Option<&ExtensionValue> {
            self.extensions.get(name)
        }

        /// Returns the extension parameters, in the order of the field.
        pub fn extensions(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
            self.extensions.iter()
        }

        /// Sets an extension parameter, or replaces the one with this name.
        ///
        /// # Errors
        ///
        /// Returns an error if the name has no vendor prefix, as in `acme-burst`, or this dialect cannot represent the
        /// parameter.
        pub fn with_extension(mut self, name: &str, value: impl Into<ExtensionValue>) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, true)?;
            Ok(self)
        }

        /// Sets an extension parameter without a vendor prefix, for clients that need it. A later draft could define
        /// the name.
        ///
        /// # Errors
        ///
        /// Returns an error if a standard parameter has the name, or this dialect cannot represent the parameter.
        pub fn with_unprefixed_extension(
            mut self,
            name: &str,
            value: impl Into<ExtensionValue>,
        ) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, false)?;
            Ok(self)
        }
    };
}

pub(super) use extension_methods;

fn is_prefixed(name: &str) -> bool {
    name.split_once('-')
        .is_some_and(|(vendor, rest)| !vendor.is_empty() && !rest.is_empty())
}

//! Parameters that no document defines.

use std::fmt;

use sfv::{BareItem, Integer, ItemSerializer, Key, KeyRef, String as Text, Token, Version};

use super::{
    error::{FieldError, Problem},
    list::Member,
    parameters::{Parameters, Serializer},
    syntax::{self, writable},
};

/// The name in an error about a value that belongs to no field yet.
const NO_FIELD: &str = "extension parameter";

/// The value of an extension parameter: a bare item of a structured field.
///
/// To a reader, extension parameters are comments. You want them where you know the server, or to tell your own clients
/// more than the draft has words for. Numbers, texts, tokens, bytes and booleans have accessors; decimals, dates and
/// display strings are kept and written again, and `Display` shows them as they look in the field.
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
/// // The text of each form.
/// assert_eq!(ExtensionValue::integer(5)?.to_string(), "5");
/// assert_eq!(ExtensionValue::string("a b")?.to_string(), r#""a b""#);
/// assert_eq!(ExtensionValue::token("sliding")?.to_string(), "sliding");
/// assert_eq!(ExtensionValue::from(b"hi".as_slice()).to_string(), ":aGk=:");
/// assert_eq!(ExtensionValue::from(true).to_string(), "?1");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExtensionValue(pub(super) BareItem);

// Floating-point numbers do not occur: a decimal is a number of thousandths.
impl Eq for ExtensionValue {}

impl ExtensionValue {
    /// A text, written with quotation marks.
    ///
    /// Fails if it has other characters than printable ASCII.
    ///
    /// ```
    /// use ratelimit_fields::ExtensionValue;
    ///
    /// let value = ExtensionValue::string("a b")?;
    /// assert_eq!((value.as_str(), value.as_token()), (Some("a b"), None));
    ///
    /// let error = ExtensionValue::string("größe").unwrap_err();
    /// assert!(error.to_string().ends_with("the extension parameter's value has no form in this dialect"));
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn string(text: &str) -> Result<Self, FieldError> {
        Text::try_from(text.to_owned())
            .map(|text| Self(text.into()))
            .map_err(|_| Problem::ExtensionValue.of(NO_FIELD))
    }

    /// A token, written without quotation marks.
    ///
    /// Fails if it does not begin with a letter or `*`, or has characters that a token cannot have.
    ///
    /// ```
    /// use ratelimit_fields::ExtensionValue;
    ///
    /// let value = ExtensionValue::token("sliding")?;
    /// assert_eq!((value.as_token(), value.as_str()), (Some("sliding"), None));
    /// assert!(ExtensionValue::token("1st").is_err());
    /// assert!(ExtensionValue::token("a b").is_err());
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn token(token: &str) -> Result<Self, FieldError> {
        Token::try_from(token.to_owned())
            .map(|token| Self(token.into()))
            .map_err(|_| Problem::ExtensionValue.of(NO_FIELD))
    }

    /// A number of at most 15 digits.
    ///
    /// Fails if it is greater. A `u32` never is: `with_extension` takes it as it is.
    ///
    /// ```
    /// use ratelimit_fields::{ExtensionValue, MAX_INTEGER};
    ///
    /// assert_eq!(ExtensionValue::integer(20)?, ExtensionValue::from(20_u32));
    /// let error = ExtensionValue::integer(MAX_INTEGER + 1).unwrap_err();
    /// assert_eq!(error.field(), "extension parameter");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn integer(number: u64) -> Result<Self, FieldError> {
        let number = writable(NO_FIELD, "it", number, 0)?;
        Ok(Self(syntax::integer(number).into()))
    }

    /// The number, if it is an Integer: of at most 15 digits, perhaps negative.
    pub fn as_integer(&self) -> Option<i64> {
        self.0.as_integer().map(i64::from)
    }

    /// The text, if it is a String.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_string().map(|text| text.as_str())
    }

    /// The token, if it is one.
    pub fn as_token(&self) -> Option<&str> {
        self.0.as_token().map(|token| token.as_str())
    }

    /// The bytes, if it is a Byte Sequence.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_byte_sequence()
    }

    /// The truth value, if it is a Boolean. A parameter without a value is true.
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

/// The extension parameters of an item, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extensions(pub(super) Vec<(Key, ExtensionValue)>);

impl From<Parameters> for Extensions {
    /// Keeps the parameters that the item has not taken.
    fn from(parameters: Parameters) -> Self {
        let extensions = parameters.0.into_iter();
        Self(extensions.map(|(name, value)| (name, ExtensionValue(value))).collect())
    }
}

/// The rule for the prefix of an extension parameter's name: the name of its vendor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Required,
    Optional,
}

impl Extensions {
    pub(super) fn get(&self, name: &str) -> Option<&ExtensionValue> {
        self.iter()
            .find_map(|(present, value)| (present == name).then_some(value))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Adds a parameter, or replaces the one with this name.
    pub(super) fn set<M: Member>(
        &mut self,
        name: &str,
        value: impl Into<ExtensionValue>,
        prefix: Prefix,
    ) -> Result<(), FieldError> {
        let error = |problem: Problem| Err(problem.of(M::FIELD));
        let value = value.into();
        let Ok(key) = KeyRef::from_str(name) else {
            let reason = "has other characters than lower-case letters, digits, _, -, . and *";
            return error(Problem::ExtensionName(reason));
        };
        if M::KNOWN.contains(&name) {
            return error(Problem::ExtensionName("is reserved"));
        }
        if prefix == Prefix::Required && !is_prefixed(name) {
            return error(Problem::ExtensionName("has no vendor prefix, as acme-burst has"));
        }
        // Dates and display strings exist in RFC 9651 only.
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

/// The getters and setters of extension parameters.
macro_rules! extension_methods {
    () => {
        /// The extension parameter with this name.
        pub fn extension(&self, name: &str) -> Option<&ExtensionValue> {
            self.extensions.get(name)
        }

        /// The parameters that the document does not define, in the order of the field. To a reader they are comments.
        pub fn extensions(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
            self.extensions.iter()
        }

        /// Adds an extension parameter, or replaces the one with this name.
        ///
        /// Fails unless the name has a vendor prefix, such as `acme-burst`: a later version of the document cannot give it
        /// another meaning then. Also fails if this dialect cannot express the name or the value.
        pub fn with_extension(mut self, name: &str, value: impl Into<ExtensionValue>) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, Prefix::Required)?;
            Ok(self)
        }

        /// Adds an extension parameter with a bare name, such as `burst`, or replaces the one with this name.
        ///
        /// The draft recommends a vendor prefix; use a bare name only if existing clients need it. Fails if a standard
        /// parameter has the name, or if this dialect cannot express the name or the value.
        pub fn with_unprefixed_extension(
            mut self,
            name: &str,
            value: impl Into<ExtensionValue>,
        ) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, Prefix::Optional)?;
            Ok(self)
        }
    };
}

pub(super) use extension_methods;

/// `acme-burst`: a vendor, a hyphen and a name.
fn is_prefixed(name: &str) -> bool {
    name.split_once('-')
        .is_some_and(|(vendor, rest)| !vendor.is_empty() && !rest.is_empty())
}

//! The dialect of the editors' copy of the draft between -07 and -08, in the syntax of RFC 8941.
//!
//! Names are Tokens, as are quota units and partition keys that have this form. Use this dialect only for clients or
//! servers based on that copy. Parsing accepts what its examples contain: `l` for `q`, `bytes` for `content-bytes`, and
//! a Token, a String or a Byte Sequence as a partition key.
//!
//! ```
//! use ratelimit_fields::in_between::{RateLimit, RateLimitPolicy};
//!
//! let limits = RateLimit::parse(["default;r=999;pk=trial-121323"])?;
//! assert_eq!(limits.items()[0].partition_key(), Some(b"trial-121323".as_slice()));
//!
//! let policies = RateLimitPolicy::parse(["default;l=100;w=10"])?;
//! assert_eq!(policies.to_string(), "default;q=100;w=10");
//!
//! // Names of draft-11 are Strings.
//! assert!(RateLimit::parse([r#""default";r=999"#]).is_err());
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```

use sfv::{BareItem, KeyRef, ListSerializer, String as Text, Token, TokenRef, Version};

use super::{
    error::{FieldError, Problem},
    list::{List, Member},
    merge::merge_lists,
    named::{self, Named},
    parameters::{
        AVAILABLE_QUOTA, EFFECTIVE_WINDOW, PARTITION_KEY, Parameters, QUOTA, QUOTA_UNIT, Serializer, WINDOW,
        write_parameter,
    },
    prepared::named_policies,
    syntax::{integer, writable},
    typed::typed_headers,
    unit::Unit,
    wire::{Form, ListForm, Wire, hints},
};

/// The earlier name of `q`.
const LIMIT: &KeyRef = KeyRef::constant("l");

pub(super) const WIRE: Wire = Wire {
    begins: |first| matches!(first[0], b'*' | b'A'..=b'Z' | b'a'..=b'z'),
    limits: Some(hints::<LimitItem, _>),
    policies: Some(hints::<PolicyItem, _>),
    numbers: None,
    prepare: named_policies::<EditorsCopy>,
    form: Form::List(ListForm {
        item: |name| Ok(RateLimit::new([LimitItem::new(name)?.with_remaining(0)?])?.to_string()),
        merge: merge_lists::<EditorsCopy>,
        resets_with_retry_after: true,
    }),
};

typed_headers!(RateLimit, RateLimitPolicy);

/// The marker type of this dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditorsCopy {}

/// The `RateLimit` field with Token names: the remaining units of a client.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::in_between::{LimitItem, RateLimit};
///
/// let limit = LimitItem::new("default")?.with_remaining(50)?.with_reset(Duration::from_secs(30));
/// assert_eq!(RateLimit::new([limit])?.to_header_value(), "default;r=50;t=30");
///
/// // A server without counters omits the number.
/// let field = RateLimit::parse(["quota;t=1"])?;
/// assert_eq!(field.items()[0].remaining(), None);
///
/// // The draft's example of a redirect is malformed, so it is ignored.
/// assert!(RateLimit::parse(["problemPolicy;r=0, t=10"]).is_err());
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(RateLimit::read(&headers)?, None);
/// headers.insert(RateLimit::NAME, field.to_header_value());
/// assert_eq!(RateLimit::read(&headers)?, Some(field));
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type RateLimit = List<LimitItem>;

/// An item of a [`RateLimit`] field.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::in_between::{LimitItem, RateLimit};
///
/// // A key is serialized as a Token if possible, and otherwise as a Byte Sequence.
/// let keyed = |key: &[u8]| RateLimit::new([LimitItem::new("a")?.with_remaining(1)?.with_partition_key(key)]);
/// assert_eq!(keyed(b"App-999")?.to_string(), "a;r=1;pk=App-999");
/// assert_eq!(keyed(b"999")?.to_string(), "a;r=1;pk=:OTk5:");
///
/// let limit = LimitItem::new("a")?
///     .with_reset(Duration::from_millis(200))
///     .with_extension("acme-burst", 20)?
///     .with_unprefixed_extension("burst", 20)?;
/// assert_eq!(limit.reset(), Some(Duration::from_secs(1)));
/// assert_eq!(RateLimit::new([limit])?.to_string(), "a;t=1;acme-burst=20;burst=20");
/// assert!(LimitItem::new("a")?.with_extension("burst", 20).is_err());
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type LimitItem = named::LimitItem<EditorsCopy>;

/// The `RateLimit-Policy` field with Token names: the policies of a server.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::in_between::{PolicyItem, RateLimitPolicy};
///
/// let field = RateLimitPolicy::new([
///     PolicyItem::new("burst", 100)?.with_window(Duration::from_secs(60))?,
///     PolicyItem::new("daily", 1000)?.with_window(Duration::from_secs(86_400))?,
/// ])?;
/// assert_eq!(field.to_header_value(), "burst;q=100;w=60, daily;q=1000;w=86400");
/// assert_eq!(RateLimitPolicy::parse(["burst;l=100;w=60,daily;l=1000;w=86400"])?, field);
///
/// // A list that mixes dialects is malformed.
/// assert!(RateLimitPolicy::parse([r#"burst;q=100;w=60, "daily";q=1000"#]).is_err());
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(RateLimitPolicy::read(&headers)?, None);
/// headers.insert(RateLimitPolicy::NAME, field.to_header_value());
/// assert_eq!(RateLimitPolicy::read(&headers)?, Some(field));
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type RateLimitPolicy = List<PolicyItem>;

/// A policy of a [`RateLimitPolicy`].
///
/// A window of zero can be parsed, but has no meaning.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::{Unit, in_between::{PolicyItem, RateLimitPolicy}};
///
/// let policy = PolicyItem::new("peruser", 65_535)?
///     .with_window(Duration::from_secs(10))?
///     .with_partition_key(*b"user123")
///     .with_unit(Unit::ContentBytes)
///     .with_extension("acme-burst", 20)?
///     .with_unprefixed_extension("burst", 20)?;
/// let text = RateLimitPolicy::new([policy])?.to_string();
/// assert_eq!(text, "peruser;q=65535;w=10;pk=user123;qu=bytes;acme-burst=20;burst=20");
///
/// // The names of this dialect are Tokens.
/// let error = PolicyItem::new("1st", 100).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: policy name is not a Token");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type PolicyItem = named::PolicyItem<EditorsCopy>;

impl LimitItem {
    /// Creates an item for the policy `name`. Fails unless the name is a Token, as for [`PolicyItem::new`].
    pub fn new(name: &str) -> Result<Self, FieldError> {
        Self::of(name, None)
    }

    /// Sets the remaining units. Fails if the number has more than 15 digits.
    pub fn with_remaining(mut self, remaining: u64) -> Result<Self, FieldError> {
        self.remaining = Some(writable(Self::FIELD, AVAILABLE_QUOTA.as_str(), remaining, 0)?);
        Ok(self)
    }
}

impl Named for EditorsCopy {
    type Name = Token;
    type Remaining = Option<u64>;

    const KNOWN_OF_POLICY: &'static [&'static str] = &["q", "l", "qu", "w", "pk"];
    const NAME_FORM: &'static str = "a Token";
    const SHORTEST_WINDOW: u64 = 0;
    const VERSION: Version = Version::Rfc8941;

    fn take_name(bare_item: BareItem) -> Result<Token, Problem> {
        match bare_item {
            BareItem::Token(name) => Ok(name),
            _ => Err(Problem::Item("an item with a Token")),
        }
    }

    fn take_remaining(parameters: &mut Parameters) -> Result<Option<u64>, Problem> {
        parameters.take_integer(AVAILABLE_QUOTA, 0)
    }

    fn take_quota(parameters: &mut Parameters) -> Result<u64, Problem> {
        let quota = match parameters.take_integer(QUOTA, 0)? {
            None => parameters.take_integer(LIMIT, 0)?,
            quota => quota,
        };
        quota.ok_or(Problem::Missing(QUOTA.as_str()))
    }

    fn take_unit(parameters: &mut Parameters) -> Result<Unit, Problem> {
        let text = match parameters.take(QUOTA_UNIT) {
            None => return Ok(Unit::default()),
            Some(BareItem::Token(token)) => Text::try_from(String::from(token)).ok(),
            Some(BareItem::String(text)) => Some(text),
            Some(_) => None,
        };
        match text {
            Some(text) if text.as_str() == "bytes" => Ok(Unit::ContentBytes),
            Some(text) => Ok(Unit::from_text(text)),
            None => Err(Problem::Type(QUOTA_UNIT.as_str(), "a Token or a String")),
        }
    }

    fn take_partition_key(parameters: &mut Parameters) -> Result<Option<Vec<u8>>, Problem> {
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

    fn write_limit<'a>(limit: &LimitItem, list: &'a mut ListSerializer<String>) -> Serializer<'a> {
        let mut item = list.bare_item(&limit.name);
        item = write_parameter(item, AVAILABLE_QUOTA, limit.remaining.map(integer));
        item = write_partition_key(item, limit.partition_key());
        write_parameter(item, EFFECTIVE_WINDOW, limit.reset.map(integer))
    }

    fn write_policy<'a>(policy: &PolicyItem, list: &'a mut ListSerializer<String>) -> Serializer<'a> {
        let mut item = list.bare_item(&policy.name);
        item = item.parameter(QUOTA, integer(policy.quota));
        item = write_parameter(item, WINDOW, policy.window.map(integer));
        item = write_partition_key(item, policy.partition_key());
        write_unit(item, &policy.unit)
    }
}

fn write_unit<'a>(item: Serializer<'a>, unit: &Unit) -> Serializer<'a> {
    let Some(text) = unit.text() else {
        return item;
    };
    let name = match unit {
        Unit::ContentBytes => "bytes",
        _ => text.as_str(),
    };
    match TokenRef::from_str(name) {
        Ok(token) => item.parameter(QUOTA_UNIT, token),
        Err(_) => item.parameter(QUOTA_UNIT, text),
    }
}

fn write_partition_key<'a>(item: Serializer<'a>, key: Option<&[u8]>) -> Serializer<'a> {
    let Some(key) = key else {
        return item;
    };
    match std::str::from_utf8(key).ok().map(TokenRef::from_str) {
        Some(Ok(token)) => item.parameter(PARTITION_KEY, token),
        _ => item.parameter(PARTITION_KEY, key),
    }
}

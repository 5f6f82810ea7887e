//! The dialect of draft-ietf-httpapi-ratelimit-headers-11, in the syntax of RFC 9651.
//!
//! Use this dialect unless your clients require an older one.
//!
//! ```
//! use ratelimit_fields::draft11::RateLimit;
//!
//! let field = RateLimit::parse([r#""burst";r=9;t=1, "daily";r=4999;t=86383"#])?;
//! assert_eq!(field.items()[1].name(), "daily");
//! assert_eq!(field.items()[1].remaining(), 4999);
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```

use sfv::{BareItem, ListSerializer, String as Text, Version};

use super::{
    error::{FieldError, Problem},
    list::{List, Member},
    named::{self, Named},
    parameters::{
        AVAILABLE_QUOTA, EFFECTIVE_WINDOW, PARTITION_KEY, Parameters, QUOTA, QUOTA_UNIT, Serializer, WINDOW,
        write_parameter,
    },
    syntax::{integer, writable},
    typed::typed_headers,
    unit::Unit,
};

typed_headers!(RateLimit, RateLimitPolicy);

/// The marker type of this dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Draft11 {}

/// The `RateLimit` field: the remaining units of a client.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft11::{LimitItem, RateLimit};
///
/// let field = RateLimit::new([LimitItem::new("default", 50)?.with_reset(Duration::from_secs(30))])?;
/// assert_eq!(field.to_header_value(), r#""default";r=50;t=30"#);
///
/// let field = RateLimit::parse([r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#])?;
/// assert_eq!(field.items()[0].remaining(), 999);
/// assert_eq!(field.items()[0].reset(), None);
/// assert_eq!(field.items()[0].partition_key(), Some(b"trial121323".as_slice()));
///
/// // A fraction is malformed, and the whole field is ignored.
/// assert!(RateLimit::parse([r#""default";r=50;t=1.5"#]).is_err());
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
/// use ratelimit_fields::{ExtensionValue, draft11::{LimitItem, RateLimit}};
///
/// // Fractions of a second are rounded up, so that clients do not return too early.
/// let limit = LimitItem::new("default", 3)?.with_reset(Duration::from_millis(200));
/// assert_eq!(limit.reset(), Some(Duration::from_secs(1)));
/// assert_eq!(RateLimit::new([limit])?.to_string(), r#""default";r=3;t=1"#);
///
/// let limit = LimitItem::new("default", 3)?
///     .with_partition_key(*b"alice")
///     .with_extension("acme-tier", ExtensionValue::token("free")?)?
///     .with_unprefixed_extension("burst", 20)?;
/// assert_eq!(limit.extension("burst").and_then(ExtensionValue::as_integer), Some(20));
/// let text = RateLimit::new([limit])?.to_string();
/// assert_eq!(text, r#""default";r=3;pk=:YWxpY2U=:;acme-tier=free;burst=20"#);
///
/// let error = LimitItem::new("default", 3)?.with_unprefixed_extension("t", 20).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: extension parameter name is reserved");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type LimitItem = named::LimitItem<Draft11>;

/// The `RateLimit-Policy` field: the policies of a server.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft11::{PolicyItem, RateLimitPolicy};
///
/// let minute = Duration::from_secs(60);
/// let field = RateLimitPolicy::new([PolicyItem::new("burst", 100)?.with_window(minute)?])?;
/// assert_eq!(field.to_header_value(), r#""burst";q=100;w=60"#);
///
/// // Two lines form one list.
/// let field = RateLimitPolicy::parse([r#""burst";q=100;w=60"#, r#""daily";q=1000;w=86400"#])?;
/// assert_eq!(field.items()[1].name(), "daily");
/// assert_eq!(field.items()[0].window(), Some(minute));
/// assert_eq!(field.to_string(), r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
///
/// // If one item is malformed, the whole field is ignored.
/// assert!(RateLimitPolicy::parse([r#""burst";q=100;w=60, "daily";w=86400"#]).is_err());
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
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::{Unit, draft11::{PolicyItem, RateLimitPolicy}};
///
/// let policy = PolicyItem::new("peruser", 65_535)?
///     .with_unit(Unit::ContentBytes)
///     .with_window(Duration::from_secs(10))?
///     .with_partition_key(*b"App-999")
///     .with_extension("acme-burst", 20)?;
/// let field = RateLimitPolicy::new([policy])?;
/// assert_eq!(field.to_string(), r#""peruser";q=65535;qu="content-bytes";w=10;pk=:QXBwLTk5OQ==:;acme-burst=20"#);
///
/// let error = PolicyItem::new("peruser", 1)?.with_extension("burst", 20).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "RateLimit-Policy: extension parameter name has no vendor prefix, such as acme- in acme-burst"
/// );
/// assert!(PolicyItem::new("peruser", 1)?.with_unprefixed_extension("burst", 20).is_ok());
///
/// let error = PolicyItem::new("peruser", 1)?.with_window(Duration::from_millis(1_500)).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: w is not a whole number of seconds");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type PolicyItem = named::PolicyItem<Draft11>;

impl LimitItem {
    /// Creates an item with the remaining units of the policy `name`.
    ///
    /// Fails if the name is not printable ASCII, or the number has more than 15 digits.
    pub fn new(name: &str, remaining: u64) -> Result<Self, FieldError> {
        let mut item = Self::of(name, remaining)?;
        item.remaining = writable(Self::FIELD, AVAILABLE_QUOTA.as_str(), remaining, 0)?;
        Ok(item)
    }
}

impl Named for Draft11 {
    type Name = Text;
    type Remaining = u64;

    const KNOWN_OF_POLICY: &'static [&'static str] = &["q", "qu", "w", "pk"];
    const NAME_FORM: &'static str = "printable ASCII";
    const SHORTEST_WINDOW: u64 = 1;
    const VERSION: Version = Version::Rfc9651;

    fn take_name(bare_item: BareItem) -> Result<Text, Problem> {
        match bare_item {
            BareItem::String(name) => Ok(name),
            _ => Err(Problem::Item("an item with a String")),
        }
    }

    fn take_remaining(parameters: &mut Parameters) -> Result<u64, Problem> {
        parameters.require_integer(AVAILABLE_QUOTA, 0)
    }

    fn take_quota(parameters: &mut Parameters) -> Result<u64, Problem> {
        parameters.require_integer(QUOTA, 0)
    }

    fn take_unit(parameters: &mut Parameters) -> Result<Unit, Problem> {
        match parameters.take(QUOTA_UNIT) {
            None => Ok(Unit::default()),
            Some(BareItem::String(text)) => Ok(Unit::from_text(text)),
            Some(_) => Err(Problem::Type(QUOTA_UNIT.as_str(), "a String")),
        }
    }

    fn take_partition_key(parameters: &mut Parameters) -> Result<Option<Vec<u8>>, Problem> {
        match parameters.take(PARTITION_KEY) {
            None => Ok(None),
            Some(BareItem::ByteSequence(key)) => Ok(Some(key)),
            Some(_) => Err(Problem::Type(PARTITION_KEY.as_str(), "a Byte Sequence")),
        }
    }

    fn write_limit<'a>(limit: &LimitItem, list: &'a mut ListSerializer<String>) -> Serializer<'a> {
        let mut item = list.bare_item(&limit.name);
        item = item.parameter(AVAILABLE_QUOTA, integer(limit.remaining));
        item = write_parameter(item, EFFECTIVE_WINDOW, limit.reset.map(integer));
        write_parameter(item, PARTITION_KEY, limit.partition_key())
    }

    fn write_policy<'a>(policy: &PolicyItem, list: &'a mut ListSerializer<String>) -> Serializer<'a> {
        let mut item = list.bare_item(&policy.name);
        item = item.parameter(QUOTA, integer(policy.quota));
        item = write_parameter(item, QUOTA_UNIT, policy.unit.text());
        item = write_parameter(item, WINDOW, policy.window.map(integer));
        write_parameter(item, PARTITION_KEY, policy.partition_key())
    }
}

//! `RateLimit-Policy`, in-between.

use std::time::Duration;

use sfv::{Item, KeyRef, ListSerializer, Token, Version};

use super::names;
use crate::fields::{
    RATELIMIT_POLICY, Unit,
    error::{FieldError, Problem},
    extension::{Extensions, Rules},
    list::Member,
    parameters::{Parameters, QUOTA, WINDOW, write_integer},
    seconds,
    syntax::{integer, writable},
};

const FIELD: &str = "RateLimit-Policy";

/// The parameter that most examples of the document have in place of `q`.
const LIMIT: &KeyRef = KeyRef::constant("l");

const RULES: Rules = Rules {
    known: &["q", "l", "qu", "w", "pk"],
    has_dates: false,
};

list_field! {
    /// The field `RateLimit-Policy` with Token names: the policies that a server applies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::in_between::{PolicyItem, RateLimitPolicy};
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
    /// # Ok::<_, tower_quota::fields::FieldError>(())
    /// ```
    RateLimitPolicy of PolicyItem named RATELIMIT_POLICY
}

/// One policy of a [`RateLimitPolicy`]: a name, a quota and what else is known of it.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::fields::{Unit, in_between::{PolicyItem, RateLimitPolicy}};
///
/// let policy = PolicyItem::new("peruser", 65_535)?
///     .with_window(Duration::from_secs(10))?
///     .show_partition_key(*b"user123")
///     .with_unit(Unit::ContentBytes)
///     .with_extension("acme-burst", 20)?
///     .with_unprefixed_extension("burst", 20)?;
/// let text = RateLimitPolicy::new([policy])?.to_string();
/// assert_eq!(text, "peruser;q=65535;w=10;pk=user123;qu=bytes;acme-burst=20;burst=20");
///
/// // The names of this dialect are Tokens.
/// let error = PolicyItem::new("1st", 100).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: the policy's name is not a Token");
/// # Ok::<_, tower_quota::fields::FieldError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyItem {
    name: Token,
    quota: u64,
    window: Option<u64>,
    partition_key: Option<Vec<u8>>,
    unit: Unit,
    extensions: Extensions,
}

impl PolicyItem {
    /// A policy in requests, without a window.
    ///
    /// Fails if the name is not a Token (a letter or `*`, then letters, digits and most punctuation), or the quota has
    /// more than 15 digits.
    pub fn new(name: &str, quota: u64) -> Result<Self, FieldError> {
        Ok(Self {
            name: names::name(name).map_err(|problem| problem.of(FIELD))?,
            quota: writable(QUOTA.as_str(), quota, 0).map_err(|problem| problem.of(FIELD))?,
            window: None,
            partition_key: None,
            unit: Unit::default(),
            extensions: Extensions::default(),
        })
    }

    /// The time in which the quota may be used.
    ///
    /// Fails unless it is a number of whole seconds, at least one. Zero can be read, but says nothing.
    pub fn with_window(mut self, window: Duration) -> Result<Self, FieldError> {
        self.window = Some(seconds::whole(WINDOW.as_str(), window, 1).map_err(|problem| problem.of(FIELD))?);
        Ok(self)
    }

    /// The key of the partition that the quota is for. Every client can read it: it should not identify a person.
    #[must_use]
    pub fn show_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Sets the unit of the quota. Default: requests.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// The name of the policy.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Units for each window, at most 15 digits; from `l` where a server has not sent `q`.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// The time in which the quota may be used, in whole seconds. Some quotas have none.
    pub fn window(&self) -> Option<Duration> {
        self.window.map(Duration::from_secs)
    }

    /// The key of the partition that the quota is for.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }

    /// The unit of the quota.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    extension_methods!("RateLimit-Policy", RULES);
}

impl Member for PolicyItem {
    const FIELD: &'static str = FIELD;
    const VERSION: Version = Version::Rfc8941;

    fn decode(item: Item) -> Result<Self, Problem> {
        let name = names::take_name(item.bare_item)?;
        let mut parameters = Parameters::new(item.params);
        let quota = match parameters.take_integer(QUOTA, 0)? {
            Some(quota) => quota,
            None => parameters
                .take_integer(LIMIT, 0)?
                .ok_or(Problem::Missing(QUOTA.as_str()))?,
        };
        Ok(Self {
            name,
            quota,
            window: parameters.take_integer(WINDOW, 0)?,
            partition_key: names::take_partition_key(&mut parameters)?,
            unit: names::take_unit(&mut parameters)?,
            extensions: parameters.into_extensions(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let mut item = list.bare_item(&self.name).parameter(QUOTA, integer(self.quota));
        item = write_integer(item, WINDOW, self.window);
        item = names::write_partition_key(item, self.partition_key());
        item = names::write_unit(item, &self.unit);
        let _ = self.extensions.write(item);
    }
}

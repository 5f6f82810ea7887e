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

policy_item! {
    /// One policy of a [`RateLimitPolicy`]: a name, a quota, and perhaps a window, a unit and a partition key.
    ///
    /// A reader takes the quota from `l` if a server has not sent `q`. It can read a window of zero, which says nothing.
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
    PolicyItem of Token, called "a Token (a letter or `*`, then letters, digits and most punctuation)"
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

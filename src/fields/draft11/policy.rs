//! `RateLimit-Policy`, draft-11.

use std::time::Duration;

use sfv::{BareItem, Item, ListSerializer, String as Text, Version};

use super::names;
use crate::fields::{
    RATELIMIT_POLICY, Unit,
    error::{FieldError, Problem},
    extension::{Extensions, Rules},
    list::Member,
    parameters::{PARTITION_KEY, Parameters, QUOTA, QUOTA_UNIT, WINDOW, write_integer},
    syntax::{integer, writable},
};

const FIELD: &str = "RateLimit-Policy";

const RULES: Rules = Rules {
    known: &["q", "qu", "w", "pk"],
    has_dates: true,
};

list_field! {
    /// The field `RateLimit-Policy`: the policies that a server applies.
    ///
    /// It informs; what is left of the quotas is in [`RateLimit`](super::RateLimit).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::draft11::{PolicyItem, RateLimitPolicy};
    ///
    /// let minute = Duration::from_secs(60);
    /// let field = RateLimitPolicy::new([PolicyItem::new("burst", 100)?.with_window(minute)?])?;
    /// assert_eq!(field.to_header_value(), r#""burst";q=100;w=60"#);
    ///
    /// // Two lines are one list.
    /// let field = RateLimitPolicy::parse([r#""burst";q=100;w=60"#, r#""daily";q=1000;w=86400"#])?;
    /// assert_eq!(field.items()[1].name(), "daily");
    /// assert_eq!(field.items()[0].window(), Some(minute));
    /// assert_eq!(field.to_string(), r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
    ///
    /// // One malformed item, and the whole field is ignored.
    /// assert!(RateLimitPolicy::parse([r#""burst";q=100;w=60, "daily";w=86400"#]).is_err());
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
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::{Unit, draft11::{PolicyItem, RateLimitPolicy}};
    ///
    /// let policy = PolicyItem::new("peruser", 65_535)?
    ///     .with_unit(Unit::ContentBytes)
    ///     .with_window(Duration::from_secs(10))?
    ///     .show_partition_key(*b"App-999")
    ///     .with_extension("acme-burst", 20)?;
    /// let field = RateLimitPolicy::new([policy])?;
    /// assert_eq!(field.to_string(), r#""peruser";q=65535;qu="content-bytes";w=10;pk=:QXBwLTk5OQ==:;acme-burst=20"#);
    ///
    /// let error = PolicyItem::new("peruser", 1)?.with_extension("burst", 20).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "RateLimit-Policy: the extension parameter's name has no vendor prefix, as acme-burst has"
    /// );
    /// assert!(PolicyItem::new("peruser", 1)?.with_unprefixed_extension("burst", 20).is_ok());
    ///
    /// let error = PolicyItem::new("peruser", 1)?.with_window(Duration::from_millis(1_500)).unwrap_err();
    /// assert_eq!(error.to_string(), "RateLimit-Policy: w is not in whole seconds");
    /// # Ok::<_, tower_quota::fields::FieldError>(())
    /// ```
    PolicyItem of Text, called "printable ASCII"
}

impl Member for PolicyItem {
    const FIELD: &'static str = FIELD;
    const VERSION: Version = Version::Rfc9651;

    fn decode(item: Item) -> Result<Self, Problem> {
        let name = names::take_name(item.bare_item)?;
        let mut parameters = Parameters::new(item.params);
        Ok(Self {
            name,
            quota: parameters.require_integer(QUOTA, 0)?,
            unit: match parameters.take(QUOTA_UNIT) {
                None => Unit::default(),
                Some(BareItem::String(text)) => Unit::from_text(text),
                Some(_) => return Err(Problem::Type(QUOTA_UNIT.as_str(), "a String")),
            },
            window: parameters.take_integer(WINDOW, 1)?,
            partition_key: names::take_partition_key(&mut parameters)?,
            extensions: parameters.into_extensions(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let mut item = list.bare_item(&self.name).parameter(QUOTA, integer(self.quota));
        if let Some(unit) = self.unit.text() {
            item = item.parameter(QUOTA_UNIT, unit);
        }
        item = write_integer(item, WINDOW, self.window);
        if let Some(key) = self.partition_key() {
            item = item.parameter(PARTITION_KEY, key);
        }
        let _ = self.extensions.write(item);
    }
}

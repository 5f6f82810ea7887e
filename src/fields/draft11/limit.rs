//! `RateLimit`, draft-11.

use std::time::Duration;

use sfv::{Item, ListSerializer, String as Text, Version};

use super::names;
use crate::fields::{
    RATELIMIT,
    error::{FieldError, Problem},
    extension::{Extensions, Rules},
    list::Member,
    parameters::{AVAILABLE_QUOTA, EFFECTIVE_WINDOW, PARTITION_KEY, Parameters, write_integer},
    syntax::{integer, writable},
};

const FIELD: &str = "RateLimit";

const RULES: Rules = Rules {
    known: &["r", "t", "pk"],
    has_dates: true,
};

list_field! {
    /// The field `RateLimit`: what is left to a client.
    ///
    /// It promises nothing: a request may be rejected although units are left, and served although none is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::draft11::{LimitItem, RateLimit};
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
    /// # Ok::<_, tower_quota::fields::FieldError>(())
    /// ```
    RateLimit of LimitItem named RATELIMIT
}

impl LimitItem {
    /// The remaining units of the policy with this name.
    ///
    /// Fails if the name is not printable ASCII, or the number has more than 15 digits.
    pub fn new(name: &str, remaining: u64) -> Result<Self, FieldError> {
        Ok(Self {
            name: names::name(name).map_err(|problem| problem.of(FIELD))?,
            remaining: writable(AVAILABLE_QUOTA.as_str(), remaining, 0).map_err(|problem| problem.of(FIELD))?,
            reset: None,
            partition_key: None,
            extensions: Extensions::default(),
        })
    }

    /// Units left, in the policy's quota unit. It may be greater than the policy's quota.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
}

limit_item! {
    /// One item of a [`RateLimit`] field: what is left of the quota of one policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::{ExtensionValue, draft11::{LimitItem, RateLimit}};
    ///
    /// // Parts of a second are rounded up: who waits that long has waited long enough.
    /// let limit = LimitItem::new("default", 3)?.with_reset(Duration::from_millis(200));
    /// assert_eq!(limit.reset(), Some(Duration::from_secs(1)));
    /// assert_eq!(RateLimit::new([limit])?.to_string(), r#""default";r=3;t=1"#);
    ///
    /// let limit = LimitItem::new("default", 3)?
    ///     .show_partition_key(*b"alice")
    ///     .with_extension("acme-tier", ExtensionValue::token("free")?)?
    ///     .with_unprefixed_extension("burst", 20)?;
    /// assert_eq!(limit.extension("burst").and_then(ExtensionValue::as_integer), Some(20));
    /// let text = RateLimit::new([limit])?.to_string();
    /// assert_eq!(text, r#""default";r=3;pk=:YWxpY2U=:;acme-tier=free;burst=20"#);
    ///
    /// let error = LimitItem::new("default", 3)?.with_unprefixed_extension("t", 20).unwrap_err();
    /// assert_eq!(error.to_string(), "RateLimit: the extension parameter's name is that of a parameter with a meaning");
    /// # Ok::<_, tower_quota::fields::FieldError>(())
    /// ```
    LimitItem of Text, remaining u64, reset "The effective window"
}

impl Member for LimitItem {
    const FIELD: &'static str = FIELD;
    const VERSION: Version = Version::Rfc9651;

    fn decode(item: Item) -> Result<Self, Problem> {
        let name = names::take_name(item.bare_item)?;
        let mut parameters = Parameters::new(item.params);
        Ok(Self {
            name,
            remaining: parameters.require_integer(AVAILABLE_QUOTA, 0)?,
            reset: parameters.take_integer(EFFECTIVE_WINDOW, 0)?,
            partition_key: names::take_partition_key(&mut parameters)?,
            extensions: parameters.into_extensions(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let mut item = list
            .bare_item(&self.name)
            .parameter(AVAILABLE_QUOTA, integer(self.remaining));
        item = write_integer(item, EFFECTIVE_WINDOW, self.reset);
        if let Some(key) = self.partition_key() {
            item = item.parameter(PARTITION_KEY, key);
        }
        let _ = self.extensions.write(item);
    }
}

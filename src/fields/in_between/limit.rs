//! `RateLimit`, in-between.

use std::time::Duration;

use sfv::{Item, ListSerializer, Token, Version};

use super::names;
use crate::fields::{
    RATELIMIT,
    error::{FieldError, Problem},
    extension::{Extensions, Rules},
    list::Member,
    parameters::{AVAILABLE_QUOTA, EFFECTIVE_WINDOW, Parameters, write_integer},
    syntax::writable,
};

const FIELD: &str = "RateLimit";

const RULES: Rules = Rules {
    known: &["r", "t", "pk"],
    has_dates: false,
};

list_field! {
    /// The field `RateLimit` with Token names: what is left to a client.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::in_between::{LimitItem, RateLimit};
    ///
    /// let limit = LimitItem::new("default")?.with_remaining(50)?.with_reset(Duration::from_secs(30));
    /// assert_eq!(RateLimit::new([limit])?.to_header_value(), "default;r=50;t=30");
    ///
    /// // A server without counters leaves the number out.
    /// let field = RateLimit::parse(["quota;t=1"])?;
    /// assert_eq!(field.items()[0].remaining(), None);
    ///
    /// // The draft's own example of a redirect is malformed, and ignored.
    /// assert!(RateLimit::parse(["problemPolicy;r=0, t=10"]).is_err());
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
    /// An item about the policy with this name.
    ///
    /// Fails if the name is not a Token (a letter or `*`, then letters, digits and most punctuation).
    pub fn new(name: &str) -> Result<Self, FieldError> {
        Ok(Self {
            name: names::name(name).map_err(|problem| problem.of(FIELD))?,
            remaining: None,
            partition_key: None,
            reset: None,
            extensions: Extensions::default(),
        })
    }

    /// Units left.
    ///
    /// Fails if the number has more than 15 digits.
    pub fn with_remaining(mut self, remaining: u64) -> Result<Self, FieldError> {
        self.remaining = Some(writable(AVAILABLE_QUOTA.as_str(), remaining, 0).map_err(|problem| problem.of(FIELD))?);
        Ok(self)
    }

    /// Units left, if the server knows.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }
}

limit_item! {
    /// One item of a [`RateLimit`] field: what is left of the quota of one policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::fields::in_between::{LimitItem, RateLimit};
    ///
    /// // A key is a Token where it fits, else a Byte Sequence.
    /// let keyed = |key: &[u8]| RateLimit::new([LimitItem::new("a")?.with_remaining(1)?.show_partition_key(key)]);
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
    /// # Ok::<_, tower_quota::fields::FieldError>(())
    /// ```
    LimitItem of Token, remaining Option<u64>, reset "The time until the quota resets"
}

impl Member for LimitItem {
    const FIELD: &'static str = FIELD;
    const VERSION: Version = Version::Rfc8941;

    fn decode(item: Item) -> Result<Self, Problem> {
        let name = names::take_name(item.bare_item)?;
        let mut parameters = Parameters::new(item.params);
        Ok(Self {
            name,
            remaining: parameters.take_integer(AVAILABLE_QUOTA, 0)?,
            partition_key: names::take_partition_key(&mut parameters)?,
            reset: parameters.take_integer(EFFECTIVE_WINDOW, 0)?,
            extensions: parameters.into_extensions(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let mut item = list.bare_item(&self.name);
        item = write_integer(item, AVAILABLE_QUOTA, self.remaining);
        item = names::write_partition_key(item, self.partition_key());
        item = write_integer(item, EFFECTIVE_WINDOW, self.reset);
        let _ = self.extensions.write(item);
    }
}

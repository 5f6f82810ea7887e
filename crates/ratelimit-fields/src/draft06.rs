//! The dialect of draft-ietf-httpapi-ratelimit-headers-06, written as RFC 8941 says.
//!
//! Three fields with a number each, for the limit that is closest to being reached, and a list of policies that are
//! told apart by their quotas only. Names, units and partition keys have no place here. You want it for clients that
//! know the older drafts. `RateLimit-Limit`, `-Remaining` and `-Reset` may go together with a `RateLimit` field of
//! draft-11, but then `RateLimit-Policy` has to have the form of draft-11, since both dialects use that name.
//!
//! ```
//! use http::HeaderMap;
//! use ratelimit_fields::draft06::{RateLimitLimit, RateLimitRemaining, RateLimitReset};
//!
//! let mut headers = HeaderMap::new();
//! headers.insert(RateLimitLimit::NAME, RateLimitLimit::new(100)?.to_header_value());
//! headers.insert(RateLimitRemaining::NAME, RateLimitRemaining::new(60)?.to_header_value());
//! headers.insert(RateLimitReset::NAME, RateLimitReset::new(58)?.to_header_value());
//! assert_eq!(headers["ratelimit-remaining"], "60");
//! assert_eq!(RateLimitReset::read(&headers)?.map(RateLimitReset::get), Some(58));
//! # Ok::<_, ratelimit_fields::FieldError>(())
//! ```

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, ListSerializer, Version};

use super::{
    error::{FieldError, Problem},
    extension::{ExtensionValue, Extensions, Prefix, extension_methods},
    list::{List, Member},
    names::RATELIMIT_POLICY,
    number::{number_field, number_value},
    parameters::{Parameters, WINDOW},
    seconds,
    syntax::{in_range, integer, integer_item, read, writable},
};

number_field! {
    /// The field `RateLimit-Limit`: the quota of the limit that is closest to being reached.
    ///
    /// ```
    /// use ratelimit_fields::draft06::RateLimitLimit;
    ///
    /// assert_eq!(RateLimitLimit::parse(["100;acme-parameters=say-nothing"])?.get(), 100);
    /// assert!(RateLimitLimit::parse(["100, 100;w=60"]).is_err());
    ///
    /// let error = RateLimitLimit::new(1_000_000_000_000_000).unwrap_err();
    /// assert_eq!(error.to_string(), "RateLimit-Limit: it is 1000000000000000, outside 0..=999999999999999");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    RateLimitLimit spelled "RateLimit-Limit" named "ratelimit-limit"
}

number_field! {
    /// The field `RateLimit-Remaining`: units left of the limit that is closest to being reached.
    ///
    /// It promises nothing, and may be absent where the other two are present.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use ratelimit_fields::draft06::RateLimitRemaining;
    ///
    /// assert_eq!(RateLimitRemaining::parse(["99"])?.get(), 99);
    /// assert!(RateLimitRemaining::parse(["-1"]).is_err());
    ///
    /// let mut headers = HeaderMap::new();
    /// assert_eq!(RateLimitRemaining::read(&headers)?, None);
    /// headers.insert(RateLimitRemaining::NAME, RateLimitRemaining::new(60)?.to_header_value());
    /// assert_eq!(RateLimitRemaining::read(&headers)?, Some(RateLimitRemaining::new(60)?));
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    RateLimitRemaining spelled "RateLimit-Remaining" named "ratelimit-remaining"
}

number_field! {
    /// The field `RateLimit-Reset`: seconds until the quota of that limit resets, from the moment when the response is
    /// made.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_fields::draft06::RateLimitReset;
    ///
    /// assert_eq!(RateLimitReset::parse(["50"])?.wait(), Duration::from_secs(50));
    /// // Parts of a second are rounded up.
    /// assert_eq!(RateLimitReset::after(Duration::from_millis(200)).to_string(), "1");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    RateLimitReset spelled "RateLimit-Reset" named "ratelimit-reset"
}

impl RateLimitReset {
    /// A wait, rounded up to whole seconds of at most 15 digits.
    pub fn after(wait: Duration) -> Self {
        Self(seconds::rounded_up(wait))
    }

    /// The time until the quota resets, in whole seconds of at most 15 digits.
    pub fn wait(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

/// The field `RateLimit-Policy` with quotas in place of names.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft06::{PolicyItem, RateLimitPolicy};
///
/// let second = PolicyItem::new(10, Duration::from_secs(1))?;
/// let minute = PolicyItem::new(50, Duration::from_secs(60))?;
/// let field = RateLimitPolicy::new([second.clone(), minute])?;
/// assert_eq!(field.to_header_value(), "10;w=1, 50;w=60");
/// assert_eq!(field.items()[1].window(), Duration::from_secs(60));
///
/// // The quota is all that tells policies apart.
/// let error = RateLimitPolicy::new([second, PolicyItem::new(10, Duration::from_secs(60))?]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: quota 10 appears twice");
/// assert!(RateLimitPolicy::parse(["10;w=1, 10;w=60"]).is_err());
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(RateLimitPolicy::read(&headers)?, None);
/// headers.insert(RateLimitPolicy::NAME, field.to_header_value());
/// assert_eq!(RateLimitPolicy::read(&headers)?, Some(field));
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type RateLimitPolicy = List<PolicyItem>;

/// One policy of a [`RateLimitPolicy`]: a quota and a window.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_fields::draft06::{PolicyItem, RateLimitPolicy};
///
/// let policy = PolicyItem::new(12, Duration::from_secs(1))?
///     .with_extension("acme-burst", 1000)?
///     .with_unprefixed_extension("comment", false)?;
/// let names: Vec<&str> = policy.extensions().map(|(name, _)| name).collect();
/// assert_eq!(names, ["acme-burst", "comment"]);
/// assert_eq!(RateLimitPolicy::new([policy])?.to_string(), "12;w=1;acme-burst=1000;comment=?0");
///
/// let error = PolicyItem::new(12, Duration::ZERO).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: w is 0, outside 1..=999999999999999");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyItem {
    quota: u64,
    window: u64,
    extensions: Extensions,
}

impl PolicyItem {
    /// So many units for each window.
    ///
    /// Fails if the quota has more than 15 digits, or the window is not a number of whole seconds, at least one. A
    /// window of zero can be read, but says nothing.
    pub fn new(quota: u64, window: Duration) -> Result<Self, FieldError> {
        Ok(Self {
            quota: writable(Self::FIELD, "the quota", quota, 0)?,
            window: seconds::of_window(Self::FIELD, window)?,
            extensions: Extensions::default(),
        })
    }

    /// Units for each window, at most 15 digits.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// The time in which the quota may be used, in whole seconds.
    pub fn window(&self) -> Duration {
        Duration::from_secs(self.window)
    }

    extension_methods!();
}

impl Member for PolicyItem {
    const FIELD: &'static str = "RateLimit-Policy";
    const KNOWN: &'static [&'static str] = &["q", "qu", "w", "pk"];
    const NAME: HeaderName = RATELIMIT_POLICY;
    const VERSION: Version = Version::Rfc8941;

    fn decode(bare_item: BareItem, mut parameters: Parameters) -> Result<Self, Problem> {
        let BareItem::Integer(quota) = bare_item else {
            return Err(Problem::Item("an item with an Integer"));
        };
        Ok(Self {
            quota: in_range("the quota", quota, 0)?,
            window: parameters.require_integer(WINDOW, 0)?,
            extensions: parameters.into(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let item = list.bare_item(integer(self.quota));
        let item = item.parameter(WINDOW, integer(self.window));
        let _ = self.extensions.write(item);
    }

    fn check(members: &[Self]) -> Result<(), Problem> {
        let mut quotas: Vec<u64> = members.iter().map(Self::quota).collect();
        quotas.sort_unstable();
        match quotas.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Problem::Duplicate(pair[0])),
            None => Ok(()),
        }
    }
}

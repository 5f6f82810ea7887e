//! The dialect of draft-ietf-httpapi-ratelimit-headers-06, in the syntax of RFC 8941.
//!
//! Three fields with one number each report the limit closest to exhaustion, and a list the policies. The dialect has
//! no names, units or partition keys.
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
    closest::ClosestLimit,
    draft11,
    error::{FieldError, Problem},
    extension::{ExtensionValue, Extensions, extension_methods},
    hint_items::{LimitHint, PolicyHint},
    list::{List, Member},
    names::RATELIMIT_POLICY,
    number::{number_field, number_value},
    parameters::{Parameters, QUOTA, WINDOW},
    prepared::{Policies, PreparedPolicy},
    seconds,
    syntax::{in_range, insert, integer, integer_item, read, writable},
    typed::typed_headers,
    unit::Unit,
    wire::{Form, Wire, hints},
};

pub(super) const WIRE: Wire = Wire {
    begins: |first| matches!(first[0], b'-' | b'0'..=b'9'),
    limits: None,
    policies: Some(hints::<PolicyItem, _>),
    numbers: Some(read_numbers),
    prepare,
    form: Form::Closest {
        merge_limit: |headers, limit| merge_limit(headers, limit, limit.to_header_values()),
        merge_policies,
    },
};

typed_headers!(RateLimitLimit, RateLimitPolicy, RateLimitRemaining, RateLimitReset);

number_field! {
    /// The `RateLimit-Limit` field: the quota of the limit closest to exhaustion.
    ///
    /// ```
    /// use ratelimit_fields::draft06::RateLimitLimit;
    ///
    /// assert_eq!(RateLimitLimit::parse(["100;acme-parameters=say-nothing"])?.get(), 100);
    /// assert!(RateLimitLimit::parse(["100, 100;w=60"]).is_err());
    ///
    /// let error = RateLimitLimit::new(1_000_000_000_000_000).unwrap_err();
    /// assert_eq!(error.to_string(), "RateLimit-Limit: the value is 1000000000000000, outside 0..=999999999999999");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    RateLimitLimit spelled "RateLimit-Limit" named "ratelimit-limit"
}

number_field! {
    /// The `RateLimit-Remaining` field: the remaining units of the limit closest to exhaustion.
    ///
    /// Servers without counters omit the field.
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
    /// The `RateLimit-Reset` field: the seconds from the response until the limit closest to exhaustion resets.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_fields::draft06::RateLimitReset;
    ///
    /// assert_eq!(RateLimitReset::parse(["50"])?.wait(), Duration::from_secs(50));
    /// // Fractions of a second are rounded up.
    /// assert_eq!(RateLimitReset::after(Duration::from_millis(200)).to_string(), "1");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    RateLimitReset spelled "RateLimit-Reset" named "ratelimit-reset"
}

impl RateLimitReset {
    /// Creates the field, rounded up to whole seconds of at most 15 digits.
    pub fn after(wait: Duration) -> Self {
        Self(seconds::rounded_up(wait))
    }

    /// Returns the time until the quota resets.
    pub fn wait(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

/// The `RateLimit-Policy` field, with quotas instead of names.
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
/// // Policies are distinguished only by their quotas.
/// let error = RateLimitPolicy::new([second, PolicyItem::new(10, Duration::from_secs(60))?]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit-Policy: duplicate quota 10");
/// assert!(RateLimitPolicy::parse(["10;w=1, 10;w=60"]).is_err());
///
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(RateLimitPolicy::read(&headers)?, None);
/// headers.insert(RateLimitPolicy::NAME, field.to_header_value());
/// assert_eq!(RateLimitPolicy::read(&headers)?, Some(field));
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub type RateLimitPolicy = List<PolicyItem>;

/// A policy of a [`RateLimitPolicy`]: a quota and a window.
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
    /// Creates a policy. A window of zero can be parsed, but has no meaning.
    ///
    /// # Errors
    ///
    /// Returns an error if the quota has more than 15 digits, or if the window is not a whole number of seconds, at
    /// least 1.
    pub fn new(quota: u64, window: Duration) -> Result<Self, FieldError> {
        Ok(Self {
            quota: writable(Self::FIELD, "the quota", quota, 0)?,
            window: seconds::of_window(Self::FIELD, window)?,
            extensions: Extensions::default(),
        })
    }

    /// Returns the quota per window.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the window in whole seconds.
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

impl From<PolicyItem> for PolicyHint {
    fn from(item: PolicyItem) -> Self {
        Self {
            name: None,
            quota: item.quota(),
            unit: Unit::default(),
            window: Some(item.window()),
            partition_key: None,
        }
    }
}

/// Each of the three fields is valid without the others.
fn read_numbers(headers: &HeaderMap, ignored: &mut Vec<FieldError>) -> LimitHint {
    let quota = RateLimitLimit::read(headers).map_err(|error| ignored.push(error));
    let remaining = RateLimitRemaining::read(headers).map_err(|error| ignored.push(error));
    let reset = RateLimitReset::read(headers).map_err(|error| ignored.push(error));
    LimitHint {
        quota: quota.ok().flatten().map(RateLimitLimit::get),
        remaining: remaining.ok().flatten().map(RateLimitRemaining::get),
        reset: reset.ok().flatten().map(RateLimitReset::wait),
        ..LimitHint::default()
    }
}

/// `values` are `own`, serialized.
pub(super) fn merge_limit(headers: &mut HeaderMap, own: ClosestLimit, mut values: [HeaderValue; 3]) {
    let names = [RateLimitLimit::NAME, RateLimitRemaining::NAME, RateLimitReset::NAME];
    let read = || {
        RateLimitLimit::read(headers).ok()??;
        let remaining = RateLimitRemaining::read(headers).ok()??;
        let reset = RateLimitReset::read(headers).ok()??;
        Some((remaining.get(), reset.get()))
    };
    // Malformed fields, and a limit with unknown remaining units, are not changed.
    let is_present = names.iter().any(|name| headers.contains_key(name));
    let Some(merged) = own.merged(is_present.then(read)) else {
        return;
    };
    if merged.reset != own.reset {
        values = merged.to_header_values();
    }
    for (name, value) in names.into_iter().zip(values) {
        insert(headers, name, value);
    }
}

pub(super) fn merge_policies(headers: &mut HeaderMap, policies: HeaderValue) {
    // Policies with equal quotas are the same policy, so no quota is lowered.
    RateLimitPolicy::merge(headers, policies, (QUOTA, WINDOW), |inner, own| {
        inner.quota() == own.quota()
    });
}

pub(super) fn prepare(policies: &[PreparedPolicy]) -> Result<Policies, FieldError> {
    let mut items: Vec<PolicyItem> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for policy in policies {
        let (policy, counts_requests) = (&policy.item, policy.counts_requests());
        let Some(window) = policy.window().filter(|_| counts_requests) else {
            continue;
        };
        let same = items.iter().position(|item| item.quota() == policy.quota());
        match same {
            // A second closed policy adds no information.
            Some(_) if policy.quota() == 0 => continue,
            Some(same) => {
                let problem = Problem::DuplicateOf(policy.quota(), names[same].into());
                return Err(problem.of(PolicyItem::FIELD).of_policy(policy.name()));
            }
            None => {}
        }
        items.push(policy_item(policy, window).map_err(|error| error.of_policy(policy.name()))?);
        names.push(policy.name());
    }
    if items.is_empty() {
        return Ok(Policies::None);
    }
    RateLimitPolicy::new(items).map(|field| Policies::Same(field.to_header_value()))
}

fn policy_item(policy: &draft11::PolicyItem, window: Duration) -> Result<PolicyItem, FieldError> {
    let mut item = PolicyItem::new(policy.quota(), window)?;
    for (name, value) in policy.extensions() {
        item = item.with_unprefixed_extension(name, value.clone())?;
    }
    Ok(item)
}

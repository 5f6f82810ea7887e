use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};

use super::{
    draft11::{Draft11, RateLimit, RateLimitPolicy},
    list::{List, show_alone},
    named::{LimitItem, Named, PolicyItem},
    names::{RATELIMIT, RATELIMIT_POLICY},
    parameters::{AVAILABLE_QUOTA, EFFECTIVE_WINDOW, QUOTA, WINDOW},
    retry_after::RetryAfter,
    syntax::insert,
    unit::Unit,
    upstream,
    wire::OwnLists,
};

/// The fields of an intermediary, in the dialect of [draft-11](super::draft11): see [`merge_into`].
///
/// Report only limits that the intermediary enforces.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use ratelimit_fields::{LayerFields, RetryAfter, draft11::{PolicyItem, RateLimitPolicy}, merge_into};
///
/// let mut headers = HeaderMap::new();
/// merge_into(&mut headers, &LayerFields::new(), SystemTime::now());
/// assert!(headers.is_empty());
///
/// let policy = PolicyItem::new("edge", 60)?.with_window(Duration::from_secs(60))?;
/// let own = LayerFields::new()
///     .with_rate_limit_policy(&RateLimitPolicy::new([policy])?)
///     .with_retry_after(RetryAfter::after(Duration::from_secs(10)));
/// merge_into(&mut headers, &own, SystemTime::now());
/// assert_eq!(headers["ratelimit-policy"], r#""edge";q=60;w=60"#);
/// assert_eq!(headers["retry-after"], "10");
///
/// headers.insert("retry-after", "20".parse()?);
/// merge_into(&mut headers, &own, SystemTime::now());
/// assert_eq!(headers["retry-after"], "20");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LayerFields {
    rate_limit: Option<HeaderValue>,
    rate_limit_policy: Option<HeaderValue>,
    hidden_policy: Option<HeaderValue>,
    retry_after: Option<RetryAfter>,
}

impl LayerFields {
    /// Creates an empty set of fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the remaining units.
    #[must_use]
    pub fn with_rate_limit(mut self, field: &RateLimit) -> Self {
        self.rate_limit = Some(field.to_header_value());
        self
    }

    /// Sets the policies.
    #[must_use]
    pub fn with_rate_limit_policy(mut self, field: &RateLimitPolicy) -> Self {
        self.rate_limit_policy = Some(field.to_header_value());
        self
    }

    /// Sets policies that provide the units of the limits, but are not reported.
    ///
    /// A limit without a policy of its name, reported or not, counts requests.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use http::HeaderMap;
    /// use ratelimit_fields::{LayerFields, Unit, merge_into};
    /// use ratelimit_fields::draft11::{LimitItem, PolicyItem, RateLimit, RateLimitPolicy};
    ///
    /// let bytes = PolicyItem::new("daily", 5_000)?.with_unit(Unit::ContentBytes);
    /// let own = LayerFields::new()
    ///     .with_rate_limit(&RateLimit::new([LimitItem::new("daily", 40)?])?)
    ///     .with_hidden_policy(&RateLimitPolicy::new([bytes])?);
    ///
    /// // The inner limit counts requests, so it is not merged with the limit in bytes.
    /// let mut headers = HeaderMap::new();
    /// headers.insert("ratelimit", r#""daily";r=50"#.parse()?);
    /// merge_into(&mut headers, &own, SystemTime::now());
    /// assert_eq!(headers["ratelimit"], r#""daily";r=50, "daily";r=40"#);
    /// assert!(!headers.contains_key("ratelimit-policy"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_hidden_policy(mut self, field: &RateLimitPolicy) -> Self {
        self.hidden_policy = Some(field.to_header_value());
        self
    }

    /// Sets the time that the client should wait.
    #[must_use]
    pub fn with_retry_after(mut self, field: RetryAfter) -> Self {
        self.retry_after = Some(field);
        self
    }
}

/// Merges the fields of an intermediary into those of the service behind it.
///
/// No field of the inner service is removed or becomes more permissive. Dates are compared with `now`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use ratelimit_fields::{LayerFields, draft11::{LimitItem, RateLimit}, merge_into};
///
/// let item = |name| LimitItem::new(name, 4).map(|item| item.with_reset(Duration::from_secs(20)));
/// let own = LayerFields::new().with_rate_limit(&RateLimit::new([item("default")?, item("edge")?])?);
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""default";r=50;t=30"#.parse()?);
/// merge_into(&mut headers, &own, SystemTime::now());
/// assert_eq!(headers["ratelimit"], r#""default";r=4;t=30, "edge";r=4;t=20"#);
///
/// headers.insert("ratelimit", "limit=5, remaining=3, reset=60".parse()?);
/// headers.insert("ratelimit-policy", "5;w=60".parse()?);
/// merge_into(&mut headers, &own, SystemTime::now());
/// assert_eq!(headers["ratelimit"], r#""upstream";r=3;t=60, "default";r=4;t=20, "edge";r=4;t=20"#);
/// assert_eq!(headers["ratelimit-policy"], r#""upstream";q=5;w=60"#);
///
/// headers.insert("ratelimit", "???".parse()?);
/// merge_into(&mut headers, &own, SystemTime::now());
/// assert_eq!(headers["ratelimit"], "???");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Rules
///
/// - The intermediary's items are added after the inner ones.
/// - Two items with the same name, partition key and known quota unit become one item with all parameters of the inner
///   one. A limit has the lower remaining units and the later reset of the two; a policy has the lower quota and the
///   longer window. If the inner item has no reset or window, none is added.
/// - The unit of a limit comes from the policies of the same service: requests if no policy has the name of the limit.
/// - A dictionary of [draft-07](super::draft07) with remaining units, and its policies, become items named `upstream`.
/// - Any other field that is malformed or in another dialect is not changed, nor is a list that would exceed
///   [`MAX_LENGTH`](super::MAX_LENGTH) or [`MAX_ITEMS`](super::MAX_ITEMS).
/// - `Retry-After` is replaced only if the intermediary's wait is longer.
pub fn merge_into(headers: &mut HeaderMap, own: &LayerFields, now: SystemTime) {
    let lists = OwnLists {
        rate_limit: own.rate_limit.clone(),
        rate_limit_policy: own.rate_limit_policy.clone(),
        hidden_policy: own.hidden_policy.as_ref(),
        is_custom: &|_| false,
    };
    merge_lists::<Draft11>(headers, lists);
    if let Some(wait) = own.retry_after {
        merge_retry_after(headers, wait, now);
    }
}

pub(super) fn merge_lists<D: Named>(headers: &mut HeaderMap, own: OwnLists<'_>) {
    let has_own_limits = own.rate_limit.is_some();
    let limits = own.rate_limit.and_then(|limits| show_alone(headers, RATELIMIT, limits));
    // If `RateLimit` now contains only own limits, there is no dictionary to convert.
    if limits.is_some() || (!has_own_limits && own.rate_limit_policy.is_some()) {
        upstream::name_limit::<D>(headers);
    }
    // Limits are merged before policies, because the units come from the policies of each side.
    if let Some(limits) = limits {
        let own_policies = own.rate_limit_policy.iter().chain(own.hidden_policy);
        merge_limits::<D>(headers, &limits, own_policies, own.is_custom);
    }
    if let Some(policies) = own.rate_limit_policy {
        List::<PolicyItem<D>>::merge(headers, policies, (QUOTA, WINDOW), |inner, own| {
            inner.name() == own.name()
                && inner.partition_key() == own.partition_key()
                && inner.unit() == own.unit()
                && inner.unit().is_known()
        });
    }
}

fn merge_limits<'a, D: Named>(
    headers: &mut HeaderMap,
    limits: &HeaderValue,
    own_policies: impl Iterator<Item = &'a HeaderValue>,
    is_custom: &dyn Fn(&str) -> bool,
) {
    let inner_units = UnitsByName::<D>::parse(headers.get_all(RATELIMIT_POLICY));
    let own_units = UnitsByName::<D>::parse(own_policies);
    let parameters = (AVAILABLE_QUOTA, EFFECTIVE_WINDOW);
    List::<LimitItem<D>>::merge_present(headers, limits, parameters, |inner, own| {
        let name = own.name();
        inner.name() == name
            && inner.partition_key() == own.partition_key()
            && !is_custom(name)
            && inner_units
                .of(name)
                .is_some_and(|unit| own_units.of(name) == Some(unit))
    });
}

fn merge_retry_after(headers: &mut HeaderMap, own: RetryAfter, now: SystemTime) {
    match RetryAfter::read(headers) {
        Ok(Some(inner)) if inner.wait(now) >= own.wait(now) => {}
        Ok(_) => insert(headers, RetryAfter::NAME, own.to_header_value()),
        Err(_) => {}
    }
}

/// The policies of one side, or `None` if they are malformed.
struct UnitsByName<D: Named>(Option<Vec<PolicyItem<D>>>);

impl<D: Named> UnitsByName<D> {
    fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Self {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return Self(Some(Vec::new()));
        }
        Self(List::parse(lines).ok().map(List::into_items))
    }

    /// Returns `None` if the unit is unknown or ambiguous.
    fn of(&self, name: &str) -> Option<Unit> {
        let policies = self.0.as_ref()?.iter();
        let mut units = policies.filter(|policy| policy.name() == name).map(PolicyItem::unit);
        let unit = units.next().cloned().unwrap_or_default();
        (unit.is_known() && units.all(|other| *other == unit)).then_some(unit)
    }
}

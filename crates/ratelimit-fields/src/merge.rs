//! Merges an intermediary's fields into those of the service behind it.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue, header::Entry};
use sfv::{BareItem, Item, KeyRef};

use super::{
    draft06,
    draft11::{Draft11, RateLimit, RateLimitPolicy},
    list::{List, Member},
    named::{LimitItem, Named, PolicyItem},
    names::{RATELIMIT, RATELIMIT_POLICY},
    parameters::{AVAILABLE_QUOTA, EFFECTIVE_WINDOW, QUOTA, WINDOW},
    retry_after::RetryAfter,
    syntax::{insert, integer, to_header_value},
    unit::Unit,
    upstream,
};

/// The fields of an intermediary, in the dialect of [draft-11](super::draft11): see [`merge_into`].
///
/// Empty by default. The values are not checked, so report only limits that the intermediary enforces.
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
    /// Policies that provide the units of the limits, but are not reported.
    hidden_policy: Option<HeaderValue>,
    retry_after: Option<RetryAfter>,
}

impl LayerFields {
    /// Creates an empty set of fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the remaining units of the intermediary's limits. See [`merge_into`] for an example.
    #[must_use]
    pub fn with_rate_limit(mut self, field: &RateLimit) -> Self {
        self.rate_limit = Some(field.to_header_value());
        self
    }

    /// Sets the policies that the intermediary enforces.
    #[must_use]
    pub fn with_rate_limit_policy(mut self, field: &RateLimitPolicy) -> Self {
        self.rate_limit_policy = Some(field.to_header_value());
        self
    }

    /// Sets policies that provide the units of the limits, but are not reported.
    ///
    /// A limit without a policy of the same name, reported or not, counts requests.
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
/// Use this in a gateway or proxy. No field of the inner service is removed or becomes more permissive. Dates are
/// compared with `now`.
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
/// - Both lists become one list. An inner item whose name the intermediary does not use is kept with all its
///   parameters.
/// - Two items with the same name, partition key and quota unit become one item. A limit has the lower remaining units
///   and the later reset of the two; a policy has the lower quota and the longer window. If the inner item has no reset
///   or window, none is added.
/// - An inner item with an unknown unit is not changed, and the intermediary's item is added after it. The unit of a
///   limit comes from the policies of the same service: requests if no policy has the name of the limit.
/// - A dictionary of [draft-07](super::draft07) is converted into an item named `upstream`, because a field cannot mix
///   dialects. Its quota and policies are converted into items of `RateLimit-Policy`. A dictionary without remaining
///   units cannot be expressed in draft-11, and is not changed.
/// - Any other field that is malformed, or in a dialect other than draft-11, is not changed. A list that would exceed
///   [`MAX_LENGTH`](super::MAX_LENGTH) or [`MAX_ITEMS`](super::MAX_ITEMS) is not changed either.
/// - `Retry-After` is replaced only if the intermediary's wait is longer.
pub fn merge_into(headers: &mut HeaderMap, own: &LayerFields, now: SystemTime) {
    let lists = OwnLists {
        rate_limit: own.rate_limit.clone(),
        rate_limit_policy: own.rate_limit_policy.clone(),
        hidden_policy: own.hidden_policy.as_ref(),
    };
    merge_lists::<Draft11>(headers, lists, |_| false);
    if let Some(wait) = own.retry_after {
        merge_retry_after(headers, wait, now);
    }
}

pub(super) struct OwnLists<'a> {
    pub(super) rate_limit: Option<HeaderValue>,
    pub(super) rate_limit_policy: Option<HeaderValue>,
    pub(super) hidden_policy: Option<&'a HeaderValue>,
}

/// Merges the lists of a dialect with named items, but not `Retry-After`. `is_custom` identifies limits in a custom
/// unit, which no reported policy shows.
#[inline]
pub(super) fn merge_lists<D: Named>(headers: &mut HeaderMap, own: OwnLists<'_>, is_custom: impl Fn(&str) -> bool) {
    let has_own_limits = own.rate_limit.is_some();
    let limits = own.rate_limit.and_then(|limits| show_alone(headers, RATELIMIT, limits));
    // If `RateLimit` now contains only own limits, there is no dictionary to convert.
    if limits.is_some() || (!has_own_limits && own.rate_limit_policy.is_some()) {
        upstream::name_limit::<D>(headers);
    }
    // Limits are merged before policies, because the units come from the policies of each side.
    if let Some(limits) = limits {
        let own_policies = own.rate_limit_policy.iter().chain(own.hidden_policy);
        merge_limits::<D>(headers, &limits, own_policies, is_custom);
    }
    if let Some(policies) = own.rate_limit_policy {
        merge_policies(headers, policies, |inner: &PolicyItem<D>, own| {
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
    is_custom: impl Fn(&str) -> bool,
) {
    let inner_units = UnitsByName::<D>::parse(headers.get_all(RATELIMIT_POLICY));
    let own_units = UnitsByName::<D>::parse(own_policies);
    let parameters = (AVAILABLE_QUOTA, EFFECTIVE_WINDOW);
    merge_list(headers, RATELIMIT, limits, parameters, |inner: &LimitItem<D>, own| {
        let name = own.name();
        inner.name() == name
            && inner.partition_key() == own.partition_key()
            && !is_custom(name)
            && inner_units
                .of(name)
                .is_some_and(|unit| own_units.of(name) == Some(unit))
    });
}

/// Merges the policies of draft-06, which are distinguished only by their quotas.
pub(super) fn merge_draft06_policies(headers: &mut HeaderMap, policies: HeaderValue) {
    // Policies with equal quotas are the same policy, so no quota is lowered.
    merge_policies(headers, policies, |inner: &draft06::PolicyItem, own| {
        inner.quota() == own.quota()
    });
}

fn merge_retry_after(headers: &mut HeaderMap, own: RetryAfter, now: SystemTime) {
    match RetryAfter::read(headers) {
        Ok(Some(inner)) if inner.wait(now) >= own.wait(now) => {}
        Ok(_) => insert(headers, RetryAfter::NAME, own.to_header_value()),
        Err(_) => {}
    }
}

fn merge_policies<T: Member>(headers: &mut HeaderMap, policies: HeaderValue, is_same: impl Fn(&T, &T) -> bool) {
    if let Some(policies) = show_alone(headers, RATELIMIT_POLICY, policies) {
        merge_list(headers, RATELIMIT_POLICY, &policies, (QUOTA, WINDOW), is_same);
    }
}

/// Inserts `own` if the field is absent, and otherwise returns it.
fn show_alone(headers: &mut HeaderMap, name: HeaderName, own: HeaderValue) -> Option<HeaderValue> {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => {
            let _ = place.try_insert(own);
            None
        }
        Ok(Entry::Occupied(_)) => Some(own),
        // The map has reached its maximum size.
        Err(_) => None,
    }
}

/// Merges `own` into the field. Unchanged items are serialized as parsed. If `is_same` returns `true` for two items,
/// the merged item has the lower value of the first `tightened` parameter and the higher value of the second.
fn merge_list<T: Member>(
    headers: &mut HeaderMap,
    name: HeaderName,
    own: &HeaderValue,
    tightened: (&KeyRef, &KeyRef),
    is_same: impl Fn(&T, &T) -> bool,
) {
    let inner = List::<T>::parse_with_items(headers.get_all(&name));
    let (Ok((inner, mut items)), Ok((own, own_items))) = (inner, List::<T>::parse_with_items([own])) else {
        return;
    };
    let mut is_changed = false;
    for (own, own_item) in own.iter().zip(own_items) {
        let mut is_shown = false;
        for (inner, item) in inner.iter().zip(&mut items) {
            if is_same(inner, own) {
                is_changed |= tighten(item, &own_item, tightened);
                is_shown = true;
            }
        }
        if !is_shown {
            items.push(own_item);
            is_changed = true;
        }
    }
    if let Some(value) = to_header_value(&items).filter(|_| is_changed) {
        insert(headers, name, value);
    }
}

/// Lowers one parameter and raises another to the values of `own`. A parameter that `item` lacks is not added, because
/// a limit without a reset must not seem to reset.
fn tighten(item: &mut Item, own: &Item, (lowered, raised): (&KeyRef, &KeyRef)) -> bool {
    replace_if(item, own, lowered, |inner, own| own < inner) | replace_if(item, own, raised, |inner, own| own > inner)
}

fn replace_if(item: &mut Item, own: &Item, key: &KeyRef, is_stricter: impl Fn(i64, i64) -> bool) -> bool {
    let own = own.params.get(key.as_str()).and_then(BareItem::as_integer);
    let inner = item.params.get_mut(key.as_str());
    let (Some(own), Some(inner)) = (own, inner) else {
        return false;
    };
    let present = inner.as_integer().unwrap_or_else(|| integer(0));
    let is_replaced = is_stricter(present.into(), own.into());
    if is_replaced {
        *inner = own.into();
    }
    is_replaced
}

/// The policies of one side, which provide the units of its limits. `None` if they cannot be parsed.
struct UnitsByName<D: Named>(Option<Vec<PolicyItem<D>>>);

impl<D: Named> UnitsByName<D> {
    fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Self {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return Self(Some(Vec::new()));
        }
        Self(List::parse(lines).ok().map(List::into_items))
    }

    /// Returns the unit of a limit: requests if no policy has the name, or `None` if the unit is unknown or ambiguous.
    fn of(&self, name: &str) -> Option<Unit> {
        let policies = self.0.as_ref()?.iter();
        let mut units = policies.filter(|policy| policy.name() == name).map(PolicyItem::unit);
        let unit = units.next().cloned().unwrap_or_default();
        (unit.is_known() && units.all(|other| *other == unit)).then_some(unit)
    }
}

//! Fields beside those that another server has sent already.

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

/// The limits of an intermediary itself, in the dialect of [draft-11](super::draft11): see [`merge_into`].
///
/// Nothing, to begin with. Whether the numbers are true is up to you: show only limits that you enforce yourself.
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
    pub(super) rate_limit: Option<HeaderValue>,
    pub(super) rate_limit_policy: Option<HeaderValue>,
    /// Policies that say the units of limits without being shown.
    pub(super) hidden_policy: Option<HeaderValue>,
    pub(super) retry_after: Option<RetryAfter>,
}

impl LayerFields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// The remaining units of the intermediary's own limits: see [`merge_into`] for an example.
    #[must_use]
    pub fn with_rate_limit(mut self, field: &RateLimit) -> Self {
        self.rate_limit = Some(field.to_header_value());
        self
    }

    /// The policies that the intermediary enforces.
    #[must_use]
    pub fn with_rate_limit_policy(mut self, field: &RateLimitPolicy) -> Self {
        self.rate_limit_policy = Some(field.to_header_value());
        self
    }

    /// Policies that are not shown and only say in which units the limits are. Without them, and without policies that
    /// are shown, the unit is taken to be requests.
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
    /// // These are requests, which the lower number of bytes says nothing about.
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

    /// The time that the client should wait.
    #[must_use]
    pub fn with_retry_after(mut self, field: RetryAfter) -> Self {
        self.retry_after = Some(field);
        self
    }
}

/// Adds the fields of an intermediary to those that the service behind it has sent.
///
/// You want it in a gateway or proxy, or wherever one service limits what another one limits already. What the other
/// service has said is never removed, and never made to look more permissive:
///
/// - The lists are joined into one; items of other names stay as they are, with all their parameters.
/// - Where both sides have an item with the same name, partition key and quota unit, one item is shown, with the lower
///   numbers of units and the later reset (or the longer window). A reset or window that the other service has not sent
///   is not added to its item. An item whose unit is not known is never altered: it is shown beside the own one. The
///   unit of a limit is told by the policies of its side, and is requests where none has its name.
/// - The dictionary of [draft-07](super::draft07) is written again as an item named `upstream`, since one field cannot
///   have two dialects; its quota and its policies go with it to `RateLimit-Policy`. One that says nothing about the
///   remaining units has no form in draft-11, and stays.
/// - Any other field that is malformed, or in another dialect than draft-11, is neither altered nor added to: readers
///   ignore it as a whole, and would ignore what is added. The same goes for a list that would get longer than readers
///   accept.
/// - `Retry-After` is only lengthened. `now` is what dates in it are compared with.
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
pub fn merge_into(headers: &mut HeaderMap, own: &LayerFields, now: SystemTime) {
    merge_lists::<Draft11>(headers, own.clone(), |_| false);
    if let Some(wait) = own.retry_after {
        merge_retry_after(headers, wait, now);
    }
}

/// Merges the lists of a dialect with named items; `Retry-After` stays as it is. Own limits in a custom unit have no policy that
/// shows it.
pub(super) fn merge_lists<D: Named>(headers: &mut HeaderMap, own: LayerFields, is_custom: impl Fn(&str) -> bool) {
    let has_own_limits = own.rate_limit.is_some();
    let limits = own.rate_limit.and_then(|limits| show_alone(headers, RATELIMIT, limits));
    // Own limits that are shown alone are no dictionary.
    if limits.is_some() || (!has_own_limits && own.rate_limit_policy.is_some()) {
        upstream::name_limit::<D>(headers);
    }
    // The units of limits are told by the policies, and those must not be joined yet.
    if let Some(limits) = limits {
        let own_policies = own.rate_limit_policy.iter().chain(&own.hidden_policy);
        let inner_units = UnitsByName::<D>::parse(headers.get_all(RATELIMIT_POLICY));
        let own_units = UnitsByName::<D>::parse(own_policies);
        let parameters = (AVAILABLE_QUOTA, EFFECTIVE_WINDOW);
        merge_list(headers, RATELIMIT, &limits, parameters, |inner: &LimitItem<D>, own| {
            let name = own.name();
            inner.name() == name
                && inner.partition_key() == own.partition_key()
                && !is_custom(name)
                && inner_units
                    .of(name)
                    .is_some_and(|unit| own_units.of(name) == Some(unit))
        });
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

/// The policies of draft-06, which are told apart by their quotas.
pub(super) fn merge_draft06_policies(headers: &mut HeaderMap, policies: HeaderValue) {
    // Equal quotas are the same policy, so that none is lower.
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

/// Shows the own list as it is, unless the service behind shows one: then the own one is returned.
fn show_alone(headers: &mut HeaderMap, name: HeaderName, own: HeaderValue) -> Option<HeaderValue> {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => {
            let _ = place.try_insert(own);
            None
        }
        Ok(Entry::Occupied(_)) => Some(own),
        // The map is full to the brim.
        Err(_) => None,
    }
}

/// Joins the lists. An item that is not altered is written as it was parsed. Items are the same if both are about one
/// quota, as far as their text shows; of the parameters, the lower value of the first is shown, and the greater of the
/// second.
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

/// Lowers one parameter and raises another to those of the own item. One that the other server has not sent stays
/// absent: a limit without a reset does not come to reset.
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

/// The units that the policies of one side are in; nothing if they cannot be read.
struct UnitsByName<D: Named>(Option<Vec<PolicyItem<D>>>);

impl<D: Named> UnitsByName<D> {
    fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Self {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return Self(Some(Vec::new()));
        }
        Self(List::parse(lines).ok().map(List::into_items))
    }

    /// The unit of a limit: requests, where no policy says otherwise; nothing if it is not known.
    fn of(&self, name: &str) -> Option<Unit> {
        let policies = self.0.as_ref()?.iter();
        let mut units = policies.filter(|policy| policy.name() == name).map(PolicyItem::unit);
        let unit = units.next().cloned().unwrap_or_default();
        (unit.is_known() && units.all(|other| *other == unit)).then_some(unit)
    }
}

//! Conversion of an upstream server's draft-07 fields into lists with names.

use http::{HeaderMap, HeaderValue};
use sfv::{BareItem, Item, KeyRef};

use super::{
    draft06, draft07,
    named::Named,
    names::{RATELIMIT, RATELIMIT_POLICY},
    parameters::{AVAILABLE_QUOTA, EFFECTIVE_WINDOW, QUOTA, WINDOW},
    syntax::{insert, integer, to_header_value},
};

const UPSTREAM: &str = "upstream";

/// A field cannot mix dialects. Changes nothing if there is no dictionary or it lacks the remaining units.
pub(super) fn name_limit<D: Named>(headers: &mut HeaderMap) {
    let Ok(Some(limit)) = draft07::RateLimit::read(headers) else {
        return;
    };
    let item = limit.remaining().and_then(|remaining| {
        let numbers = [
            (AVAILABLE_QUOTA, remaining),
            (EFFECTIVE_WINDOW, limit.reset().as_secs()),
        ];
        named::<D>(UPSTREAM.to_owned(), &numbers)
    });
    let Some(value) = item.and_then(|item| to_header_value(&[item])) else {
        return;
    };
    if let Some(policies) = name_policies::<D>(headers, limit.limit()) {
        insert(headers, RATELIMIT_POLICY, policies);
    }
    insert(headers, RATELIMIT, value);
}

/// `upstream` for the policy of the limit, and `upstream-` with the quota for the others. Returns `None` if they are
/// malformed or already have names.
fn name_policies<D: Named>(headers: &HeaderMap, limit: u64) -> Option<HeaderValue> {
    let mut named_items = Vec::new();
    if headers.contains_key(RATELIMIT_POLICY) {
        let lines = headers.get_all(RATELIMIT_POLICY);
        let (policies, items) = draft06::RateLimitPolicy::parse_with_items(lines).ok()?;
        for (policy, item) in policies.iter().zip(items) {
            named_items.push(name_policy::<D>(policy, item, limit)?);
        }
        if policies.iter().any(|policy| policy.quota() == limit) {
            return to_header_value(&named_items);
        }
    }
    // No policy has the quota of the limit, so add one.
    named_items.push(named::<D>(UPSTREAM.to_owned(), &[(QUOTA, limit)])?);
    to_header_value(&named_items)
}

fn name_policy<D: Named>(policy: &draft06::PolicyItem, item: Item, limit: u64) -> Option<Item> {
    let (quota, window) = (policy.quota(), policy.window().as_secs());
    let name = match quota == limit {
        true => UPSTREAM.to_owned(),
        false => format!("{UPSTREAM}-{quota}"),
    };
    // A window of zero has no meaning.
    let numbers = [(QUOTA, quota), (WINDOW, window)];
    let mut named = named::<D>(name, if window > 0 { &numbers } else { &numbers[..1] })?;
    // A parameter that was a comment must not become a standard parameter.
    let comments = item.params.into_iter();
    let comments = comments.filter(|(key, _)| !D::KNOWN_OF_POLICY.contains(&key.as_str()));
    named.params.extend(comments);
    Some(named)
}

fn named<D: Named>(name: String, numbers: &[(&KeyRef, u64)]) -> Option<Item> {
    let name = D::Name::try_from(name).ok()?;
    let mut item = Item::new(name);
    for (key, number) in numbers {
        let number = BareItem::Integer(integer(*number));
        item.params.insert((*key).to_owned(), number);
    }
    Some(item)
}

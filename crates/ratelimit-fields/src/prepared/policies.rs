use std::{fmt, sync::Arc};

use http::HeaderValue;

use super::{
    super::{
        draft11,
        error::FieldError,
        list::List,
        named::{Named, PolicyItem},
    },
    policy::PreparedPolicy,
    report::KeyOf,
};

#[derive(Clone, Default)]
pub(crate) enum Policies {
    #[default]
    None,
    Same(HeaderValue),
    /// With the caller's partition key.
    ByKey(Arc<ValueOf>),
}

type ValueOf = dyn Fn(&KeyOf<'_>) -> HeaderValue + Send + Sync;

impl Policies {
    pub(super) fn value(&self, key: &KeyOf<'_>) -> Option<HeaderValue> {
        match self {
            Self::None => None,
            Self::Same(value) => Some(value.clone()),
            Self::ByKey(value) => Some(value(key)),
        }
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Same(value) => value.fmt(f),
            Self::ByKey(_) => f.write_str("ByKey(..)"),
        }
    }
}

pub(crate) fn named_policies<D: Named>(policies: &[PreparedPolicy]) -> Result<Policies, FieldError> {
    let mut items = Vec::new();
    for policy in policies.iter().filter(|policy| !policy.has_custom_unit) {
        let item = named_item::<D>(&policy.item).map_err(|error| error.of_policy(policy.item.name()))?;
        items.push((item, policy.shows_partition_key));
    }
    if items.is_empty() {
        return Ok(Policies::None);
    }
    let shows_keys = items.iter().any(|(_, shows_key)| *shows_key);
    let field = move |key: &KeyOf<'_>| {
        let items = items.iter().cloned().map(|(item, shows_key)| {
            let key = shows_key.then(|| key(item.name())).flatten();
            match key {
                Some(key) => item.with_partition_key(key),
                None => item,
            }
        });
        List::new(items).map(|field| field.to_header_value())
    };
    if shows_keys {
        // Fails if keys of the expected length do not fit. If longer keys do not fit later, only the keys are omitted.
        field(&|_| Some(vec![0; MAX_KEY_LENGTH]))?;
        let plain = field(&|_| None)?;
        return Ok(Policies::ByKey(Arc::new(move |key| {
            field(key).unwrap_or_else(|_| plain.clone())
        })));
    }
    field(&|_| None).map(Policies::Same)
}

/// The length of partition keys assumed when `Prepared::new` checks the length of the field.
const MAX_KEY_LENGTH: usize = 12;

fn named_item<D: Named>(policy: &draft11::PolicyItem) -> Result<PolicyItem<D>, FieldError> {
    let mut item = PolicyItem::new(policy.name(), policy.quota())?.with_unit(policy.unit().clone());
    if let Some(window) = policy.window() {
        item = item.with_window(window)?;
    }
    for (name, value) in policy.extensions() {
        item = item.with_unprefixed_extension(name, value.clone())?;
    }
    Ok(item)
}

//! The part of the fields that follows from the configuration alone, written once: `RateLimit-Policy`, and the beginning of
//! each member of `RateLimit`.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderValue;

use super::{Form, ResponseFields, limit_members::LimitMembers};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    fields::{FieldError, List, Named, PolicyItem, Unit, draft06, draft11::Draft11, in_between::EditorsCopy},
    policy::{PolicySet, QuotaPolicy, QuotaUnit},
    sync::per_thread::CachePadded,
};

/// The fields of a set of policies, as far as they are known in advance.
#[derive(Debug)]
pub(crate) struct PolicyFields {
    shown: Shown,
    /// The policies in a form that says their units where they are not shown.
    pub(super) units: Option<HeaderValue>,
    pub(super) members: Arc<LimitMembers>,
}

#[derive(Clone, Default)]
enum Shown {
    #[default]
    Nothing,
    Same(HeaderValue),
    /// It holds the caller's partition key.
    ByKey(Arc<ValueOf>),
}

/// The key of the partition that a policy of this name counts for, if it counts for any.
pub(super) type KeyOf<'a> = dyn Fn(&str) -> Option<[u8; 12]> + 'a;

type ValueOf = dyn Fn(&KeyOf<'_>) -> HeaderValue + Send + Sync;

impl PolicyFields {
    /// The same, with values of which clones are counted apart, for another lane.
    pub(crate) fn with_own_count(&self) -> Self {
        let shown = match &self.shown {
            Shown::Same(value) => Shown::Same(with_own_count(value)),
            shown => shown.clone(),
        };
        let units = self.units.as_ref().map(with_own_count);
        let members = Arc::clone(&self.members);
        Self { shown, units, members }
    }

    /// The value of `RateLimit-Policy` for the caller who has these keys, by the names of policies.
    pub(super) fn value(&self, key: &KeyOf<'_>) -> Option<HeaderValue> {
        match &self.shown {
            Shown::Nothing => None,
            Shown::Same(value) => Some(value.clone()),
            Shown::ByKey(value) => Some(value(key)),
        }
    }
}

fn with_own_count(value: &HeaderValue) -> HeaderValue {
    let bytes = Bytes::from_owner(CachePadded(value.as_bytes().to_vec()));
    HeaderValue::from_maybe_shared(bytes).expect("it was a value before")
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Same(value) => value.fmt(f),
            Self::ByKey(_) => f.write_str("ByKey(..)"),
        }
    }
}

impl ResponseFields {
    /// Returns `true` if the dialect has a place for them.
    pub(crate) fn can_show_partition_keys(&self) -> bool {
        matches!(self.form, Form::Draft11 | Form::EditorsCopy)
    }

    /// Writes what is known already, and finds what the dialect cannot say.
    pub(crate) fn prepare(&self, policies: &PolicySet) -> Result<PolicyFields, ConfigError> {
        let visible = || {
            let policies = policies.iter().map(|policy| policy.policy());
            policies.filter(|policy| !policy.is_hidden())
        };
        let shown = match self.form {
            Form::Draft06 | Form::Draft07 => draft06_policies(visible().filter(|policy| has_one_number(policy)))?,
            Form::Draft11 => named_policies::<Draft11>(visible())?,
            Form::EditorsCopy => named_policies::<EditorsCopy>(visible())?,
            Form::Legacy(_) | Form::None => Shown::Nothing,
        };
        let members = match self.form {
            Form::Draft11 | Form::EditorsCopy => LimitMembers::new(self.form, visible(), unsayable)?,
            Form::Draft06 | Form::Draft07 | Form::Legacy(_) | Form::None => LimitMembers::default(),
        };
        let mut fields = PolicyFields {
            shown,
            units: None,
            members: Arc::new(members),
        };
        if self.without_policies {
            fields.units = fields.value(&|_| None);
            fields.shown = Shown::Nothing;
        }
        Ok(fields)
    }
}

fn named_policies<'a, D: Named>(policies: impl Iterator<Item = &'a QuotaPolicy>) -> Result<Shown, ConfigError> {
    let mut items = Vec::new();
    for policy in policies {
        let Some(unit) = policy.unit().registered() else {
            continue;
        };
        let item = named_item::<D>(policy, unit).map_err(|error| unsayable(policy, &error))?;
        items.push((item, policy.shows_partition_key));
    }
    if items.is_empty() {
        return Ok(Shown::Nothing);
    }
    let shows_keys = items.iter().any(|(_, shows_key)| *shows_key);
    let field = move |key: &KeyOf<'_>| {
        let items = items.iter().cloned().map(|(item, shows_key)| {
            let key = key(item.name()).filter(|_| shows_key);
            match key {
                Some(key) => item.with_partition_key(key),
                None => item,
            }
        });
        List::new(items).map(|field| field.to_header_value())
    };
    let longest = field(&|_| Some([0; 12])).map_err(|error| too_much(&error))?;
    Ok(match shows_keys {
        true => Shown::ByKey(Arc::new(move |key| {
            field(key).expect("a field of this length was made before")
        })),
        false => Shown::Same(longest),
    })
}

fn named_item<D: Named>(policy: &QuotaPolicy, unit: Unit) -> Result<PolicyItem<D>, FieldError> {
    let mut item = PolicyItem::new(policy.name(), policy.quota())?.with_unit(unit);
    if let Some(window) = policy.window() {
        item = item.with_window(window)?;
    }
    for (name, value) in &policy.extensions {
        item = item.with_extension(name, value.clone())?;
    }
    Ok(item)
}

fn draft06_item(policy: &QuotaPolicy, window: Duration) -> Result<draft06::PolicyItem, FieldError> {
    let mut item = draft06::PolicyItem::new(policy.quota(), window)?;
    for (name, value) in &policy.extensions {
        item = item.with_extension(name, value.clone())?;
    }
    Ok(item)
}

fn draft06_policies<'a>(policies: impl Iterator<Item = &'a QuotaPolicy>) -> Result<Shown, ConfigError> {
    let mut items: Vec<draft06::PolicyItem> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for policy in policies {
        let Some(window) = policy.window() else {
            continue;
        };
        // A second policy without quota adds nothing.
        if policy.is_closed() && items.iter().any(|item| item.quota() == 0) {
            continue;
        }
        if let Some(same) = items.iter().position(|item| item.quota() == policy.quota()) {
            let message = format!(
                "policy {:?}: its quota {} is that of policy {:?}; this dialect has nothing else to tell them apart",
                policy.name(),
                policy.quota(),
                names[same],
            );
            return Err(ConfigError::new(ConfigErrorKind::ResponseFields, message));
        }
        items.push(draft06_item(policy, window).map_err(|error| unsayable(policy, &error))?);
        names.push(policy.name());
    }
    if items.is_empty() {
        return Ok(Shown::Nothing);
    }
    let field = draft06::RateLimitPolicy::new(items).map_err(|error| too_much(&error))?;
    Ok(Shown::Same(field.to_header_value()))
}

/// Returns `true` if a dialect with numbers only can show the policy: readers take them for requests.
pub(super) fn has_one_number(policy: &QuotaPolicy) -> bool {
    policy.unit() == QuotaUnit::Requests
}

fn unsayable(policy: &QuotaPolicy, error: &FieldError) -> ConfigError {
    let message = format!("policy {:?}: {error}", policy.name());
    ConfigError::new(ConfigErrorKind::ResponseFields, message).with_source(error.clone())
}

fn too_much(error: &FieldError) -> ConfigError {
    ConfigError::new(ConfigErrorKind::ResponseFields, format!("policies: {error}")).with_source(error.clone())
}

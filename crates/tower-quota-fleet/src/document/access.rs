use std::fmt;

use serde::{Deserialize, Serialize, de};

use super::field;
use crate::date::date;
use tower_quota::{Access, AccessRules, ConfigError, PartitionKey};

/// An access list entry of a fleet, for a network or a partition key.
///
/// ```
/// use tower_quota::Access;
/// use tower_quota_fleet::AccessEntry;
///
/// // Expires in ten minutes.
/// let entry = AccessEntry::network("203.0.113.9", Access::Block).with_expiry(1_795_378_641);
/// assert_eq!((entry.as_network(), entry.expiry()), (Some("203.0.113.9"), Some(1_795_378_641)));
///
/// let entry = AccessEntry::key("x-user-id", "mallory", Access::Block);
/// assert_eq!(entry.as_key(), Some(("x-user-id", "mallory")));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "EntryForm")]
pub struct AccessEntry(EntryForm);

/// Deserialization checks that exactly one of `network` and `key` is set.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a rule of `access`: a map with `network` or `key`, and `access`"
)]
struct EntryForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<KeyForm>,
    access: Access,
    #[serde(default, deserialize_with = "field::until", skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "key: a map with `kind` and `value`")]
struct KeyForm {
    kind: String,
    value: String,
}

impl AccessEntry {
    /// Creates an entry for an address or a [network](AccessRules::set_network) such as `"192.0.2.0/24"`.
    pub fn network(network: impl Into<String>, access: Access) -> Self {
        Self::new(Some(network.into()), None, access)
    }

    /// Creates an entry for callers with this main key, such as one of [`key::header`](tower_quota::key::header).
    pub fn key(kind: impl Into<String>, value: impl Into<String>, access: Access) -> Self {
        let (kind, value) = (kind.into(), value.into());
        Self::new(None, Some(KeyForm { kind, value }), access)
    }

    fn new(network: Option<String>, key: Option<KeyForm>, access: Access) -> Self {
        Self(EntryForm {
            network,
            key,
            access,
            until: None,
        })
    }

    /// Sets the expiry in Unix seconds, by the clock of each instance.
    #[must_use]
    pub fn with_expiry(mut self, until: u64) -> Self {
        self.0.until = Some(until);
        self
    }

    /// Returns the network, or `None` for a key.
    pub fn as_network(&self) -> Option<&str> {
        self.0.network.as_deref()
    }

    /// Returns the kind and value of the key, or `None` for a network.
    pub fn as_key(&self) -> Option<(&str, &str)> {
        let key = self.0.key.as_ref()?;
        Some((&key.kind, &key.value))
    }

    /// Returns the access of matching callers.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Returns the expiry in Unix seconds.
    pub fn expiry(&self) -> Option<u64> {
        self.0.until
    }

    pub(crate) fn holds_at(&self, now: u64) -> bool {
        self.0.until.is_none_or(|until| now < until)
    }

    pub(crate) fn is_about_same(&self, other: &Self) -> bool {
        match (self.as_network(), other.as_network()) {
            (Some(one), Some(other)) => is_same_network(one, other),
            (None, None) => self.as_key() == other.as_key(),
            _ => false,
        }
    }

    /// For example, `block 203.0.113.9`.
    pub(crate) fn subject(&self) -> String {
        let access = self.access();
        match self.as_key() {
            Some((kind, value)) => format!("{access} {kind} {value:?}"),
            None => format!("{access} {}", self.as_network().unwrap_or_default()),
        }
    }
}

pub(crate) fn access_rules(entries: &[AccessEntry], now: u64) -> Result<AccessRules, ConfigError> {
    let mut rules = AccessRules::new();
    for entry in entries.iter().filter(|entry| entry.holds_at(now)) {
        match entry.as_key() {
            Some((kind, value)) => rules.set_key(PartitionKey::new(kind, value), entry.access()),
            None => rules.set_network(entry.as_network().unwrap_or_default(), entry.access()),
        }?;
    }
    Ok(rules)
}

pub(crate) fn is_same_network(one: &str, other: &str) -> bool {
    let mut rules = AccessRules::new();
    one == other
        || (rules.set_network(one, Access::Limit).is_ok() && rules.remove_network(other).is_ok_and(|removed| removed))
}

impl fmt::Debug for AccessEntry {
    /// Omits what may identify a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessEntry")
            .field("kind", &self.as_key().map_or("network", |(kind, _)| kind))
            .field("access", &self.access())
            .field("until", &self.expiry())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for AccessEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subject())?;
        match self.0.until {
            Some(until) => write!(f, " until {}", date(until)),
            None => Ok(()),
        }
    }
}

impl TryFrom<EntryForm> for AccessEntry {
    type Error = de::value::Error;

    fn try_from(form: EntryForm) -> Result<Self, Self::Error> {
        match (&form.network, &form.key) {
            (Some(_), None) | (None, Some(_)) => Ok(Self(form)),
            _ => Err(de::Error::custom("access: a rule requires either `network` or `key`")),
        }
    }
}

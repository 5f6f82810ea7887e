//! The rules of a fleet's access list.

use std::fmt;

use serde::{Deserialize, Serialize, de};

use super::field;
use crate::date::date;
use tower_quota::{Access, AccessRules, ConfigError, PartitionKey};

/// A rule of the access list of a [`RulesDocument`](super::RulesDocument), about a network or a partition key.
///
/// ```
/// use tower_quota::{Access};
/// use tower_quota_fleet::AccessEntry;
///
/// // For ten minutes.
/// let entry = AccessEntry::network("203.0.113.9", Access::Block).with_expiry(1_795_378_641);
/// assert_eq!((entry.as_network(), entry.expiry()), (Some("203.0.113.9"), Some(1_795_378_641)));
///
/// let entry = AccessEntry::key("x-user-id", "mallory", Access::Block);
/// assert_eq!(entry.as_key(), Some(("x-user-id", "mallory")));
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "EntryForm")]
pub struct AccessEntry(EntryForm);

/// Exactly one of `network` and `key` is there, which is checked when it is read.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
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

#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "key: a map with `kind` and `value`")]
struct KeyForm {
    kind: String,
    value: String,
}

impl AccessEntry {
    /// A rule about a network, `"192.0.2.0/24"`, or an address. See [`AccessRules::set_network`].
    pub fn network(network: impl Into<String>, access: Access) -> Self {
        Self::new(Some(network.into()), None, access)
    }

    /// A rule about the callers whose main key is [`PartitionKey::new(kind, value)`](PartitionKey::new), as that of
    /// [`key::header`](tower_quota::key::header) is.
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

    /// Ends the rule at this time, in seconds since the Unix epoch, by the clock of each instance. An instance whose
    /// [`RulesFollower`](crate::RulesFollower) was dropped before then keeps the rule.
    #[must_use]
    pub fn with_expiry(mut self, until: u64) -> Self {
        self.0.until = Some(until);
        self
    }

    /// The network, of a rule about one.
    pub fn as_network(&self) -> Option<&str> {
        self.0.network.as_deref()
    }

    /// The kind and the value of the key, of a rule about one.
    pub fn as_key(&self) -> Option<(&str, &str)> {
        let key = self.0.key.as_ref()?;
        Some((&key.kind, &key.value))
    }

    /// The answer for whom the rule is about.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The time at which it ends, in seconds since the Unix epoch.
    pub fn expiry(&self) -> Option<u64> {
        self.0.until
    }

    pub(crate) fn holds_at(&self, now: u64) -> bool {
        self.0.until.is_none_or(|until| now < until)
    }

    /// Returns `true` if the other entry is for the same network or key.
    pub(crate) fn is_about_same(&self, other: &Self) -> bool {
        match (self.as_network(), other.as_network()) {
            (Some(one), Some(other)) => is_same_network(one, other),
            (None, None) => self.as_key() == other.as_key(),
            _ => false,
        }
    }

    /// The access and for whom.
    pub(crate) fn subject(&self) -> String {
        let access = self.access();
        match self.as_key() {
            Some((kind, value)) => format!("{access} {kind} {value:?}"),
            None => format!("{access} {}", self.as_network().unwrap_or_default()),
        }
    }
}

/// The rules of the entries that apply at `now`, in seconds since the Unix epoch.
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

/// Networks can be written in several ways, which the rules of an access list do not tell apart.
pub(crate) fn is_same_network(one: &str, other: &str) -> bool {
    let mut rules = AccessRules::new();
    one == other
        || (rules.set_network(one, Access::Limit).is_ok() && rules.remove_network(other).is_ok_and(|removed| removed))
}

impl fmt::Debug for AccessEntry {
    /// Shows no network and no value of a key, which may identify a person, as [`AccessRules`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessEntry")
            .field("kind", &self.as_key().map_or("network", |(kind, _)| kind))
            .field("access", &self.access())
            .field("until", &self.expiry())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for AccessEntry {
    /// Such as `block 203.0.113.9 until Thu, 01 Jan 2026 00:00:00 GMT`.
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
            _ => Err(de::Error::custom("access: a rule needs either `network` or `key`")),
        }
    }
}

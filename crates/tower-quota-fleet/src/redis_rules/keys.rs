//! Names of the keys of a rule set.

use crate::error::{FleetError, FleetErrorKind};

/// The keys of a rule set: `rules:{prefix name}:…`, all in one slot of a cluster.
///
/// They do not begin with the prefix of the store, so that a user whose ACL is for the keys of the store (`~quota:*`) cannot
/// change rules.
pub(crate) struct RulesKeys {
    /// A string: the bytes of the document.
    pub(crate) document: String,
    /// A string: the version of the document.
    pub(crate) head: String,
    /// A list: the last documents that were published, the newest one first.
    pub(crate) history: String,
    /// A sorted set: the reports of instances, by the server's time in milliseconds.
    pub(crate) instances: String,
    /// A string: the last order of the kill switch, as JSON.
    pub(crate) switch: String,
    /// A string: the number and the digest of the access list.
    pub(crate) access_head: String,
    /// A string: the entries of the access list, as JSON.
    pub(crate) access: String,
    /// A list: the last changes of rules, switch and access list, the newest one first.
    pub(crate) changes: String,
}

pub(crate) fn check_name(of: &str, name: &str) -> Result<(), FleetError> {
    let is_usual = |byte| matches!(byte, b'!'..=b'~') && !matches!(byte, b'{' | b'}');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_usual) {
        return Ok(());
    }
    let message = format!("{of} {name:?}: a name has 1 to 64 printable ASCII characters other than spaces and braces");
    Err(FleetError::new(FleetErrorKind::Config, message))
}

impl RulesKeys {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self, FleetError> {
        check_name("rule set", name)?;
        let key = |kind| format!("rules:{{{prefix}{name}}}:{kind}");
        Ok(Self {
            document: key("document"),
            head: key("head"),
            history: key("history"),
            instances: key("instances"),
            switch: key("switch"),
            access_head: key("access_head"),
            access: key("access"),
            changes: key("changes"),
        })
    }
}

use crate::error::{FleetError, FleetErrorKind};

/// Named `rules:{prefix name}:…`, so that all keys are in one slot of a cluster.
///
/// The names do not begin with the prefix of the store, so that a user with access to the store's keys (`~quota:*`)
/// cannot change rules.
pub(crate) struct RulesKeys {
    /// String: the document.
    pub(crate) document: String,
    /// String: the version of the document.
    pub(crate) head: String,
    /// List: the last published documents, newest first.
    pub(crate) history: String,
    /// Sorted set: the reports of instances, scored by the server's time in milliseconds.
    pub(crate) instances: String,
    /// String: the last order of the kill switch, as JSON.
    pub(crate) switch: String,
    /// String: the number and the digest of the access list.
    pub(crate) access_head: String,
    /// String: the entries of the access list, as JSON.
    pub(crate) access: String,
    /// List: the last changes of rules, switch and access list, newest first.
    pub(crate) changes: String,
}

pub(crate) fn check_name(of: &str, name: &str) -> Result<(), FleetError> {
    let is_usual = |byte| matches!(byte, b'!'..=b'~') && !matches!(byte, b'{' | b'}');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_usual) {
        return Ok(());
    }
    let needed = "name must have 1 to 64 printable ASCII characters without spaces and braces";
    let message = format!("{of} {name:?}: {needed}");
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

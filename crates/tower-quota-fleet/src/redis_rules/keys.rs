use crate::error::{FleetError, FleetErrorKind};

/// Named `rules:{prefix name}:…`, which is one slot of a cluster. Users of the store (`~quota:*`) cannot change these
/// keys.
pub(crate) struct RulesKeys {
    pub(crate) document: String,
    pub(crate) head: String,
    /// Newest first.
    pub(crate) history: String,
    /// A sorted set, by the server's time in milliseconds.
    pub(crate) instances: String,
    pub(crate) switch: String,
    pub(crate) access_head: String,
    pub(crate) access: String,
    /// Newest first.
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

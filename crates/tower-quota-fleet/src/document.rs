//! The document that says by which rules a whole fleet limits.

mod access;
mod field;
mod form;
mod roll_out;

pub(super) use self::access::{access_rules, is_same_network};
use self::form::{DocumentForm, FormatForm, VersionForm};
pub use self::{access::AccessEntry, roll_out::Rollout};
use super::{
    error::{FleetError, FleetErrorKind},
    version::RulesVersion,
};
use tower_quota::{AccessRules, ConfigError, Rules};

/// The rules that all instances of a service follow, with their version, the roll-out, the kill switch and an access list.
///
/// You want one to publish rules, or to look at those that are published. It is data: what a layer cannot carry out is
/// found by [`check`](Self::check), and by the layer of each instance.
///
/// In Redis and in files it is JSON of at most [`MAX_LENGTH`](Self::MAX_LENGTH) bytes. `format`, `version` and `rules` are
/// needed; the rules are those that [`Rules`] are read from. An unknown field is an error, not something to
/// skip: a field that an older version of the crate does not know comes with a new number of the format.
///
/// ```
/// use tower_quota::{QuotaPolicy};
/// use tower_quota_fleet::RulesDocument;
///
/// let document = RulesDocument::parse(br#"{
///     "format": 1,
///     "version": 42,
///     "author": "alice",
///     "time": 1795378041,
///     "rules": {"policies": [{"name": "minute", "quota": 60, "window_seconds": 60}]},
///     "roll_out": {
///         "percent": 10,
///         "partitions": ["2b9742679fc3d12b0b3b07f9e18313f7"],
///         "rules": {"policies": [{"name": "minute", "quota": 30, "window_seconds": 60}]}
///     },
///     "switched_off": false,
///     "access": [
///         {"network": "203.0.113.0/24", "access": "block", "until": 1795378641},
///         {"key": {"kind": "x-user-id", "value": "mallory"}, "access": "block"}
///     ],
///     "block_unknown_addresses": false
/// }"#)?;
/// assert_eq!(document.version(), 42);
/// assert_eq!(document.rules().policies(), [QuotaPolicy::per_minute("minute", 60)]);
/// assert_eq!(document.roll_out().map(|roll_out| roll_out.percent()), Some(10));
/// document.check()?;
/// assert_eq!(RulesDocument::parse(document.to_json()?.as_bytes())?, document);
///
/// let error = RulesDocument::parse(br#"{"format": 1, "version": "x"}"#).unwrap_err();
/// assert!(error.to_string().starts_with("rules document: version: invalid type: string \"x\""));
/// assert!(error.to_string().ends_with("at line 1 column 28"));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesDocument(DocumentForm);

impl RulesDocument {
    /// The newest format of documents that this version of the crate reads, and the one that it writes.
    pub const FORMAT: u64 = 1;

    /// The largest length of a document in bytes: 1 MiB. A longer one is neither read nor written.
    pub const MAX_LENGTH: usize = 1 << 20;

    /// The largest length of the author's name in bytes.
    pub const MAX_AUTHOR: usize = 256;

    /// A document with these rules for all callers, and nothing else. `version` is from 1 to
    /// [`RulesVersion::MAX_NUMBER`].
    pub fn new(version: u64, rules: Rules) -> Self {
        Self(DocumentForm {
            format: Self::FORMAT,
            version,
            rules,
            ..DocumentForm::default()
        })
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// If it is too long, is no JSON, has a newer format, or has a field that is missing, unknown, of another type or out of
    /// its range. The error names the place: line and column, the field, the policy. It does not check the
    /// rules: see [`check`](Self::check).
    pub fn parse(bytes: &[u8]) -> Result<Self, FleetError> {
        check_length(bytes.len())?;
        // First, because a newer format may have anything else.
        let FormatForm { format } = serde_json::from_slice(bytes)?;
        if format > Self::FORMAT {
            let message = format!(
                "format {format} is newer than {}, the newest that this version of tower-quota reads",
                Self::FORMAT
            );
            return Err(FleetError::of_document(FleetErrorKind::NewerFormat, message));
        }
        let document = Self(serde_json::from_slice(bytes)?);
        document.check_ranges()?;
        Ok(document)
    }

    /// The document as JSON for [`parse`](Self::parse), with line breaks for those who read it.
    ///
    /// # Errors
    ///
    /// If it would be too long, a field is out of its range, or a policy has what the format cannot express: parts of a
    /// second, or an extension that is neither a text nor a boolean nor a whole number.
    pub fn to_json(&self) -> Result<String, FleetError> {
        self.check_ranges()?;
        let json = serde_json::to_string_pretty(&self.0)?;
        check_length(json.len())?;
        Ok(json)
    }

    /// Checks the rules, those of the roll-out and the access list as far as that is possible without a layer: the name of
    /// any tier, key or unit will do.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Invalid`] with the message of [`build`](tower_quota::RateLimitLayerBuilder::build), after
    /// `roll_out: ` for the rules of the rollout.
    pub fn check(&self) -> Result<(), FleetError> {
        self.rules().validate()?;
        if let Some(roll_out) = self.roll_out() {
            let within = |error| FleetError::from_config(FleetErrorKind::Invalid, "roll_out: ", error);
            roll_out.rules().validate().map_err(within)?;
        }
        Ok(self.access_rules(0).map(drop)?)
    }

    /// The number of the version, which is larger than those of the documents before.
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// The person or program that has written it; empty if it does not say.
    pub fn author(&self) -> &str {
        &self.0.author
    }

    /// The time of writing in seconds since the Unix epoch; 0 if it does not say.
    pub fn time(&self) -> u64 {
        self.0.time
    }

    /// The rules for all callers that no roll-out is about.
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// The rules that are tried on a part of the callers.
    pub fn roll_out(&self) -> Option<&Rollout> {
        self.0.roll_out.as_ref()
    }

    /// Returns `true` if all instances let all requests pass uncounted, but for those that an access list blocks. An order of
    /// the kill switch ([`Control`](super::Control)) takes precedence.
    pub fn is_switched_off(&self) -> bool {
        self.0.switched_off
    }

    /// The rules of the fleet's access list.
    pub fn access(&self) -> &[AccessEntry] {
        &self.0.access
    }

    /// Returns `true` if clients whose address is unknown are [blocked](AccessRules::block_unknown_addresses).
    pub fn blocks_unknown_addresses(&self) -> bool {
        self.0.block_unknown_addresses
    }

    /// Sets the number of the version.
    #[must_use]
    pub fn with_version(mut self, version: u64) -> Self {
        self.0.version = version;
        self
    }

    /// Sets who has written it: at most [`MAX_AUTHOR`](Self::MAX_AUTHOR) bytes without control characters.
    #[must_use]
    pub fn with_author(mut self, author: impl Into<String>) -> Self {
        self.0.author = author.into();
        self
    }

    /// Sets when it was written, in seconds since the Unix epoch.
    #[must_use]
    pub fn with_time(mut self, time: u64) -> Self {
        self.0.time = time;
        self
    }

    /// Sets the rules for all callers that no roll-out is about.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.0.rules = rules;
        self
    }

    /// Sets the rules that are tried on a part of the callers, or none.
    #[must_use]
    pub fn with_roll_out(mut self, roll_out: impl Into<Option<Rollout>>) -> Self {
        self.0.roll_out = roll_out.into();
        self
    }

    /// Switches the limits of all instances off, if `true`. In Redis, a [`Control`](super::Control) does that without a
    /// publication, and ends.
    #[must_use]
    pub fn switched_off(mut self, is_off: bool) -> Self {
        self.0.switched_off = is_off;
        self
    }

    /// Sets the rules of the access list, in place of those before.
    #[must_use]
    pub fn with_access(mut self, access: impl IntoIterator<Item = AccessEntry>) -> Self {
        self.0.access = access.into_iter().collect();
        self
    }

    /// Blocks clients whose address is unknown, as
    /// [`block_unknown_addresses`](AccessRules::block_unknown_addresses) does.
    #[must_use]
    pub fn blocking_unknown_addresses(mut self, block: bool) -> Self {
        self.0.block_unknown_addresses = block;
        self
    }

    /// The rules of the access list that hold at this time, in seconds since the Unix epoch.
    pub(super) fn access_rules(&self, now: u64) -> Result<AccessRules, ConfigError> {
        let mut rules = access_rules(self.access(), now)?;
        rules.block_unknown_addresses(self.blocks_unknown_addresses());
        Ok(rules)
    }

    fn check_ranges(&self) -> Result<(), FleetError> {
        let invalid = |message: String| Err(FleetError::of_document(FleetErrorKind::Malformed, message));
        let (format, version) = (self.0.format, self.version());
        if format == 0 {
            return invalid("format 0 is outside 1..".to_owned());
        }
        if !(1..=RulesVersion::MAX_NUMBER).contains(&version) {
            return invalid(format!("version {version} is outside 1..={}", RulesVersion::MAX_NUMBER));
        }
        check_text("author", self.author())?;
        match self.roll_out().map(Rollout::percent) {
            Some(percent @ 101..) => invalid(format!("roll_out: percent {percent} is outside 0..=100")),
            _ => Ok(()),
        }
    }
}

/// The number of the version of a document that need not be valid; 0 if it cannot be read.
pub(super) fn version_in(bytes: &[u8]) -> u64 {
    let form = serde_json::from_slice::<VersionForm>(bytes);
    form.map_or(0, |form| form.version.min(RulesVersion::MAX_NUMBER))
}

/// Authors and reasons stand in logs and on pages.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), FleetError> {
    let most = RulesDocument::MAX_AUTHOR;
    if text.len() <= most && !text.contains(char::is_control) {
        return Ok(());
    }
    let message = format!("{field}: it is longer than {most} bytes or holds a control character");
    Err(FleetError::of_document(FleetErrorKind::Malformed, message))
}

pub(super) fn check_length(length: usize) -> Result<(), FleetError> {
    if length <= RulesDocument::MAX_LENGTH {
        return Ok(());
    }
    let message = format!("it is longer than {} bytes", RulesDocument::MAX_LENGTH);
    Err(FleetError::of_document(FleetErrorKind::TooLong, message))
}

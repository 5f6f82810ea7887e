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

/// The rules of all instances of a service, with their version and a rollout.
///
/// The kill switch and the access list are for files only: in Redis, they are stored [separately](super::Control), and
/// a document with them is rejected. The [guide](crate::guide#the-document) lists the fields.
///
/// ```
/// use tower_quota::QuotaPolicy;
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
    /// The format that this release writes, and the newest that it reads.
    pub const FORMAT: u64 = 1;

    /// The maximum length of a document in bytes: 1 MiB.
    pub const MAX_LENGTH: usize = 1 << 20;

    /// The maximum length of an author in bytes.
    pub const MAX_AUTHOR: usize = 256;

    /// Creates a document with these rules for all callers. `version` ranges from 1 to [`RulesVersion::MAX_NUMBER`].
    pub fn new(version: u64, rules: Rules) -> Self {
        Self(DocumentForm {
            format: Self::FORMAT,
            version,
            rules,
            ..DocumentForm::default()
        })
    }

    /// Parses a document. Use [`check`](Self::check) to validate the rules.
    ///
    /// # Errors
    ///
    /// Returns an error with line, column and field if the document is longer than 1 MiB, has a newer format, is not
    /// JSON, or has a missing, unknown or invalid field.
    pub fn parse(bytes: &[u8]) -> Result<Self, FleetError> {
        check_length(bytes.len())?;
        // Parsed first, because everything else may differ in a newer format.
        let FormatForm { format } = serde_json::from_slice(bytes)?;
        if format > Self::FORMAT {
            let message = format!(
                "format {format} is newer than {}, the newest that this release of tower-quota can read",
                Self::FORMAT
            );
            return Err(FleetError::of_document(FleetErrorKind::NewerFormat, message));
        }
        let document = Self(serde_json::from_slice(bytes)?);
        document.check_ranges()?;
        Ok(document)
    }

    /// Fails with [`Mismatched`](FleetErrorKind::Mismatched) if a source has other bytes for the version.
    pub(super) fn parse_version(version: RulesVersion, bytes: &[u8]) -> Result<Self, FleetError> {
        let mismatched = |message| Err(FleetError::new(FleetErrorKind::Mismatched, message));
        if RulesVersion::of(version.number(), bytes) != version {
            return mismatched(format!("document digest does not match version {version}"));
        }
        match Self::parse(bytes)? {
            document if document.version() == version.number() => Ok(document),
            other => mismatched(format!(
                "document number {} does not match version {version}",
                other.version()
            )),
        }
    }

    /// Serializes the document as indented JSON, which [`parse`](Self::parse) reads.
    ///
    /// # Errors
    ///
    /// Returns an error if the document is longer than 1 MiB, a field is out of range, or a policy has fractions of a
    /// second or extensions that are not strings, booleans or integers.
    pub fn to_json(&self) -> Result<String, FleetError> {
        self.check_ranges()?;
        let json = serde_json::to_string_pretty(&self.0)?;
        check_length(json.len())?;
        Ok(json)
    }

    /// Validates the rules and the access list, except names of tiers, keys and units, which need a layer.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Invalid`] with the message of [`build`](tower_quota::RateLimitLayerBuilder::build).
    pub fn check(&self) -> Result<(), FleetError> {
        self.rules().validate()?;
        if let Some(roll_out) = self.roll_out() {
            let within = |error| FleetError::from_config(FleetErrorKind::Invalid, "roll_out: ", error);
            roll_out.rules().validate().map_err(within)?;
        }
        Ok(self.access_rules(0).map(drop)?)
    }

    /// Returns the version number, which increases with each publication.
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// Returns the author, or an empty string.
    pub fn author(&self) -> &str {
        &self.0.author
    }

    /// Returns the time of writing in Unix seconds, or 0 if unknown.
    pub fn time(&self) -> u64 {
        self.0.time
    }

    /// Returns the rules for callers outside the rollout.
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Returns the rollout, or `None`.
    pub fn roll_out(&self) -> Option<&Rollout> {
        self.0.roll_out.as_ref()
    }

    /// Returns `true` if the limits are off.
    pub fn is_switched_off(&self) -> bool {
        self.0.switched_off
    }

    /// Returns the access list.
    pub fn access(&self) -> &[AccessEntry] {
        &self.0.access
    }

    /// Returns `true` if clients with an [unknown address](AccessRules::block_unknown_addresses) are blocked. For files
    /// only.
    pub fn blocks_unknown_addresses(&self) -> bool {
        self.0.block_unknown_addresses
    }

    /// Sets the version number.
    #[must_use]
    pub fn with_version(mut self, version: u64) -> Self {
        self.0.version = version;
        self
    }

    /// Sets the author: at most [`MAX_AUTHOR`](Self::MAX_AUTHOR) bytes without control characters.
    #[must_use]
    pub fn with_author(mut self, author: impl Into<String>) -> Self {
        self.0.author = author.into();
        self
    }

    /// Sets the time of writing in Unix seconds.
    #[must_use]
    pub fn with_time(mut self, time: u64) -> Self {
        self.0.time = time;
        self
    }

    /// Sets the rules for callers outside the rollout.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.0.rules = rules;
        self
    }

    /// Sets or removes the rollout.
    #[must_use]
    pub fn with_roll_out(mut self, roll_out: impl Into<Option<Rollout>>) -> Self {
        self.0.roll_out = roll_out.into();
        self
    }

    /// Sets whether the limits are off, except blocks of the access list.
    #[must_use]
    pub fn switched_off(mut self, is_off: bool) -> Self {
        self.0.switched_off = is_off;
        self
    }

    /// Replaces the access list.
    #[must_use]
    pub fn with_access(mut self, access: impl IntoIterator<Item = AccessEntry>) -> Self {
        self.0.access = access.into_iter().collect();
        self
    }

    /// Sets whether clients with an [unknown address](AccessRules::block_unknown_addresses) are blocked. For files
    /// only.
    #[must_use]
    pub fn blocking_unknown_addresses(mut self, block: bool) -> Self {
        self.0.block_unknown_addresses = block;
        self
    }

    pub(super) fn access_rules(&self, now: u64) -> Result<AccessRules, ConfigError> {
        let mut rules = access_rules(self.access(), now)?;
        rules.block_unknown_addresses(self.blocks_unknown_addresses());
        Ok(rules)
    }

    pub(super) fn check_without_controls(&self) -> Result<(), FleetError> {
        if !self.is_switched_off() && self.access().is_empty() && !self.blocks_unknown_addresses() {
            return Ok(());
        }
        let message = "`switched_off`, `access` and `block_unknown_addresses` apply in files only; in Redis, use the \
                       kill switch and the access list of the fleet";
        Err(FleetError::of_document(FleetErrorKind::Invalid, message))
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

/// Returns 0 if the number cannot be read.
pub(super) fn version_in(bytes: &[u8]) -> u64 {
    let form = serde_json::from_slice::<VersionForm>(bytes);
    form.map_or(0, |form| form.version.min(RulesVersion::MAX_NUMBER))
}

/// Authors and reasons appear in logs and on pages.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), FleetError> {
    let most = RulesDocument::MAX_AUTHOR;
    if text.len() <= most && !text.contains(char::is_control) {
        return Ok(());
    }
    let message = format!("{field}: longer than {most} bytes, or contains a control character");
    Err(FleetError::of_document(FleetErrorKind::Malformed, message))
}

pub(super) fn check_length(length: usize) -> Result<(), FleetError> {
    if length <= RulesDocument::MAX_LENGTH {
        return Ok(());
    }
    let message = format!("longer than {} bytes", RulesDocument::MAX_LENGTH);
    Err(FleetError::of_document(FleetErrorKind::TooLong, message))
}

use std::{fmt, future::Future, pin::Pin};

use super::{controls::SwitchOrder, error::FleetError, report::InstanceReport, version::RulesVersion};

/// A source of rules: [`RedisRules`](super::RedisRules), [`FileRules`](super::FileRules), or a custom one.
///
/// A follower polls the state when it [may have changed](Self::changed), and reads the document of a new version.
///
/// ```
/// use tower_quota_fleet::{RulesSource, RulesVersion, SourceFuture, SourceState};
///
/// /// Rules that are compiled into the program.
/// #[derive(Debug)]
/// struct Fixed(&'static [u8]);
///
/// impl RulesSource for Fixed {
///     fn state(&self) -> SourceFuture<'_, SourceState> {
///         Box::pin(async { Ok(SourceState::new(Some(RulesVersion::of(1, self.0)))) })
///     }
///
///     fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
///         Box::pin(async { Ok(self.0.to_vec()) })
///     }
/// }
/// ```
pub trait RulesSource: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the rule set for events and metrics.
    fn name(&self) -> &str {
        "rules"
    }

    /// Returns an atomic snapshot of the version, the kill switch and the access list.
    fn state(&self) -> SourceFuture<'_, SourceState>;

    /// Returns the bytes of the access list with this version of a [`state`](Self::state): at most
    /// [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH). Default: an error.
    fn access(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        let message = format!("the source has no access list with version {version}");
        Box::pin(async { Err(FleetError::unavailable(message)) })
    }

    /// Returns the bytes of the document with this version, or of a newer one.
    ///
    /// Read at most [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH) bytes, and return
    /// [`parse`](super::RulesDocument::parse)'s error for longer documents.
    fn document(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>>;

    /// Waits until the version may have changed since the last poll. Default: waits for 0.75 s to 1.25 s at random.
    ///
    /// The follower polls at most 20 times per second.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(super::pause::between_polls())
    }

    /// Stores the report of an instance, which replaces its earlier ones.
    ///
    /// Called concurrently with polls, but not with itself, and times out after a second. Default: does nothing.
    fn report<'a>(&'a self, report: &'a InstanceReport) -> SourceFuture<'a, ()> {
        let _ = report;
        Box::pin(async { Ok(()) })
    }
}

/// A snapshot of a [`RulesSource`].
#[derive(Clone, Debug)]
pub struct SourceState {
    /// Separate, so that the kill switch works while the version is malformed.
    pub(super) version: Result<Option<RulesVersion>, FleetError>,
    pub(super) controls: ControlHeads,
    pub(super) only_rises: bool,
}

/// Separate, so that a broken list does not block orders, and vice versa.
#[derive(Clone, Debug)]
pub(super) struct ControlHeads {
    pub(super) switch: Result<Option<SwitchOrder>, String>,
    pub(super) access: Result<Option<RulesVersion>, String>,
}

impl SourceState {
    /// Creates a state without a kill switch or an access list, whose version number may decrease. `None` means that
    /// nothing was published.
    pub fn new(version: Option<RulesVersion>) -> Self {
        let controls = ControlHeads {
            switch: Ok(None),
            access: Ok(None),
        };
        Self {
            version: Ok(version),
            controls,
            only_rises: false,
        }
    }

    /// Returns the current version, or `None` if nothing was published. Fails if the source has a malformed version.
    pub fn version(&self) -> Result<Option<RulesVersion>, FleetError> {
        self.version.clone()
    }

    /// Sets the switch order and the access list's version, or `None`.
    ///
    /// Numbers must only increase: a smaller one, or `None`, means that the source [lost](super::Lost) data. Documents
    /// must not contain a switch or an access list.
    #[must_use]
    pub fn with_controls(self, switch: Option<SwitchOrder>, access: Option<RulesVersion>) -> Self {
        self.with_heads(Ok(switch), Ok(access))
    }

    /// Sets why switch and access list cannot be read. The last known ones remain in effect.
    #[must_use]
    pub fn without_controls(self, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        self.with_heads(Err(reason.clone()), Err(reason))
    }

    pub(super) fn with_heads(
        mut self,
        switch: Result<Option<SwitchOrder>, String>,
        access: Result<Option<RulesVersion>, String>,
    ) -> Self {
        self.controls = ControlHeads { switch, access };
        self.only_rises = true;
        self
    }
}

/// The result of a [`RulesSource`].
///
/// After a [bad document](super::FleetErrorKind::is_bad_document), the follower waits for another version. After other
/// errors, it retries.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FleetError>> + Send + 'a>>;

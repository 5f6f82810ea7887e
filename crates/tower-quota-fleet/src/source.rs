use std::{fmt, future::Future, pin::Pin};

use super::{controls::SwitchOrder, error::FleetError, report::InstanceReport, version::RulesVersion};

/// A source of rules: [`RedisRules`](super::RedisRules), [`FileRules`](super::FileRules), or a custom one, such as a
/// configuration service.
///
/// A follower polls the version whenever it [may have changed](Self::changed), and reads the document only if the
/// version differs.
///
/// ```
/// use tower_quota_fleet::{RulesSource, RulesVersion, SourceFuture};
///
/// /// Rules that are compiled into the program.
/// #[derive(Debug)]
/// struct Fixed(&'static [u8]);
///
/// impl RulesSource for Fixed {
///     fn version(&self) -> SourceFuture<'_, Option<RulesVersion>> {
///         Box::pin(async { Ok(Some(RulesVersion::of(1, self.0))) })
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

    /// Returns the current version, or `None` if nothing was published. Called about once per second.
    fn version(&self) -> SourceFuture<'_, Option<RulesVersion>>;

    /// Returns an atomic snapshot of the version, the kill switch and the access list that apply without rules.
    ///
    /// Default: the [version](Self::version) without controls.
    fn state(&self) -> SourceFuture<'_, SourceState> {
        Box::pin(async { Ok(SourceState::new(self.version().await?)) })
    }

    /// Returns the bytes of the access list with this version, which was returned by [`state`](Self::state).
    ///
    /// Called only if the version changed. Read at most [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH)
    /// bytes. Default: an error.
    fn access(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        let message = format!("the source has no access list with version {version}");
        Box::pin(async { Err(FleetError::unavailable(message)) })
    }

    /// Returns the bytes of the document with this version, or of a newer document that was published since.
    ///
    /// Read at most [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH) bytes, and return the error of
    /// [`RulesDocument::parse`](super::RulesDocument::parse) for longer documents.
    fn document(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>>;

    /// Waits until the version may have changed.
    ///
    /// Default: waits for 0.75 s to 1.25 s at random. A source that is notified of changes should return as soon as the
    /// version has changed since the last poll. The follower polls at most 20 times per second.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(super::pause::between_polls())
    }

    /// Reports the version of this instance, and replaces its earlier reports `before`, any of which may have been
    /// stored.
    ///
    /// Called concurrently with polls, but never with itself, and times out after a second. Default: does nothing.
    fn report<'a>(&'a self, report: &'a InstanceReport, before: &'a [InstanceReport]) -> SourceFuture<'a, ()> {
        let _ = (report, before);
        Box::pin(async { Ok(()) })
    }
}

/// A snapshot of a [`RulesSource`].
#[derive(Clone, Debug)]
pub struct SourceState {
    /// Read independently of the controls, so that the kill switch works while the version is malformed.
    pub(super) version: Result<Option<RulesVersion>, FleetError>,
    pub(super) controls: ControlHeads,
    /// True if a smaller number than before means that the source lost data.
    pub(super) only_rises: bool,
}

/// Each is read independently, so that a broken list does not block orders, and vice versa.
#[derive(Clone, Debug)]
pub(super) struct ControlHeads {
    pub(super) switch: Result<Option<SwitchOrder>, String>,
    pub(super) access: Result<Option<RulesVersion>, String>,
}

impl SourceState {
    /// Creates a state without a kill switch or an access list.
    ///
    /// The version number may decrease, as in a file that a deployment replaces.
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

    /// Sets the kill switch order and the access list version that the source contains. `None` means that there is
    /// none.
    ///
    /// Its numbers only increase: a smaller one, or `None`, means that the source [lost](super::Lost) data. Its
    /// documents must not contain a switch or an access list.
    #[must_use]
    pub fn with_controls(self, switch: Option<SwitchOrder>, access: Option<RulesVersion>) -> Self {
        self.with_heads(Ok(switch), Ok(access))
    }

    /// Sets the reason why the kill switch and the access list cannot be read. The last known ones remain in effect.
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
/// After an error for a [bad document](super::FleetErrorKind::is_bad_document), the follower rejects the version until
/// it changes. After other errors, such as [`FleetError::unavailable`], it retries.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FleetError>> + Send + 'a>>;

//! The places from which instances take their rules.

use std::{fmt, future::Future, pin::Pin};

use super::{controls::SwitchOrder, error::FleetError, report::InstanceReport, version::RulesVersion};

/// A place that has the rules of a fleet: [`RedisRules`](super::RedisRules), [`FileRules`](super::FileRules), or one of
/// yours, such as a configuration service.
///
/// A follower asks for the version each time that it [may have changed](Self::changed), and for the document only
/// if the version is another one. No request ever waits for either.
///
/// ```
/// use tower_quota_fleet::{RulesSource, RulesVersion, SourceFuture};
///
/// /// Rules that are part of the program.
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
    /// The name of the rule set in events and metrics.
    fn name(&self) -> &str {
        "rules"
    }

    /// The version that holds now; `None` if nothing was published. It is asked for once a second, so it should be cheap.
    fn version(&self) -> SourceFuture<'_, Option<RulesVersion>>;

    /// Returns the version, and the kill switch and the access list that apply without rules, all read at one moment.
    ///
    /// The default implementation returns the [version](Self::version) and no controls, for sources that have none.
    fn state(&self) -> SourceFuture<'_, SourceState> {
        Box::pin(async { Ok(SourceState::new(self.version().await?)) })
    }

    /// Returns the bytes of the access list with this version, as [`state`](Self::state) returned it. It is called only if the
    /// version changed, and reads at most [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH) bytes.
    fn access(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        let message = format!("the source has no access list of version {version}");
        Box::pin(async { Err(FleetError::unavailable(message)) })
    }

    /// The bytes of the document, which are those of this version unless another one was published meanwhile.
    ///
    /// It reads at most [`RulesDocument::MAX_LENGTH`](super::RulesDocument::MAX_LENGTH) bytes: a longer document is the
    /// error of [`RulesDocument::parse`](super::RulesDocument::parse).
    fn document(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>>;

    /// Waits until the version may have changed. By default for a second, a quarter more or less, so that instances do not
    /// ask at the same moment.
    ///
    /// A source that is told of changes ends the wait at once if there was one since it was last asked for the version. It
    /// is asked at most twenty times a second.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(super::pause::between_polls())
    }

    /// Tells others which version an instance runs, in place of its reports `before`, any of which may have arrived. By
    /// default nothing is told.
    ///
    /// It runs beside the polls, has a second, and is not called again until it has ended.
    fn report<'a>(&'a self, report: &'a InstanceReport, before: &'a [InstanceReport]) -> SourceFuture<'a, ()> {
        let _ = (report, before);
        Box::pin(async { Ok(()) })
    }
}

/// The contents of a [`RulesSource`] at one moment.
#[derive(Clone, Debug)]
pub struct SourceState {
    pub(super) version: Option<RulesVersion>,
    pub(super) controls: ControlHeads,
    /// True if a lower number than before means that the source lost data.
    pub(super) only_rises: bool,
}

/// Each may be unreadable for itself: a broken list keeps no order away, and the other way round.
#[derive(Clone, Debug)]
pub(super) struct ControlHeads {
    pub(super) switch: Result<Option<SwitchOrder>, String>,
    pub(super) access: Result<Option<RulesVersion>, String>,
}

impl SourceState {
    /// Creates the state of a source with this version of the rules, and without a kill switch or an access list. Its numbers
    /// may decrease, as in a file that a deployment replaces.
    pub fn new(version: Option<RulesVersion>) -> Self {
        let controls = ControlHeads {
            switch: Ok(None),
            access: Ok(None),
        };
        Self {
            version,
            controls,
            only_rises: false,
        }
    }

    /// Sets the last order of the kill switch, and the version of the access list.
    ///
    /// All numbers of such a source increase: a smaller number, or none, means that the source [lost](super::Lost) data.
    #[must_use]
    pub fn with_controls(self, switch: Option<SwitchOrder>, access: Option<RulesVersion>) -> Self {
        self.with_heads(Ok(switch), Ok(access))
    }

    /// Sets why the kill switch and the access list cannot be read. The last ones that were read stay in force.
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

/// The answer of a [`RulesSource`]. An error about a [bad document](super::FleetErrorKind::is_bad_document) rejects the version:
/// the document is not asked for again until the version changes. After any other one, such as
/// [`FleetError::unavailable`], the source is asked again.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FleetError>> + Send + 'a>>;

//! The result of a look at a store before it is needed.

use std::{fmt, time::Duration};

/// A store that decides, as [`Limiter::ready`](crate::Limiter::ready) has found it, with warnings about settings of its servers.
///
/// ```
/// use tower_quota::StoreReport;
///
/// let report = StoreReport::new().with_warning("maxmemory-policy is allkeys-lru");
/// assert_eq!(report.warnings().collect::<Vec<_>>(), ["maxmemory-policy is allkeys-lru"]);
/// assert_eq!(report.to_string(), "the store decides; maxmemory-policy is allkeys-lru");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    warnings: Vec<String>,
    decision_time: Option<Duration>,
}

impl StoreReport {
    /// A report without warnings.
    pub const fn new() -> Self {
        Self {
            warnings: Vec::new(),
            decision_time: None,
        }
    }

    /// The same with one more warning, for a [`Store`](crate::Store) of your own.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }

    /// The same with the time that a decision took, if none is known yet that took longer.
    #[must_use]
    pub fn with_decision_time(mut self, time: Duration) -> Self {
        self.decision_time = self.decision_time.max(Some(time));
        self
    }

    /// The time that the fastest decisions took, on the slowest of the servers.
    pub fn decision_time(&self) -> Option<Duration> {
        self.decision_time
    }

    /// The warnings: what works now and may cost limits later, or could not be checked. They are for operators, and name no
    /// caller and no password.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(|warning| &**warning)
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store decides")?;
        self.warnings().try_for_each(|warning| write!(f, "; {warning}"))
    }
}

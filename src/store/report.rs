use std::{fmt, time::Duration};

/// The result of [`Limiter::ready`](crate::Limiter::ready): the store can decide, possibly with warnings.
///
/// ```
/// use tower_quota::StoreReport;
///
/// let report = StoreReport::new().with_warning("maxmemory-policy is allkeys-lru");
/// assert_eq!(report.warnings().collect::<Vec<_>>(), ["maxmemory-policy is allkeys-lru"]);
/// assert_eq!(report.to_string(), "the store is ready; maxmemory-policy is allkeys-lru");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    warnings: Vec<String>,
    decision_time: Option<Duration>,
}

impl StoreReport {
    /// Creates a report without warnings.
    pub const fn new() -> Self {
        Self {
            warnings: Vec::new(),
            decision_time: None,
        }
    }

    /// Adds a warning, for custom [`Store`](crate::Store) implementations.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }

    /// Records the duration of a decision. If called again, the longest duration is kept.
    #[must_use]
    pub fn with_decision_time(mut self, time: Duration) -> Self {
        self.decision_time = self.decision_time.max(Some(time));
        self
    }

    /// Returns the duration of the fastest decision on the slowest server, if the store has measured it.
    pub fn decision_time(&self) -> Option<Duration> {
        self.decision_time
    }

    /// Returns warnings about failed checks, and about settings of the servers that may later weaken limits. Warnings
    /// contain no callers or passwords.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(|warning| &**warning)
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store is ready")?;
        self.warnings().try_for_each(|warning| write!(f, "; {warning}"))
    }
}

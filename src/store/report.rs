//! The result of a look at a store before it is needed.

use std::fmt;

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
}

impl StoreReport {
    /// A report without warnings.
    pub const fn new() -> Self {
        Self { warnings: Vec::new() }
    }

    /// The same with one more warning, for a [`Store`](crate::Store) of your own.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
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

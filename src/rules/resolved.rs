use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::policy::CallerQuotas;

/// The tier of a request's caller, and its [individual quotas](Self::with_quotas) if it has any.
///
/// A [`TierLayer`](crate::tier::TierLayer) inserts it into the request's extensions, where
/// [`Tiers::resolved`](crate::Tiers::resolved) reads it. Insert a `ResolvedTier` yourself if authentication already
/// knows the tier, for example from the claims of a token. The name is not validated: if the rules have no such tier,
/// the first tier applies. Clones are cheap. If no layer reads the tiers' names, a `tracing` event reports this once
/// ([`tier-not-read`](crate::docs::mistakes#tier-not-read)).
///
/// ```
/// use tower_quota::ResolvedTier;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(ResolvedTier::new("premium"));
/// assert_eq!(request.extensions().get::<ResolvedTier>().unwrap().as_str(), "premium");
/// ```
#[derive(Clone)]
pub struct ResolvedTier {
    name: Arc<str>,
    quotas: Option<CallerQuotas>,
    /// Error of the source of the quotas.
    quotas_problem: Option<Arc<str>>,
    /// Shared by all clones. A layer uses it to detect that no inner layer has read the name.
    is_read: Arc<AtomicBool>,
}

/// Inserted by a [`TierLayer`](crate::tier::TierLayer) that has no tier for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTier {
    /// The request counts in the first tier.
    First,
    /// The tier is unknown, and such requests pass uncounted.
    Uncounted,
}

impl ResolvedTier {
    /// Creates a tier with this name and without individual quotas.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: name.as_ref().into(),
            quotas: None,
            quotas_problem: None,
            is_read: Arc::default(),
        }
    }

    /// Adds the caller's individual quotas, so that one lookup returns both the plan and the contract.
    ///
    /// [`CallerQuotas`] in the request's extensions take precedence.
    ///
    /// ```
    /// use tower_quota::{CallerQuotas, ResolvedTier, tier::TierLayer};
    ///
    /// #[derive(Clone)]
    /// struct Customer(u64);
    /// # impl tower_quota::ToPartitionKey for Customer {
    /// #     fn to_partition_key(&self) -> tower_quota::PartitionKey {
    /// #         tower_quota::PartitionKey::new("customer", self.0.to_string())
    /// #     }
    /// # }
    ///
    /// // The plan and the contract come from one database query:
    /// let tiers = TierLayer::by_extension(|Customer(number)| async move {
    ///     let contract = CallerQuotas::new().quota("minute", if number == 4711 { 5_000 } else { 1_000 });
    ///     Ok::<_, std::convert::Infallible>(Some(ResolvedTier::new("premium").with_quotas(contract)))
    /// })
    /// .build()?;
    /// # let _ = tiers;
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_quotas(mut self, quotas: CallerQuotas) -> Self {
        (self.quotas, self.quotas_problem) = (Some(quotas), None);
        self
    }

    /// Adds the individual quotas from a source that can fail independently of the tier's source.
    ///
    /// After an error, the caller keeps the last quotas known to the [`TierLayer`](crate::tier::TierLayer) for as long
    /// as [`stale_for`](crate::tier::TierLayerBuilder::stale_for) allows, and then gets the quotas of the tier. The
    /// error is logged, so keep users' names out of it.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::CallerQuotas;
    ///
    /// # run(async {
    /// # async fn plan_of(_customer: u64) -> Result<&'static str, Infallible> { Ok("premium") }
    /// # async fn contract_of(_customer: u64) -> Result<Option<CallerQuotas>, &'static str> { Err("connection refused") }
    /// let tiers = TierLayer::by_extension(|customer: u64| async move {
    ///     let plan = plan_of(customer).await?;
    ///     Ok::<_, Infallible>(Some(ResolvedTier::new(plan).with_quotas_or_last(contract_of(customer).await)))
    /// })
    /// .build()?;
    /// assert_eq!(tier_of(&tiers, 4711).await.as_deref(), Some("premium"));
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn with_quotas_or_last<E: fmt::Display>(mut self, quotas: Result<Option<CallerQuotas>, E>) -> Self {
        match quotas {
            Ok(quotas) => (self.quotas, self.quotas_problem) = (quotas, None),
            Err(error) => self.quotas_problem = Some(format!("individual quotas: {error}").into()),
        }
        self
    }

    pub(crate) fn quotas_problem(&self) -> Option<&str> {
        self.quotas_problem.as_deref()
    }

    pub(crate) fn with_quotas_of(mut self, earlier: Option<&Self>) -> Self {
        self.quotas = earlier.and_then(|tier| tier.quotas.clone());
        self
    }

    /// Returns the name of the tier.
    pub fn as_str(&self) -> &str {
        self.read();
        &self.name
    }

    pub(crate) fn quotas(&self) -> Option<&CallerQuotas> {
        self.quotas.as_ref().inspect(|_| self.read())
    }

    fn read(&self) {
        // Most names are cached and were read before. Skipping the write lets processors share the cache line.
        if !self.is_read.load(Ordering::Relaxed) {
            self.is_read.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the length of the name, without marking the name as read.
    pub(crate) fn len(&self) -> usize {
        self.name.len()
    }

    /// Set when [`as_str`](Self::as_str) is called on any clone.
    pub(crate) fn is_read(&self) -> &Arc<AtomicBool> {
        &self.is_read
    }
}

impl<T: AsRef<str>> From<T> for ResolvedTier {
    fn from(name: T) -> Self {
        Self::new(name)
    }
}

impl PartialEq for ResolvedTier {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.quotas) == (&other.name, &other.quotas)
    }
}

impl Eq for ResolvedTier {}

impl Hash for ResolvedTier {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for ResolvedTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResolvedTier").field(&self.name).finish()
    }
}

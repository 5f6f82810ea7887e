use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::policy::CallerQuotas;

/// The tier of a request's caller, and its [individual quotas](Self::with_quotas) if it has any.
///
/// A [`TierLayer`](crate::tier::TierLayer) inserts it into the request's extensions, where
/// [`Tiers::resolved`](crate::Tiers::resolved) reads it. Insert it yourself if authentication knows the tier. Clones
/// are cheap.
///
/// ```
/// use http::Request;
/// use tower_quota::{CallerQuotas, ResolvedTier};
///
/// let contract = CallerQuotas::new().quota("minute", 5_000);
/// let mut request = Request::new(String::new());
/// request.extensions_mut().insert(ResolvedTier::new("premium").with_quotas(contract));
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// #     use tower_quota::QuotaPolicy;
/// #     let minute = QuotaPolicy::per_minute("minute", 1_000).with_caller_quotas(1..=10_000);
/// #     let tiers = tower_quota::Tiers::resolved().tier("free", [QuotaPolicy::per_minute("minute", 100)]);
/// #     let layer = tower_quota::RateLimitLayer::builder(tower_quota::MemoryStore::new())
/// #         .scope("api")
/// #         .key(tower_quota::key::header("x-user-id"))
/// #         .tiers(tiers.tier("premium", [minute]))
/// #         .build()?;
/// #     use std::convert::Infallible;
/// #     let inner = tower::service_fn(async |_| Ok::<_, Infallible>(http::Response::new(String::new())));
/// #     let response = tower::ServiceExt::oneshot(tower::Layer::layer(&layer, inner), request).await?;
/// #     assert_eq!(response.headers()["ratelimit-policy"], r#""minute";q=5000;w=60"#);
/// #     Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct ResolvedTier {
    name: Arc<str>,
    quotas: Option<CallerQuotas>,
    quotas_problem: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTier {
    First,
    Uncounted,
}

impl ResolvedTier {
    /// Creates a tier with this name and without individual quotas.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: name.as_ref().into(),
            quotas: None,
            quotas_problem: None,
        }
    }

    /// Adds the caller's individual quotas. [`CallerQuotas`] in the request's extensions take precedence.
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
    /// use std::convert::Infallible;
    /// use tower_quota::{CallerQuotas, ResolvedTier, tier::TierLayer};
    ///
    /// async fn contract_of(customer: u64) -> Result<Option<CallerQuotas>, &'static str> {
    ///     Err("connection refused") // query another database here
    /// }
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let tiers = TierLayer::by_extension(|customer: u64| async move {
    ///     let contract = contract_of(customer).await;
    ///     Ok::<_, Infallible>(Some(ResolvedTier::new("premium").with_quotas_or_last(contract)))
    /// })
    /// .build()?;
    /// # assert_eq!(set_up::tier_of(&tiers, 4711).await.as_deref(), Some("premium"));
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
        &self.name
    }

    pub(crate) fn quotas(&self) -> Option<&CallerQuotas> {
        self.quotas.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.name.len()
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

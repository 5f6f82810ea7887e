use std::fmt;

use http::request::Parts;

use super::{
    data::Rules,
    resolved::{NoTier, ResolvedTier},
};
use crate::policy::QuotaPolicy;

/// Policies by tier, such as "free", "premium" and "admin".
///
/// A closure returns the name of each request's tier, usually from a value that authentication has inserted into the
/// request's extensions. A request without a tier or with an unknown tier counts in the **first** tier, so put the
/// smallest tier first. Requests of an unlimited tier are forwarded without a call to the store and without `RateLimit`
/// fields.
///
/// Used units belong to the caller and the policy's name: for a caller that moves to another tier, they still count for
/// policies that both tiers have. [`build`](crate::RateLimitLayerBuilder::build) rejects two tiers with the same name,
/// and tiers with invalid policies.
///
/// ```
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key};
///
/// #[derive(Clone)]
/// struct Plan(String);
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let tiers = Tiers::from_fn(|request| request.extensions.get::<Plan>().map(|plan| plan.0.as_str()))
///     .tier("free", [QuotaPolicy::per_minute("minute", 100)])
///     .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)])
///     .unlimited("admin");
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .tiers(tiers)
///     .build()?;
/// # for (plan, policy) in [
/// #     ("premium", Some(r#""minute";q=1000;w=60"#)),
/// #     ("free", Some(r#""minute";q=100;w=60"#)),
/// #     ("unknown", Some(r#""minute";q=100;w=60"#)),
/// #     ("admin", None),
/// # ] {
/// #     let request = http::Request::get("/").extension(Plan(plan.to_owned()));
/// #     let response = set_up::send(&layer, request).await;
/// #     let shown = response.headers().get("ratelimit-policy").map(|value| value.to_str()).transpose()?;
/// #     assert_eq!(shown, policy, "{plan}");
/// # }
/// # Ok(()) });
/// ```
pub struct Tiers {
    pub(crate) source: TierSource,
    pub(crate) rules: Rules,
}

#[derive(Default)]
pub(crate) struct TierSource {
    select: Option<Box<SelectTier>>,
    is_resolved: bool,
}

impl TierSource {
    pub(crate) fn tier_of<'a>(&self, request: &'a Parts) -> Result<&'a str, NoTier> {
        let name = self.select.as_ref().and_then(|select| select(request));
        name.ok_or_else(|| match request.extensions.get() {
            Some(NoTier::Uncounted) if self.is_resolved => NoTier::Uncounted,
            _ => NoTier::First,
        })
    }

    pub(crate) fn has_not_asked(&self, request: &Parts) -> bool {
        self.is_resolved && request.extensions.get::<NoTier>().is_none()
    }
}

type SelectTier = dyn for<'a> Fn(&'a Parts) -> Option<&'a str> + Send + Sync;

impl Tiers {
    /// Creates tiers that are selected by the name that `select` returns. `select` is called once per request and must
    /// not block.
    pub fn from_fn<F>(select: F) -> Self
    where
        F: for<'a> Fn(&'a Parts) -> Option<&'a str> + Send + Sync + 'static,
    {
        Self {
            source: TierSource {
                select: Some(Box::new(select)),
                is_resolved: false,
            },
            rules: Rules::new(),
        }
    }

    /// Creates tiers that are chosen by the [`ResolvedTier`] in the request's extensions, which a
    /// [`TierLayer`](crate::tier::TierLayer) outside this layer inserts.
    ///
    /// A request without one counts in the first tier, unless
    /// [`on_unknown_tier`](crate::tier::TierLayerBuilder::on_unknown_tier) sets another. An event reports once if no
    /// `TierLayer` has run.
    pub fn resolved() -> Self {
        let mut tiers = Self::from_fn(|request| request.extensions.get().map(ResolvedTier::as_str));
        tiers.source.is_resolved = true;
        tiers
    }

    /// Adds a tier with 1 to 16 policies.
    #[must_use]
    pub fn tier(mut self, name: impl Into<String>, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        self.rules = self.rules.tier(name, policies);
        self
    }

    /// Adds an unlimited tier.
    #[must_use]
    pub fn unlimited(mut self, name: impl Into<String>) -> Self {
        self.rules = self.rules.unlimited(name);
        self
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.rules.tiers()).finish()
    }
}

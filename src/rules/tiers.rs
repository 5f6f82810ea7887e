//! Tiers, and how the tier of a request is told.

use std::fmt;

use http::request::Parts;

use super::{
    data::Rules,
    resolved::{NoTier, ResolvedTier},
};
use crate::policy::QuotaPolicy;

/// Policies by tier: what "free", "premium" and "admin" callers are allowed.
///
/// A closure names the tier of each request, from what authentication has left in its extensions. A request whose
/// tier is unknown, or that has none, is of the **first** tier, so put the smallest one first. A tier may be
/// unlimited: its requests are passed on without asking the store, and without `RateLimit` fields.
///
/// Used units belong to the caller and the policy's name. A caller who moves from one tier to another keeps the used
/// units of policies that both tiers have.
///
/// Two tiers of the same name, and a tier with policies that are not valid, are errors of
/// [`build`](crate::RateLimitLayerBuilder::build).
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::Tiers;
///
/// # run(async {
/// #[derive(Clone)]
/// struct Plan(&'static str);
///
/// let tiers = Tiers::from_fn(|request| request.extensions.get::<Plan>().map(|plan| plan.0))
///     .tier("free", [QuotaPolicy::per_minute("minute", 100)])
///     .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)])
///     .unlimited("admin");
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .tiers(tiers)
///     .build()?;
///
/// for (plan, policy) in [
///     ("premium", Some(r#""minute";q=1000;w=60"#)),
///     ("free", Some(r#""minute";q=100;w=60"#)),
///     ("whatever", Some(r#""minute";q=100;w=60"#)),
///     ("admin", None),
/// ] {
///     let response = send(&layer, Request::get("/").extension(Plan(plan))).await;
///     let shown = response.headers().get("ratelimit-policy").map(|value| value.to_str()).transpose()?;
///     assert_eq!(shown, policy, "{plan}");
/// }
/// # Ok(()) });
/// ```
pub struct Tiers {
    pub(crate) source: TierSource,
    pub(crate) rules: Rules,
}

/// The source of a request's tier.
#[derive(Default)]
pub(crate) struct TierSource {
    select: Option<Box<SelectTier>>,
    /// True if a [`TierLayer`](crate::tier::TierLayer) has to come first.
    is_resolved: bool,
}

impl TierSource {
    pub(crate) fn tier_of<'a>(&self, request: &'a Parts) -> Option<&'a str> {
        self.select.as_ref()?(request)
    }

    /// Returns `true` if no request is asked for its tier.
    pub(crate) fn is_none(&self) -> bool {
        self.select.is_none()
    }

    /// Returns `true` if a request without a tier has passed no layer that looks for one.
    pub(crate) fn has_not_asked(&self, request: &Parts) -> bool {
        self.is_resolved && request.extensions.get::<NoTier>().is_none()
    }

    /// Returns `true` if a request without a tier passes uncounted until its tier is known.
    pub(crate) fn is_uncounted(&self, request: &Parts) -> bool {
        self.is_resolved && request.extensions.get() == Some(&NoTier::Uncounted)
    }
}

pub(super) type SelectTier = dyn for<'a> Fn(&'a Parts) -> Option<&'a str> + Send + Sync;

impl Tiers {
    /// Tiers that are told apart by `select`, which is called once for each request and must not block.
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

    /// Tiers that are told apart by the [`ResolvedTier`] in the request's extensions, which a
    /// [`TierLayer`](crate::tier::TierLayer) outside of this one has looked up, in a database say.
    ///
    /// A request without one is of the first tier: its user has none, or is unknown and
    /// [`on_unknown_tier`](crate::tier::TierLayerBuilder::on_unknown_tier) names no other tier. If the request has passed no
    /// `TierLayer` at all, because that is missing or inside of this layer, a `tracing` event says so once.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{ResolvedTier, Tiers};
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .tiers(
    ///         Tiers::resolved()
    ///             .tier("free", [QuotaPolicy::per_minute("minute", 100)])
    ///             .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)]),
    ///     )
    ///     .build()?;
    ///
    /// let premium = send(&layer, Request::get("/").extension(ResolvedTier::new("premium"))).await;
    /// assert_eq!(premium.headers()["ratelimit-policy"], r#""minute";q=1000;w=60"#);
    /// let unknown = send(&layer, Request::get("/")).await;
    /// assert_eq!(unknown.headers()["ratelimit-policy"], r#""minute";q=100;w=60"#);
    /// # Ok(()) });
    /// ```
    pub fn resolved() -> Self {
        let mut tiers = Self::from_fn(|request| request.extensions.get().map(ResolvedTier::as_str));
        tiers.source.is_resolved = true;
        tiers
    }

    /// Adds a tier with its policies, from 1 to 16.
    #[must_use]
    pub fn tier(mut self, name: impl Into<String>, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        self.rules = self.rules.tier(name, policies);
        self
    }

    /// Adds a tier that is not limited at all.
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

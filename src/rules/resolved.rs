//! The name of a tier, as it travels with a request.

use std::sync::Arc;

/// The tier of a request's caller, in the request's extensions, where [`Tiers::resolved`](crate::Tiers::resolved)
/// reads it.
///
/// A [`TierLayer`](crate::tier::TierLayer) puts it there when its source has named a tier. You want to make one yourself if
/// authentication learns the tier by the way, from the claims of a token, say. It is only a name: the layer that limits
/// sees if there is a tier of that name. Clones are cheap.
///
/// ```
/// use tower_quota::ResolvedTier;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(ResolvedTier::new("premium"));
/// assert_eq!(request.extensions().get::<ResolvedTier>().unwrap().as_str(), "premium");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedTier(Arc<str>);

/// A [`TierLayer`](crate::tier::TierLayer) has named no tier for the request.
#[cfg_attr(
    not(feature = "tier"),
    allow(dead_code, reason = "only a layer that looks up tiers finds none")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTier {
    /// The request is of the first tier.
    First,
    /// The tier is not known yet, and the application lets such requests pass uncounted.
    Uncounted,
}

impl ResolvedTier {
    /// The tier of this name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(name.as_ref().into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

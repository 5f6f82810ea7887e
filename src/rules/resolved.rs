//! The name of a tier, as it travels with a request.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The tier of a request's caller, in the request's extensions, where [`Tiers::resolved`](crate::Tiers::resolved)
/// reads it.
///
/// A [`TierLayer`](crate::tier::TierLayer) puts it there when its source has named a tier. You want to make one yourself if
/// authentication learns the tier by the way, from the claims of a token, say. It is only a name: the layer that limits
/// sees if there is a tier of that name. Clones are cheap. If no layer reads the names, a `tracing` event says so once
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
    /// All clones share it: a layer sees whether a layer inside of it has read the name.
    is_read: Arc<AtomicBool>,
}

/// A [`TierLayer`](crate::tier::TierLayer) has named no tier for the request.
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
        Self {
            name: name.as_ref().into(),
            is_read: Arc::default(),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        // Most names are of a cache, and were read before: processors share a value that nothing writes.
        if !self.is_read.load(Ordering::Relaxed) {
            self.is_read.store(true, Ordering::Relaxed);
        }
        &self.name
    }

    /// The length of the name, which no request asks for.
    pub(crate) fn len(&self) -> usize {
        self.name.len()
    }

    /// Becomes true when [`as_str`](Self::as_str) is called on any clone.
    pub(crate) fn is_read(&self) -> &Arc<AtomicBool> {
        &self.is_read
    }
}

impl PartialEq for ResolvedTier {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
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

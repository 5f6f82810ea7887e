/// Constant properties of a [`Store`](crate::Store), returned by [`Store::traits`](crate::Store::traits).
///
/// ```
/// use tower_quota::{MemoryStore, Store, StoreTraits};
///
/// // Clones share their counts, and thus their identity.
/// let store = MemoryStore::new();
/// assert!(store.traits().identity().is_some());
/// assert_eq!(store.clone().traits(), store.traits());
/// assert_ne!(MemoryStore::new().traits(), store.traits());
///
/// // A store that routes partitions to several servers returns:
/// let traits = StoreTraits::default().with_own_breakers();
/// assert!(traits.has_own_breakers());
/// # assert!(!store.traits().has_own_breakers());
/// # assert_eq!(std::sync::Arc::new(store.clone()).traits().identity(), store.traits().identity());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTraits {
    has_own_breakers: bool,
    identity: Option<u64>,
    is_for_tests: bool,
}

impl StoreTraits {
    /// Declares that the store has a circuit breaker per server. Limiters then add none of their own, which would also
    /// reject calls to servers that respond.
    #[must_use]
    pub const fn with_own_breakers(mut self) -> Self {
        self.has_own_breakers = true;
        self
    }

    /// Sets a number that identifies the counts of the store within this process. Default: none.
    ///
    /// Stores with the same counts, such as clones, must have the same number, and all others different ones. It is
    /// only used to detect [misconfigurations](crate::docs::mistakes) and to report the scope that fills a store.
    #[must_use]
    pub const fn with_identity(mut self, identity: u64) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Declares that the store is only used by tests: layers then behave as with
    /// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response).
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.is_for_tests = true;
        self
    }

    /// Returns whether the store has a circuit breaker per server.
    pub const fn has_own_breakers(self) -> bool {
        self.has_own_breakers
    }

    /// Returns the number set by [`with_identity`](Self::with_identity), if any.
    pub const fn identity(self) -> Option<u64> {
        self.identity
    }

    /// Returns whether the store is only used by tests.
    pub const fn is_for_tests(self) -> bool {
        self.is_for_tests
    }
}

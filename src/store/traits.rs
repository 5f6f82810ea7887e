//! Constant properties of a store.

/// Constant properties of a [`Store`](crate::Store), returned by [`Store::traits`](crate::Store::traits).
///
/// ```
/// use std::sync::Arc;
/// use tower_quota::{Measurement, MemoryStore, Plan, Store, StoreFuture, StoreTraits};
/// # use tower_quota::Settlement;
///
/// /// One store per region.
/// #[derive(Debug)]
/// struct Regions([Arc<dyn Store>; 2]);
///
/// impl Store for Regions {
///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
///         self.0[usize::from(plan.partition().to_bytes()[0] % 2)].acquire(plan)
///     }
///
///     // If one region is unavailable, requests must still reach the other.
///     fn traits(&self) -> StoreTraits {
///         StoreTraits::default().with_own_breakers()
///     }
///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
///     // …
/// }
///
/// let memory = Arc::new(MemoryStore::new());
/// assert!(!memory.traits().has_own_breakers());
/// assert_eq!(memory.traits().identity(), Arc::clone(&memory).traits().identity());
/// assert!(Arc::new(Regions([memory.clone(), memory])).traits().has_own_breakers());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTraits {
    has_own_breakers: bool,
    identity: Option<u64>,
    is_for_tests: bool,
}

impl StoreTraits {
    /// Declares that the store has a circuit breaker per server.
    ///
    /// Limiters then add no circuit breaker of their own, because a breaker for the whole store would also reject calls
    /// to servers that respond.
    #[must_use]
    pub const fn with_own_breakers(mut self) -> Self {
        self.has_own_breakers = true;
        self
    }

    /// Sets a number that identifies the counts of the store within this process.
    ///
    /// Stores that share their counts, such as clones or two handles to the same server, must have the same number; all
    /// other stores must have different numbers. The number is only used to detect
    /// [misconfigurations](crate::docs::mistakes) and to report the scope that fills a store. Default: none.
    #[must_use]
    pub const fn with_identity(mut self, identity: u64) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Declares that the store is only used by tests.
    ///
    /// Layers that use the store add their [`Decision`](crate::Decision) to every response, as with
    /// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response), so that the assertions of
    /// `test_util` can find it.
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.is_for_tests = true;
        self
    }

    /// Returns `true` if the store has a circuit breaker per server.
    pub const fn has_own_breakers(self) -> bool {
        self.has_own_breakers
    }

    /// Returns the number set by [`with_identity`](Self::with_identity), if any.
    pub const fn identity(self) -> Option<u64> {
        self.identity
    }

    /// Returns `true` if the store is only used by tests.
    pub const fn is_for_tests(self) -> bool {
        self.is_for_tests
    }
}

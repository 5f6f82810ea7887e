//! Properties of a store that do not change.

/// Properties of a [`Store`](crate::Store) that do not change; see [`Store::traits`](crate::Store::traits).
///
/// ```
/// use std::sync::Arc;
/// use tower_quota::{Measurement, MemoryStore, Plan, Store, StoreFuture, StoreTraits};
/// # use tower_quota::Settlement;
///
/// /// One store in each region, for the callers that live there.
/// #[derive(Debug)]
/// struct Regions([Arc<dyn Store>; 2]);
///
/// impl Store for Regions {
///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
///         self.0[usize::from(plan.partition().to_bytes()[0] % 2)].acquire(plan)
///     }
///
///     // One that is unavailable must not keep requests from the other.
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
    /// The store has a circuit breaker for each of its servers, so that no limiter puts one around all of them: it would also keep
    /// requests from the servers that answer.
    #[must_use]
    pub const fn with_own_breakers(mut self) -> Self {
        self.has_own_breakers = true;
        self
    }

    /// A number that two stores of this process have in common if they keep the same quota: clones, or two handles on one
    /// server. Layers find [mistakes](crate::docs::mistakes) by it, and use it for nothing else. Two stores that keep different
    /// quota must not have the same number, or an event would be wrong.
    #[must_use]
    pub const fn with_identity(mut self, identity: u64) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Only tests use the store: a layer on it puts its [`Decision`](crate::Decision) into every response, as with
    /// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response), so that assertions of `test_util` find it.
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.is_for_tests = true;
        self
    }

    /// Returns `true` if the store has a circuit breaker for each of its servers.
    pub const fn has_own_breakers(self) -> bool {
        self.has_own_breakers
    }

    /// The number that stores of the same quota share, if it is known.
    pub const fn identity(self) -> Option<u64> {
        self.identity
    }

    /// Returns `true` for a store that only tests use.
    pub const fn is_for_tests(self) -> bool {
        self.is_for_tests
    }
}

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;

use super::waiters::WaiterLimit;
use crate::{
    clock::{Clock, Timestamp},
    decision::{Decision, Measurement, Outcome, Plan},
    error::{StoreError, StoreErrorKind},
    store::{BoxedAnswer, Store, StoreFuture, memory::MemoryStore},
    telemetry::StoreTelemetry,
};

/// The outcome of requests that neither the store nor the [fallback](crate::LimiterBuilder::fallback) decides, because
/// they are unavailable, miss the [deadline](crate::LimiterBuilder::deadline) or fail.
///
/// ```
/// # #[cfg(feature = "redis")] {
/// use tower_quota::{FailureMode, Limiter, Outcome, QuotaPolicy, RedisStore};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// for (mode, outcome) in [(FailureMode::Open, Outcome::FailedOpen), (FailureMode::Closed, Outcome::FailedClosed)] {
///     let limiter = Limiter::builder(RedisStore::new("redis://127.0.0.1:1/")?) // no server listens on this port
///         .scope("api")
///         .policy(QuotaPolicy::per_hour("hour", 10))
///         .failure_mode(mode)
///         .build()?;
///     assert_eq!(limiter.check("alice").await.outcome(), outcome);
/// }
/// # Ok(()) });
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Rejects the request with status 503 and `Retry-After: 1`.
    ///
    /// The problem type is `temporary-reduced-capacity`. Use this for routes where an uncounted request is worse than a
    /// failed request, such as logins and payments.
    Closed,
    /// Forwards the request, uncounted and without `RateLimit` fields. The default.
    #[default]
    Open,
}

pub(super) struct Fallback {
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) mode: FailureMode,
    /// The main store's deadline may have passed.
    pub(super) time: Duration,
    pub(super) waiters: Arc<WaiterLimit>,
    pub(super) clock: Clock,
    pub(super) log: Arc<StoreTelemetry>,
    pub(super) local: Local,
}

/// Decides while the main store is out of memory. Counts are kept until their windows end, so that a caller gets only
/// one additional quota even if this happens repeatedly.
#[derive(Default)]
pub(super) struct Local {
    store: OnceLock<Arc<dyn Store>>,
    /// Until this time, in microseconds, requests keep a copy of their plan for this store.
    expected_until: AtomicU64,
}

impl Local {
    /// Attackers who fill the main store also reach this store.
    const MAX_PARTITIONS: usize = 1 << 16;

    /// Temporary, because a copy of the plan costs each request an allocation.
    const EXPECTED: Duration = Duration::from_secs(60);

    fn expect(&self, now: Timestamp) {
        let until = now.saturating_add(Self::EXPECTED);
        self.expected_until.store(until.as_micros(), Ordering::Relaxed);
    }

    #[inline]
    fn is_expected(&self, clock: &Clock) -> bool {
        let until = self.expected_until.load(Ordering::Relaxed);
        until != 0 && clock.now().as_micros() < until
    }

    fn store(&self, clock: &Clock) -> &Arc<dyn Store> {
        self.store
            .get_or_init(|| Arc::new(MemoryStore::of(Self::MAX_PARTITIONS, clock.clone())))
    }
}

impl Fallback {
    #[inline]
    pub(super) fn spare(&self, plan: &Plan) -> Option<Plan> {
        (self.store.is_some() || self.local.is_expected(&self.clock)).then(|| plan.clone())
    }

    pub(super) fn flush(&self, timeout: Duration) -> StoreFuture<()> {
        let store = self.store.as_ref();
        store.map_or_else(|| StoreFuture::ready(Ok(())), |store| store.flush(timeout))
    }

    pub(super) fn begin(&self, spare: Option<Plan>, error: &StoreError) -> Result<Decision, BoxedAnswer<Measurement>> {
        let now = self.clock.now();
        self.log.undecided(now, error);
        let is_full = error.kind() == StoreErrorKind::OutOfMemory;
        let store = match &self.store {
            None if is_full && self.mode == FailureMode::Open => {
                self.local.expect(now);
                Some(self.local.store(&self.clock))
            }
            store => store.as_ref(),
        };
        let (Some(store), Some(plan)) = (store, spare) else {
            return Ok(self.failed(error));
        };
        let answer = store.acquire(plan).into_ready()?;
        Ok(answer.map_or_else(|_| self.failed(error), by_fallback))
    }

    pub(super) async fn finish(&self, answer: BoxedAnswer<Measurement>, error: &StoreError) -> Decision {
        match timeout(self.time, answer).await {
            Ok(Ok(measurement)) => by_fallback(measurement),
            Ok(Err(_)) | Err(_) => self.failed(error),
        }
    }

    pub(super) fn failed(&self, error: &StoreError) -> Decision {
        let outcome = match self.mode {
            FailureMode::Closed => Outcome::FailedClosed,
            FailureMode::Open => Outcome::FailedOpen,
        };
        self.log.failed(self.clock.now(), error, outcome, self.waiters.begun());
        Decision::unmeasured(outcome)
    }

    /// Returns `None` if the main store made the decision.
    pub(super) fn store_of(&self, decision: &Decision) -> Option<&Arc<dyn Store>> {
        let store = self.store.as_ref().or_else(|| self.local.store.get());
        store.filter(|_| decision.is_by_fallback())
    }
}

fn by_fallback(measurement: Measurement) -> Decision {
    measurement.decide().made_by_fallback()
}

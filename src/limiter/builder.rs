use std::{fmt, sync::Arc, time::Duration};

use super::{
    Guard, Inner, Limiter,
    guard::{FailureMode, GuardConfig},
    keys::{KeysSettings, MissingKey},
};
use crate::{
    access::AccessList,
    clock::Clock,
    error::{ConfigError, ConfigErrorKind},
    policy::QuotaPolicy,
    rules::{Rules, RulesSettings},
    store::Store,
    telemetry::{self, LayerTelemetry},
};

/// Configures a [`Limiter`]. The [scope](Self::scope) and at least one [policy](Self::policy) are required.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) contains a limiter. For settings that the layer builder lacks, build the
/// limiter here and pass it to [`with_limiter`](crate::RateLimitLayer::with_limiter).
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// use tower_quota::Limiter;
///
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("mails")
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .deadline(Duration::from_millis(20))
///     .build()?;
/// assert!(limiter.check("acme").await.outcome().is_admitted());
///
/// let error = Limiter::builder(MemoryStore::new()).scope("mails").build().unwrap_err();
/// assert_eq!(error.to_string(), "number of policies 0 is outside 1..=16");
/// # Ok(()) });
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimiterBuilder {
    store: Arc<dyn Store>,
    keys: KeysSettings,
    rules: RulesSettings,
    config: GuardConfig,
    clock: Clock,
    fallback: Option<Arc<dyn Store>>,
    access_list: Option<AccessList>,
    /// Set if `access_list` was called twice, because the first list would be ignored silently.
    has_lost_a_list: bool,
}

impl Limiter {
    /// Creates a builder for a limiter on `store`. The store is not called before the first decision.
    pub fn builder(store: impl Store) -> LimiterBuilder {
        LimiterBuilder {
            store: Arc::new(store),
            keys: KeysSettings::default(),
            rules: RulesSettings::default(),
            config: GuardConfig::default(),
            clock: Clock::system(),
            fallback: None,
            access_list: None,
            has_lost_a_list: false,
        }
    }
}

impl LimiterBuilder {
    /// Sets the namespace of the limits, such as `"api"` or `"login"`: 1 to 128 bytes. Required.
    ///
    /// The scope is part of every store key and a label of the metrics. Limiters and layers with the same scope and
    /// store share their counts, across all instances; different scopes never do.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.keys.scope = Some(scope.into());
        self
    }

    /// Adds a policy, up to 16.
    ///
    /// A request is charged to all policies or, if one policy rejects the request, to none. Amounts of a [custom
    /// unit](QuotaPolicy::with_unit) are passed to [`Caller::units`](crate::Caller::units).
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.rules.policy(policy);
        self
    }

    /// Adds rules that are loaded as data or that define tiers. [`Caller::tier`](crate::Caller::tier) selects the tier.
    ///
    /// These rules do not have to use every [named key](Self::named_key), because rules published later may use them.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # #[cfg(feature = "serde")]
    /// # run(async {
    /// use tower_quota::Rules;
    ///
    /// let rules: Rules = serde_json::from_str(
    ///     r#"{"tiers": [
    ///         {"name": "free", "policies": [{"name": "minute", "quota": 2, "window_seconds": 60}]},
    ///         {"name": "admin", "unlimited": true}
    ///     ]}"#,
    /// )?;
    /// let limiter = Limiter::builder(MemoryStore::new()).scope("api").rules(rules).build()?;
    /// let layer = RateLimitLayer::with_limiter(limiter)
    ///     .key(key::header("x-user-id"))
    ///     .tiers(Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok()))
    ///     .build()?;
    ///
    /// let request = |tier| Request::get("/").header("x-user-id", "alice").header("x-tier", tier);
    /// assert_eq!(send(&layer, request("free")).await.headers()["ratelimit"], r#""minute";r=1;t=30"#);
    /// assert!(send(&layer, request("admin")).await.headers().is_empty());
    /// # Ok(()) });
    /// ```
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules.rules(rules);
        self
    }

    pub(crate) fn tiers(mut self, tiers: Rules) -> Self {
        self.rules.tiers(tiers);
        self
    }

    /// Adds a key in addition to the main key, for policies that are [keyed by](QuotaPolicy::keyed_by) it.
    ///
    /// Callers pass its value to [`Caller::keyed_by`](crate::Caller::keyed_by), and a layer
    /// [extracts](crate::RateLimitLayerBuilder::named_key) it from the request. A single decision then covers several
    /// partitions. Names must be unique and not empty.
    pub fn named_key(mut self, name: impl Into<String>) -> Self {
        self.keys.named.push(name.into());
        self
    }

    /// Sets how callers and requests without a key are treated. Default: [`MissingKey::Share`].
    pub fn on_missing_key(mut self, missing: MissingKey) -> Self {
        self.keys.missing_key = missing;
        self
    }

    /// Sets the list that blocks and allows callers by main key, and requests also by client address.
    ///
    /// Several limiters can share a list.
    pub fn access_list(mut self, list: AccessList) -> Self {
        self.has_lost_a_list = self.access_list.replace(list).is_some();
        self
    }

    /// Sets the outcome of requests for which the store makes no decision. Default: [`FailureMode::Open`].
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.config.failure_mode = mode;
        self
    }

    /// Sets the maximum wait for a decision, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After the deadline, the [`fallback`](Self::fallback) or the [`failure_mode`](Self::failure_mode) decides. After
    /// five consecutive failures, a circuit breaker opens, and requests no longer wait. One request at a time probes
    /// the store: first after 50 to 100 ms, later every 250 to 500 ms. A broken connection counts as one failure,
    /// regardless of the number of requests in flight on it.
    ///
    /// At the deadline, the store first processes data that has already arrived
    /// ([`Store::catch_up`](crate::Store::catch_up)). If late timers show that the process is overloaded, a decision
    /// waits up to 1 s longer while the server keeps responding. In that case, the process causes the delay, not the
    /// server.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// /// A server that does not respond.
    /// #[derive(Debug)]
    /// struct Hanging;
    ///
    /// impl Store for Hanging {
    ///     fn acquire(&self, _: Plan) -> StoreFuture<Measurement> {
    ///         StoreFuture::boxed(std::future::pending())
    ///     }
    ///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     // …
    /// }
    ///
    /// # run(async {
    /// let builder = || Limiter::builder(Hanging).scope("api").policy(QuotaPolicy::per_minute("minute", 60));
    ///
    /// let limiter = builder().deadline(Duration::from_millis(20)).build()?;
    /// let begin = tokio::time::Instant::now();
    /// assert_eq!(limiter.check("alice").await.outcome(), Outcome::FailedOpen);
    /// assert!((20..=25).contains(&begin.elapsed().as_millis()));
    ///
    /// let error = builder().deadline(Duration::from_secs(61)).build().unwrap_err();
    /// assert_eq!(error.to_string(), "deadline 61s is outside 1ms..=60s");
    /// # Ok(()) });
    /// ```
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// Sets the maximum number of requests that wait for the store, from 1 to 65,536. Default: 10,000.
    ///
    /// A waiting request occupies a few kilobytes, including its connection, which adds up with a long
    /// [`deadline`](Self::deadline) and an unresponsive store. Further requests do not wait. If the
    /// [`fallback`](Self::fallback) responds immediately, it makes the decision; otherwise, the failure mode applies.
    /// The [metrics](crate::telemetry) report such requests as `overloaded`, and the circuit breaker ignores them.
    ///
    /// A cancelled request still counts until the store responds or its deadline expires. Concurrent requests on
    /// several threads may exceed the limit by a few. Rule of thumb: the requests per second of one instance times the
    /// deadline in seconds, plus a margin.
    pub fn max_waiting(mut self, requests: u32) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// Sets the capacity of the rejection cache, in partitions, from 0 (off) to 1,048,576. Default: 16,384.
    ///
    /// The cache rejects requests locally if the store is known to reject them. For a caller that continues after
    /// exhausting a quota, each instance then makes one store call per restored unit, plus one or two calls per second.
    /// Turn the cache off if each rejection must come from the store.
    ///
    /// - Rejections are cached for up to one second. Refunds by this limiter, new [individual
    ///   quotas](crate::CallerQuotas) and new [rules](crate::RulesHandle) apply to the next request. After a
    ///   [refund](crate::Settlement) or [reset](crate::Caller::reset) by another instance, or a direct call of
    ///   [`Store::settle`](crate::Store::settle), rejections can continue for up to one second.
    /// - After the store rejects a cost, the same or a higher cost is rejected without a store call for 10 to 20 ms, or
    ///   less if the whole quota refills in less than 40 ms. When units are restored, the store is called only for as
    ///   many requests as can be admitted. All other requests are rejected until the store responds, or for another 10
    ///   to 20 ms.
    /// - [Concurrency limits](crate::QuotaPolicy::concurrent), [leaky-bucket
    ///   queues](crate::Algorithm::LeakyBucketQueue) and [shadow policies](crate::QuotaPolicy::shadow) are not cached,
    ///   nor are decisions of the fallback or of a store that completes immediately, such as
    ///   [`MemoryStore`](crate::MemoryStore). Requests with cost 0 always call the store.
    /// - A [cached rejection](crate::Decision::is_cached) lists all cached policies that reject the request, with no
    ///   remaining units. If it is unknown whether another policy would reject the request as well, the store is
    ///   called. Cached rejections are also returned while the circuit is open.
    /// - When the cache is full, new entries evict older ones.
    /// - Partitions that this instance has exhausted keep an entry until their units are restored, unless the entry is
    ///   evicted. These entries reveal whether the store has lost its state: `tower_quota_state_lost_total`
    ///   [counts](crate::telemetry) such losses.
    ///
    /// 16,384 partitions take up to 7 MB with one policy each, plus up to 300 bytes for each further policy that
    /// rejects.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    ///
    /// /// Completes asynchronously, like a remote store.
    /// #[derive(Debug)]
    /// struct Remote(MemoryStore, Arc<AtomicUsize>);
    ///
    /// impl Store for Remote {
    ///     fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///         let store = self.0.clone();
    ///         StoreFuture::boxed(async move { store.acquire(plan).await })
    ///     }
    ///     # fn settle(&self, settlement: Settlement) -> StoreFuture<()> { self.0.settle(settlement) }
    ///     # fn reset(&self, plan: Plan) -> StoreFuture<()> { self.0.reset(plan) }
    ///     // …
    /// }
    ///
    /// # run(async {
    /// // The number of store calls for 100 checks, of which 3 pass.
    /// let asked = async |rejection_cache| {
    ///     let calls = Arc::new(AtomicUsize::new(0));
    ///     let limiter = Limiter::builder(Remote(MemoryStore::new(), Arc::clone(&calls)))
    ///         .scope("api")
    ///         .policy(QuotaPolicy::per_hour("hour", 3))
    ///         .rejection_cache(rejection_cache)
    ///         .build()?;
    ///     for number in 0..100 {
    ///         let decision = limiter.check("mallory").await;
    ///         assert_eq!(decision.outcome().is_admitted(), number < 3);
    ///         assert_eq!(decision.is_cached(), number >= 3 && rejection_cache > 0);
    ///     }
    ///     Ok::<_, tower_quota::ConfigError>(calls.load(Ordering::Relaxed))
    /// };
    /// assert_eq!(asked(1_000).await?, 3);
    /// assert_eq!(asked(0).await?, 100);
    ///
    /// let error = asked(2_000_000).await.unwrap_err();
    /// assert_eq!(error.to_string(), "rejection cache 2000000 is outside 0..=1048576");
    /// # Ok(()) });
    /// ```
    pub fn rejection_cache(mut self, partitions: usize) -> Self {
        self.config.rejection_cache = partitions;
        self
    }

    /// Sets a store that decides while the main store fails, usually a [`MemoryStore`](crate::MemoryStore). Default:
    /// none.
    ///
    /// Each instance then enforces the whole quota on its own, so N instances admit up to N times the quota. If the
    /// fallback fails too, the [`failure_mode`](Self::failure_mode) applies. A remote fallback has the same
    /// [`deadline`](Self::deadline), which starts when the main store has failed.
    ///
    /// Without a fallback, an in-process store with 65,536 partitions decides while the main store is [out of
    /// memory](crate::StoreErrorKind::OutOfMemory), unless the failure mode is `Closed`.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let limiter = Limiter::builder(Unavailable)
    ///     .fallback(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 2))
    ///     .build()?;
    /// for is_admitted in [true, true, false] {
    ///     assert_eq!(limiter.check("alice").await.outcome().is_admitted(), is_admitted);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn fallback(mut self, store: impl Store) -> Self {
        self.fallback = Some(Arc::new(store));
        self
    }

    /// Sets the clock of the circuit breaker, the [rejection cache](Self::rejection_cache) and [individual
    /// quotas](crate::CallerQuotas::until). Default: [`Clock::system`].
    ///
    /// Set another clock only in tests, usually the clock of the store. Stores have their own clocks, and deadlines use
    /// Tokio's timer.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .clock(clock.clone())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 10).with_caller_quotas(1..=100))
    ///     .build()?;
    /// let end = clock.now().saturating_add(Duration::from_secs(600));
    /// let alice = limiter.caller("alice").quotas(CallerQuotas::new().top_up("hour", 90, end));
    ///
    /// let remaining = |decision: &Decision| decision.allowances().next().map(|hour| hour.remaining());
    /// assert_eq!(remaining(&alice.check().await), Some(99));
    /// clock.advance(Duration::from_secs(600));
    /// assert_eq!(remaining(&alice.check().await), Some(9));
    /// # Ok(()) });
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the secret key of the digests by which stores identify callers. Default: none; digests then depend only on
    /// the scope.
    ///
    /// Set a key if other people can read the store and must not be able to identify callers by trying names, or if a
    /// policy [shows its partition key](QuotaPolicy::show_partition_key), which lets every client try names. All
    /// instances need the same key. After a change, every caller starts with a full quota.
    pub fn digest_key(mut self, key: [u8; 32]) -> Self {
        self.keys.digest_key = Some(key);
        self
    }

    /// Names callers in Redis keys, as in `quota:{scope:api/user:alice}`, instead of using digests. Default: digests.
    ///
    /// Useful for debugging and for operators who search Redis by name. Anyone who can read Redis can then see the
    /// callers' names. Names that would make a key longer than 200 bytes remain digests. All instances need the same
    /// setting; after a change, every caller starts with a full quota. In-memory stores have no such keys. This setting
    /// cannot be combined with [`digest_key`](Self::digest_key), which hides names.
    pub fn readable_keys(mut self) -> Self {
        self.keys.readable_keys = true;
        self
    }

    /// Validates the settings and creates the limiter.
    ///
    /// # Errors
    ///
    /// Returns the first error found: a missing scope or policy, a value out of range, or a [named
    /// key](Self::named_key) that no policy uses, unless [rules](Self::rules) were added as data. The message names the
    /// policy or setting, the value and the allowed range.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let keys = self.keys.build()?;
        if self.has_lost_a_list {
            let message = "access list: set twice; a limiter has one access list, which limiters can share";
            return Err(ConfigError::new(ConfigErrorKind::AccessRules, message));
        }
        self.access_list.as_ref().map_or(Ok(()), AccessList::check)?;
        let scope = &keys.scope_name;
        let policies = self.rules.build(scope, self.keys.named)?;
        self.config.check()?;
        if let Some(window) = policies.lone_large_window() {
            telemetry::lone_large_window(scope, window);
        }
        let guard = Guard::new(self.store, self.fallback, self.config, self.clock, scope);
        Ok(Limiter(Arc::new(Inner {
            log: LayerTelemetry::of_limiter(scope),
            keys,
            policies: Arc::new(policies),
            guard: Arc::new(guard),
            access_list: self.access_list,
        })))
    }
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder")
            .field("scope", &self.keys.scope)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

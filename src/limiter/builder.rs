//! Configuration of a limiter, checked as a whole.

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

/// Settings of a [`Limiter`]. A [scope](Self::scope) and a [policy](Self::policy) are required; all others have defaults.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) has a limiter, too: build it here for a setting that its own builder lacks, and
/// give it to [`with_limiter`](crate::RateLimitLayer::with_limiter).
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
/// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
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
    /// True if there was another list before, which would block no client.
    has_lost_a_list: bool,
}

impl Limiter {
    /// Begins a limiter on this store, which is not asked before the first decision; see [`LimiterBuilder`].
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
    /// Sets the namespace of the limits, such as `"api"` or `"login"`, in every key of the store and in metrics: 1 to 128 bytes.
    /// Required.
    ///
    /// Limiters and layers with the same scope on the same store share used units, on all instances; those with different scopes
    /// never do.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.keys.scope = Some(scope.into());
        self
    }

    /// Adds a policy. Work has to fit into all policies, and is charged to all of them or to none. Up to 16. The amounts of a
    /// [custom unit](QuotaPolicy::with_unit) are those of [`Caller::units`](crate::Caller::units).
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.rules.policy(policy);
        self
    }

    /// Adds rules that came as data, or with tiers, which [`Caller::tier`](crate::Caller::tier) names.
    ///
    /// Unlike the policies of the program, they need not use every [named key](Self::named_key): rules that come later may do so.
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

    /// The rules of [`Tiers`](crate::Tiers), which a layer was given.
    pub(crate) fn tiers(mut self, tiers: Rules) -> Self {
        self.rules.tiers(tiers);
        self
    }

    /// Adds a key beside the main one, for policies that are [keyed by](QuotaPolicy::keyed_by) it. Names are unique and not empty.
    ///
    /// [`Caller::keyed_by`](crate::Caller::keyed_by) has its value, and a layer
    /// [extracts](crate::RateLimitLayerBuilder::named_key) it. Work then uses the quota of several partitions, in one decision.
    pub fn named_key(mut self, name: impl Into<String>) -> Self {
        self.keys.named.push(name.into());
        self
    }

    /// Sets the treatment of callers, and of requests, that lack a key. Default: [`MissingKey::Share`].
    pub fn on_missing_key(mut self, missing: MissingKey) -> Self {
        self.keys.missing_key = missing;
        self
    }

    /// Sets the list that blocks and allows callers by their main key, and requests by the client's address, too. Several
    /// limiters can have one list.
    pub fn access_list(mut self, list: AccessList) -> Self {
        self.has_lost_a_list = self.access_list.replace(list).is_some();
        self
    }

    /// Sets the outcome when the store gives no decision. Default: [`FailureMode::Open`].
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.config.failure_mode = mode;
        self
    }

    /// Sets the time after which a caller goes on without a decision, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After five failures in a row no request waits at all: a circuit breaker opens, and one request at a time tries
    /// whether the store answers again, after 50 to 100 ms at first and every 250 to 500 ms later on. All requests that
    /// are under way when a connection breaks are one failure.
    ///
    /// At the deadline, the store first reads what has arrived ([`Store::catch_up`](crate::Store::catch_up)). In a process
    /// with more work than processors, which late timers show, a decision waits for up to 1 s more while the store
    /// hears from its server: the delay is the process's own, and says nothing about the server.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// /// A server that does not answer.
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

    /// Sets the maximum number of requests that wait for the store, from 1 to 65 536. Default: 10 000.
    ///
    /// Each request that waits holds memory, some kilobytes with its connection: with a long [`deadline`](Self::deadline)
    /// and a store that has stopped, that adds up. A request that finds the bound reached does not wait: the
    /// [`fallback`](Self::fallback) decides it if that answers at once, else the failure mode does. In the
    /// [numbers](crate::telemetry) it is `overloaded`, and the circuit breaker takes it for nothing. A request that was
    /// cancelled counts until the store has answered or its deadline is over. Requests that come at the very same
    /// moment on several threads may exceed the bound by a few.
    ///
    /// As a rule, it is the requests a second of one instance times the deadline in seconds, and some room.
    pub fn max_waiting(mut self, requests: u32) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// The maximum number of partitions in the rejection cache, from 0, which turns it off, to 1 048 576. Default: 16 384,
    /// which take up to 7 MB with one policy each, and up to 300 bytes more for each further one that rejects.
    ///
    /// The used amount determines exactly until when a charge is rejected; other charges only make it later.
    /// So what the store is known to reject is rejected without asking it: a caller who goes on after a quota is used up
    /// costs it, in each instance, a call for each unit that comes back and one or two a second beyond. You want to turn
    /// it off where each rejection has to come from the store.
    ///
    /// - Nothing is remembered for longer than a second. What *other* instances give back, by a
    ///   [refund](crate::Settlement) or a [reset](crate::Caller::reset), may be seen that late; so is what a program
    ///   gives back by a [`Store::settle`](crate::Store::settle) of its own. What this limiter gives back,
    ///   new [individual quotas](crate::CallerQuotas) and new [rules](crate::RulesHandle) count for each request that comes
    ///   afterwards.
    /// - The *hold*: for 10 to 20 ms after the store has rejected a cost, as much or more is rejected without a question
    ///   although it might pass; for less, where the whole quota comes back in less than 40 ms. And where so much has
    ///   come back that some requests may pass, as many ask as there is room for, and the others are rejected until the
    ///   store has answered, or for another hold.
    /// - Not remembered are limits of [concurrent requests](crate::QuotaPolicy::concurrent), leaky buckets
    ///   [with a queue](crate::Algorithm::LeakyBucketQueue) and [shadows](crate::QuotaPolicy::shadow); nor what a store
    ///   decides at once, as a [`MemoryStore`](crate::MemoryStore) does, or a fallback. Requests that cost 0 always ask.
    /// - A remembered rejection tells of all policies that are remembered and reject the request, with nothing left: see
    ///   [`Decision::is_cached`](crate::Decision::is_cached). A cost for which the room of a policy is not known asks the
    ///   store. It is given while the circuit is open, too.
    /// - Where more partitions are rejected within a second, the new ones take the place of old ones, which ask again.
    /// - A partition that this instance has exhausted keeps its place until its units are back, while no other one needs it: if
    ///   the store has lost its state, `tower_quota_state_lost_total` [counts](crate::telemetry) that.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    ///
    /// /// Has to be waited for, as a server has.
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
    /// // The number of calls to the store for 100 checks, of which 3 pass.
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

    /// A store that decides while the first one does not, most often a [`MemoryStore`](crate::MemoryStore). Default:
    /// none.
    ///
    /// Each instance then enforces the whole quota by itself, so that N instances admit up to N times as much. If the
    /// fallback fails too, the [`failure_mode`](Self::failure_mode) decides. One that has to be waited for has the same
    /// [`deadline`](Self::deadline), which begins when that of the store is over.
    ///
    /// Without a fallback, a store in this process decides while the store is
    /// [out of memory](crate::StoreErrorKind::OutOfMemory), unless the failure mode is `Closed`. It holds 65,536 partitions.
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

    /// The clock by which the circuit breaker waits before it tries again, by which rejections are
    /// [remembered](Self::rejection_cache), and by which [individual quotas](crate::CallerQuotas::until) end.
    /// Default: [`Clock::system`].
    ///
    /// You want another one in tests only, the one of the store most often. Stores have clocks of their own, and
    /// deadlines are kept by Tokio's timer.
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

    /// A secret that goes into the digests under which stores know callers. Default: none, so that the digest depends on the scope
    /// alone.
    ///
    /// You want it if others can read the store and must not find out, by trying names, who has called; and if a policy
    /// [shows its partition key](QuotaPolicy::show_partition_key), since then every client can try them. It is the same on all
    /// instances; with another secret, every caller starts with a full quota.
    pub fn digest_key(mut self, key: [u8; 32]) -> Self {
        self.keys.digest_key = Some(key);
        self
    }

    /// Names callers in the keys of Redis, as `quota:{scope:api/user:alice}`, instead of by digests. Default: digests.
    ///
    /// You want it while you look for a mistake, or where operators search Redis by name. A person who can read Redis
    /// then reads who has called, and keys are longer; a key that would be longer than 200 bytes stays a digest. All
    /// instances need the same setting: with another one, every caller starts with a full quota. In-memory stores have
    /// no such keys. It cannot be set together with a [`digest_key`](Self::digest_key), which is there to hide names.
    pub fn readable_keys(mut self) -> Self {
        self.keys.readable_keys = true;
        self
    }

    /// Checks the settings and returns the limiter.
    ///
    /// # Errors
    ///
    /// The first mistake found: a scope or policy that is missing, a policy or setting out of its range, a
    /// [named key](Self::named_key) that no policy counts by, unless [rules](Self::rules) came as data. The error names the
    /// policy or setting, the value and the bound.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let keys = self.keys.build()?;
        if self.has_lost_a_list {
            let message = "access list: it is set twice; a limiter looks at one, which several limiters can have";
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

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
    rules::{Policies, Rules},
    store::Store,
    telemetry::{self, LayerTelemetry},
};

/// Configures a [`Limiter`]. The [scope](Self::scope) and at least one [policy](Self::policy) are required.
///
/// ```
/// # #[cfg(feature = "redis")] {
/// use std::time::Duration;
/// use tower_quota::{Limiter, MemoryStore, MissingKey, Outcome, QuotaPolicy, RedisStore};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(RedisStore::new("redis://127.0.0.1:1/")?) // no server listens on this port
///     .scope("mails")
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .policy(QuotaPolicy::per_day("day", 5_000).keyed_by("team"))
///     .named_key("team")
///     .on_missing_key(MissingKey::Reject)
///     .deadline(Duration::from_millis(20))
///     .fallback(MemoryStore::new()) // decides while Redis is unavailable
///     .build()?;
///
/// let decision = limiter.caller("alice").keyed_by("team", "red").check().await;
/// assert_eq!(decision.outcome(), Outcome::Allowed);
/// let decision = limiter.caller("alice").check().await;
/// assert_eq!(decision.outcome(), Outcome::MissingKey);
/// # Ok(()) });
/// # }
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimiterBuilder {
    store: Arc<dyn Store>,
    keys: KeysSettings,
    rules: Rules,
    tiers: Option<Rules>,
    has_data: bool,
    config: GuardConfig,
    clock: Clock,
    fallback: Option<Arc<dyn Store>>,
    access_list: Option<AccessList>,
    has_lost_a_list: bool,
}

impl Limiter {
    /// Creates a builder for a limiter on `store`. The store is not called before the first decision.
    pub fn builder(store: impl Store) -> LimiterBuilder {
        LimiterBuilder {
            store: Arc::new(store),
            keys: KeysSettings::default(),
            rules: Rules::new(),
            tiers: None,
            has_data: false,
            config: GuardConfig::default(),
            clock: Clock::system(),
            fallback: None,
            access_list: None,
            has_lost_a_list: false,
        }
    }
}

impl LimiterBuilder {
    /// Sets the namespace of the limits, 1 to 128 bytes, as for [layers](crate::RateLimitLayerBuilder::scope).
    /// Required. The scope is part of every store key and a label of the metrics.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.keys.scope = Some(scope.into());
        self
    }

    /// Adds a policy, up to 16. Work is charged to all policies or, if one rejects it, to none.
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.rules = self.rules.policy(policy);
        self
    }

    /// Adds rules that are loaded as data or that define tiers. [`Caller::tier`](crate::Caller::tier) selects the tier;
    /// a layer takes it from the closure of [`Tiers::from_fn`](crate::Tiers::from_fn), which needs no tiers of its own.
    /// [Named keys](Self::named_key) may then be unused, because later rules may use them.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules.append(rules);
        self.has_data = true;
        self
    }

    pub(crate) fn tiers(mut self, tiers: Rules) -> Self {
        self.tiers.get_or_insert_default().append(tiers);
        self
    }

    /// Adds a key in addition to the main key, for policies that are [keyed by](QuotaPolicy::keyed_by) it. Names must
    /// be unique and not empty. [`Caller::keyed_by`](crate::Caller::keyed_by) or a
    /// [layer](crate::RateLimitLayerBuilder::named_key) sets its value.
    pub fn named_key(mut self, name: impl Into<String>) -> Self {
        self.keys.named.push(name.into());
        self
    }

    /// Sets how callers and requests without a key are treated. Default: [`MissingKey::Share`].
    pub fn on_missing_key(mut self, missing: MissingKey) -> Self {
        self.keys.missing_key = missing;
        self
    }

    /// Sets a list, possibly shared with other limiters, that blocks and allows callers by main key, and requests also
    /// by client address.
    pub fn access_list(mut self, list: AccessList) -> Self {
        self.has_lost_a_list = self.access_list.replace(list).is_some();
        self
    }

    /// Sets the outcome of requests for which the store makes no decision. Default: [`FailureMode::Open`].
    ///
    /// While the circuit breaker is open, [cached rejections](Self::rejection_cache) still apply, for up to a second.
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.config.failure_mode = mode;
        self
    }

    /// Sets the maximum wait for a store that does not respond, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After the deadline, the [`fallback`](Self::fallback) or the [`failure_mode`](Self::failure_mode) decides. After
    /// five consecutive failures, a circuit breaker opens, and requests no longer wait. One request at a time probes
    /// the store: first after 50 to 100 ms, later every 250 to 500 ms. A broken connection counts as one failure.
    ///
    /// If a Redis server has replied to other calls within this time, a decision waits up to five deadlines, plus the
    /// time for which this process did not run, but at most 1 s beyond the deadline. See
    /// [`Store::silence`](crate::Store::silence).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// Sets the maximum number of requests that wait for the store, from 1 to 65,536. Default: 10,000.
    ///
    /// Further requests do not wait: the [`fallback`](Self::fallback) decides if it responds immediately, otherwise the
    /// failure mode. The [metrics](crate::telemetry) report them as `overloaded`, and the circuit breaker ignores them.
    ///
    /// A waiting request occupies a few kilobytes, including its connection; a cancelled one still counts until the
    /// store responds or its deadline expires. The limit may be exceeded by a few. Rule of thumb: the requests per
    /// second of one instance times the [`deadline`](Self::deadline) in seconds, plus a margin.
    pub fn max_waiting(mut self, requests: u32) -> Self {
        self.config.max_waiting = requests;
        self
    }

    /// Sets the capacity of the rejection cache, in partitions, from 0 (off) to 1,048,576. Default: 16,384, which take
    /// up to 7 MB, plus 300 bytes per additional rejecting policy.
    ///
    /// For up to one second, the cache rejects requests that the store is known to reject, so that [clients that ignore
    /// 429](crate::docs::tuning#clients-that-ignore-429) cause few store calls. New entries evict older ones.
    ///
    /// Refunds and late charges by this limiter, new rules and new [individual quotas](crate::CallerQuotas) take effect
    /// immediately; refunds, late charges and [resets](crate::Caller::reset) by others within a second; restored units
    /// within 40 ms. After each refund or late charge, the caller's next request calls the store.
    ///
    /// Requests with cost 0, concurrency limits, leaky-bucket queues, shadow policies and stores that complete
    /// immediately ([`MemoryStore`](crate::MemoryStore)) bypass the cache.
    pub fn rejection_cache(mut self, partitions: usize) -> Self {
        self.config.rejection_cache = partitions;
        self
    }

    /// Sets a store that decides while the main store fails, usually a [`MemoryStore`](crate::MemoryStore). Default:
    /// none.
    ///
    /// With a `MemoryStore`, N instances admit up to N times the quota. If the fallback fails too, the
    /// [`failure_mode`](Self::failure_mode) applies. A remote fallback has the same [`deadline`](Self::deadline), which
    /// starts when the main store has failed.
    ///
    /// Without a fallback, an in-process store with 65,536 partitions decides while the main store is [out of
    /// memory](crate::StoreErrorKind::OutOfMemory), unless the failure mode is `Closed`.
    pub fn fallback(mut self, store: impl Store) -> Self {
        self.fallback = Some(Arc::new(store));
        self
    }

    /// Sets the clock of the circuit breaker, the [rejection cache](Self::rejection_cache) and the end of [individual
    /// quotas](crate::CallerQuotas::until), for tests. Default: [`Clock::system`]. Stores have their own clocks, and
    /// deadlines use Tokio's timer.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the secret key of the digests by which stores identify callers. Default: none; digests then depend only on
    /// the scope and the caller's key.
    ///
    /// Set a key if others can read the store and must not identify callers by trying names, or if a policy [shows its
    /// partition key](QuotaPolicy::show_partition_key). All instances need the same key. After a change, every caller
    /// starts with a full quota.
    pub fn digest_key(mut self, key: [u8; 32]) -> Self {
        self.keys.digest_key = Some(key);
        self
    }

    /// Names callers in Redis keys, as in `quota:{scope:api/user:alice}`, or for a [named key](Self::named_key) as in
    /// `quota:{scope:api/team/text:red}`. Default: digests.
    ///
    /// Use this if operators search Redis by name; all who can read Redis then see the names. Names that would make a
    /// key longer than 200 bytes remain digests. All instances need the same setting; after a change, every caller
    /// starts with a full quota. Cannot be combined with [`digest_key`](Self::digest_key).
    pub fn readable_keys(mut self) -> Self {
        self.keys.readable_keys = true;
        self
    }

    /// Validates the settings and creates the limiter.
    ///
    /// # Errors
    ///
    /// Returns the first error found: a missing scope or policy, a value out of range, or a [named
    /// key](Self::named_key) that no policy uses, unless [rules](Self::rules) were added as data.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let keys = self.keys.build()?;
        if self.has_lost_a_list {
            let message = "access list: set twice; a limiter has one access list, which limiters can share";
            return Err(ConfigError::new(ConfigErrorKind::AccessRules, message));
        }
        self.access_list.as_ref().map_or(Ok(()), AccessList::check)?;
        let scope = &keys.scope_name;
        let policies = Policies::new(scope, self.keys.named, self.rules, self.tiers, self.has_data)?;
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

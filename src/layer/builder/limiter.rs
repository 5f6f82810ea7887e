//! A limiter without a layer.

use std::{sync::Arc, time::Duration};

use http::request::Parts;

use super::RateLimitLayerBuilder;
use crate::{
    access::AccessList,
    clock::Clock,
    error::ConfigError,
    guard::FailureMode,
    key::KeyExtractor,
    layer::{MissingKey, RateLimitLayer, limiter::Limiter},
    partition::PartitionKey,
    policy::QuotaPolicy,
    rules::{Rules, Tiers},
    store::Store,
};

/// Configures a [`Limiter`] without a layer: for jobs, messages of a WebSocket, calls to a partner.
///
/// The settings are those of the [layer's builder](crate::RateLimitLayerBuilder) that need no request, with the same defaults
/// and bounds. A layer and a limiter with one scope, store and policies limit the same callers: give the limiter the key that
/// the layer extracts, kind and value.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// use tower_quota::Limiter;
///
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("mails")
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .build()?;
/// assert!(limiter.check("acme").await.outcome().is_admitted());
///
/// let error = Limiter::builder(MemoryStore::new()).scope("mails").build().unwrap_err();
/// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
/// # Ok(()) });
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimiterBuilder(RateLimitLayerBuilder);

impl Limiter {
    /// Begins a limiter on this store. It needs a [`scope`](LimiterBuilder::scope) and a policy.
    pub fn builder(store: impl Store) -> LimiterBuilder {
        LimiterBuilder(RateLimitLayer::builder(store).key(NoRequest::<false>))
    }
}

/// A key of a request, of which there is none. Layers compare policies by the types of their keys, so a named one has another.
struct NoRequest<const IS_NAMED: bool>;

impl<const IS_NAMED: bool> KeyExtractor for NoRequest<IS_NAMED> {
    fn extract(&self, _request: &Parts) -> Option<PartitionKey> {
        None
    }
}

impl LimiterBuilder {
    /// Sets the name of the limits, in metrics and in every key of the store: see
    /// [`scope`](crate::RateLimitLayerBuilder::scope).
    pub fn scope(self, scope: impl Into<String>) -> Self {
        Self(self.0.scope(scope))
    }

    /// Adds a policy. Work has to fit into all of them, and is charged to all of them or to none. Up to 16. The amounts of a
    /// [custom unit](QuotaPolicy::with_unit) are those of [`Caller::units`](crate::Caller::units).
    pub fn policy(self, policy: QuotaPolicy) -> Self {
        Self(self.0.policy(policy))
    }

    /// Adds rules that came as data, or with tiers, which [`Caller::tier`](crate::Caller::tier) names.
    pub fn rules(self, rules: Rules) -> Self {
        Self(self.0.rules(rules))
    }

    /// Adds a key beside the main one, for policies that are [keyed by](QuotaPolicy::keyed_by) it;
    /// [`Caller::keyed_by`](crate::Caller::keyed_by) has its value.
    pub fn named_key(self, name: impl Into<String>) -> Self {
        Self(self.0.named_key(name, NoRequest::<true>))
    }

    /// Sets the treatment of work whose caller lacks a named key. Default: [`MissingKey::Share`].
    pub fn on_missing_key(self, missing: MissingKey) -> Self {
        Self(self.0.on_missing_key(missing))
    }

    /// Sets the list that blocks and allows callers by their main key; what it says about addresses has no effect here.
    pub fn access_list(self, list: AccessList) -> Self {
        Self(self.0.access_list(list))
    }

    /// Sets the time within which there is a decision, from 1 ms: see [`deadline`](crate::RateLimitLayerBuilder::deadline).
    /// Default: 50 ms.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self(self.0.deadline(deadline))
    }

    /// Sets the outcome when the store gives no decision. Default: [`FailureMode::Open`].
    pub fn failure_mode(self, mode: FailureMode) -> Self {
        Self(self.0.failure_mode(mode))
    }

    /// Sets a store that decides when the other one does not: see [`fallback`](crate::RateLimitLayerBuilder::fallback).
    pub fn fallback(self, store: impl Store) -> Self {
        Self(self.0.fallback(store))
    }

    /// Sets how many calls may wait for the store at a time. Default: 10,000. See
    /// [`max_waiting`](crate::RateLimitLayerBuilder::max_waiting).
    pub fn max_waiting(self, calls: u32) -> Self {
        Self(self.0.max_waiting(calls))
    }

    /// Sets the size of the cache of rejected callers. Default: 16,384. See
    /// [`rejection_cache`](crate::RateLimitLayerBuilder::rejection_cache).
    pub fn rejection_cache(self, partitions: usize) -> Self {
        Self(self.0.rejection_cache(partitions))
    }

    /// Sets the secret of the digests in the store: see [`digest_key`](crate::RateLimitLayerBuilder::digest_key).
    pub fn digest_key(self, key: [u8; 32]) -> Self {
        Self(self.0.digest_key(key))
    }

    /// Shows the keys of callers to operators: see [`readable_keys`](crate::RateLimitLayerBuilder::readable_keys).
    pub fn readable_keys(self) -> Self {
        Self(self.0.readable_keys())
    }

    /// Sets the clock, for tests: see [`clock`](crate::RateLimitLayerBuilder::clock).
    pub fn clock(self, clock: Clock) -> Self {
        Self(self.0.clock(clock))
    }

    /// Checks the settings and returns the limiter.
    ///
    /// # Errors
    ///
    /// If a setting is missing or out of its bounds; the error names the policy, the value and the bound.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let mut builder = self.0;
        if builder.rules.has_tiers() {
            builder = builder.tiers(Tiers::from_fn(|_| None));
        }
        for unit in builder.rules.custom_units() {
            builder = builder.unit_cost(unit.as_str(), |_| 0);
        }
        Ok(Limiter(Arc::clone(builder.build()?.0.whole())))
    }
}

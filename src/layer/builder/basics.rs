use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::{RateLimitLayerBuilder, Source};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    layer::{
        RateLimitLayer,
        admission::Limits,
        attribution::{Extractor, Extractors},
        registry::{Neighbourhood, RegisteredLayer},
    },
    limiter::{FailureMode, Limiter},
    policy::QuotaPolicy,
    response::{
        fields::ResponseFields,
        rejection::{Rejection, Responder},
    },
    rules::{LayerView, Tiers},
    sync::per_thread::Shared,
    telemetry::{self, LayerTelemetry},
};

/// # Basics
impl RateLimitLayerBuilder {
    /// Sets the namespace of these limits, such as `"api"` or `"login"`. Required.
    ///
    /// The scope has 1 to 128 bytes. Layers with the same scope and store share their counts, in all instances. Layers
    /// with different scopes never share counts.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let store = MemoryStore::new();
    /// let layer = |scope| {
    ///     let builder = RateLimitLayer::builder(store.clone()).scope(scope).key(key::header("x-user-id"));
    ///     builder.policy(QuotaPolicy::per_hour("hour", 10)).build()
    /// };
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&layer("api")?, alice()).await;
    /// let again = send(&layer("api")?, alice()).await;
    /// assert_eq!(again.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
    /// let elsewhere = send(&layer("mails")?, alice()).await;
    /// assert_eq!(elsewhere.headers()["ratelimit"], r#""hour";r=9;t=3240"#);
    /// # Ok(()) });
    /// ```
    pub fn scope(self, scope: impl Into<String>) -> Self {
        self.limiter(ConfigErrorKind::Scope, "scope", |limiter| limiter.scope(scope))
    }

    /// Sets the key of requests: each value of the key has a separate quota. See [`key`](crate::key). Required.
    ///
    /// [`build`](Self::build) fails if the key is set twice.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 1))
    ///     .build()?;
    ///
    /// for (user, status) in [("alice", 200), ("alice", 429), ("bob", 200)] {
    ///     assert_eq!(send(&layer, Request::get("/").header("x-user-id", user)).await.status(), status);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.keys.main.push(Extractor::new(key));
        self
    }

    /// Adds a policy. A request is admitted if all policies admit it; otherwise, no policy is charged. Maximum: 16.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .policy(QuotaPolicy::per_day("day", 2))
    ///     .build()?;
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&layer, alice()).await;
    /// send(&layer, alice()).await;
    /// let rejected = send(&layer, alice()).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert!(rejected.headers()["ratelimit"].to_str()?.starts_with(r#""hour";r=98;t=3528, "day";r=0;"#));
    /// # Ok(()) });
    /// ```
    pub fn policy(self, policy: QuotaPolicy) -> Self {
        self.limiter(ConfigErrorKind::Policies, "policy", |limiter| limiter.policy(policy))
    }

    /// Sets the policies by the caller's tier, instead of [`policy`](Self::policy). See [`Tiers`].
    ///
    /// [`build`](Self::build) fails if this is combined with `policy` or called twice. A layer of a
    /// [limiter](RateLimitLayer::with_limiter) takes `Tiers` without policies, which only select the tier of each
    /// request.
    pub fn tiers(mut self, tiers: Tiers) -> Self {
        self.tiers.push(tiers.source);
        match (&self.source, tiers.rules.is_empty()) {
            (Source::Built(_), true) => self,
            _ => self.limiter(ConfigErrorKind::Policies, "tiers", |limiter| limiter.tiers(tiers.rules)),
        }
    }

    /// Sets how requests are handled if the store returns no decision. Default: [`FailureMode::Open`].
    ///
    /// See [`FailureMode`] for examples.
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        self.limiter(ConfigErrorKind::Store, "failure mode", |limiter| {
            limiter.failure_mode(failure_mode)
        })
    }

    /// Sets the response to rejected requests. Default: [`Rejection::to_response`].
    ///
    /// The closure sets the status and the body. It runs on the request's task and must not block. The layer then adds
    /// `RateLimit`, `RateLimit-Policy` and `Retry-After`; a later `Retry-After` of the response is kept. If the
    /// response has no `Cache-Control` and caches may store its status by default, the layer adds `no-store`.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 1))
    ///     .respond_with(|rejection| {
    ///         let mut response = Response::new("Slow down, please.\n".into());
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     })
    ///     .build()?;
    ///
    /// send(&layer, Request::get("/")).await;
    /// let rejected = send(&layer, Request::get("/")).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert_eq!(rejected.headers()["retry-after"], "60");
    /// assert_eq!(rejected.into_body().collect().await?.to_bytes(), "Slow down, please.\n");
    /// # Ok(()) });
    /// ```
    pub fn respond_with<F, R>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection<'_>) -> R + Send + Sync + 'static,
        R: RejectionResponse,
    {
        self.responder = Responder::new(move |rejection| respond(rejection).into_response());
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns the first misconfiguration found: a missing scope, key or policy, a policy or setting that is out of
    /// range, a [fixed cost](Self::cost) above the capacity of a policy, a [unit](QuotaPolicy::with_unit) without a
    /// cost, or a [named key](Self::named_key) or [unit](Self::unit_cost) that no policy uses (unless
    /// [rules](Self::rules) are set as data, because later rules may use it). The message names the policy or setting,
    /// the value and the bound.
    pub fn build(mut self) -> Result<RateLimitLayer, ConfigError> {
        self.keys.check()?;
        self.screening.check()?;
        self.fields.check()?;
        let status = self.status.as_u16();
        ConfigError::check_range(ConfigErrorKind::RejectionStatus, "rejection status", status, 400..=599)?;
        let tiers = self.tiers.pop();
        if !self.tiers.is_empty() {
            let message = "tiers: set twice; only one closure can determine the tier of a request";
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        let view = LayerView {
            has_tiers: tiers.is_some(),
            units: self.cost.units()?,
            fixed_cost: self.cost.fixed(),
            fields: self.fields,
        };
        let limiter = self.source.build()?;
        let inner = &*limiter.0;
        let keys = self.keys.build(inner.policies.keys())?;
        let view = inner.policies.add_view(view)?;
        let neighbour = registered(&limiter, &keys, view.fields());
        let is_for_tests = inner.guard.store().traits().is_for_tests();
        let limits = Limits {
            screening: self.screening,
            keys,
            tiers: tiers.unwrap_or_default(),
            cost: self.cost,
            responder: self.responder,
            status: self.status,
            decision_in_request: self.decision_in_request,
            decision_in_response: self.decision_in_response || is_for_tests,
            log: LayerTelemetry::new(limiter.scope()),
            neighbour,
            view,
            limiter,
        };
        Ok(RateLimitLayer(Shared::new(limits)))
    }
}

/// Also logs warnings about settings that are valid but probably unintended.
fn registered(limiter: &Limiter, keys: &Extractors, fields: &ResponseFields) -> Arc<RegisteredLayer> {
    let (inner, scope) = (&*limiter.0, limiter.scope());
    let store = inner.guard.store().traits().identity();
    let neighbour = RegisteredLayer::new(store, &inner.keys, keys, &inner.policies);
    match neighbour.register() {
        Some(Neighbourhood::Differs(policy)) => telemetry::two_quotas(scope, &policy),
        Some(Neighbourhood::CountsTogether(policy)) => telemetry::counts_together(scope, &policy),
        None => {}
    }
    let shows_address = |named| !inner.keys.has_digest_key && keys.may_be_address(named);
    let shown = inner.policies.showing_key(shows_address);
    if let Some(policy) = shown.filter(|_| fields.can_show_partition_keys()) {
        telemetry::guessable_address(scope, &policy);
    }
    neighbour
}

/// The response type of [`respond_with`](RateLimitLayerBuilder::respond_with), only implemented for
/// `http::Response<bytes::Bytes>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response that `respond_with` can send",
    label = "the closure must return `http::Response<bytes::Bytes>`",
    note = "convert text or bytes with `.into()`: `http::Response::new(\"Slow down.\".into())`",
    note = "for a response of axum, use `respond_with_axum` (feature `axum` of tower-quota)"
)]
pub trait RejectionResponse {
    /// Returns the response.
    fn into_response(self) -> Response<Bytes>;
}

impl RejectionResponse for Response<Bytes> {
    fn into_response(self) -> Self {
        self
    }
}

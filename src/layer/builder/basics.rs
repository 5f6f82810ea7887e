use bytes::Bytes;
use http::Response;

use super::{RateLimitLayerBuilder, Source};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    layer::{RateLimitLayer, admission::Limits, attribution::Extractor, registry::RegisteredLayer},
    limiter::FailureMode,
    policy::QuotaPolicy,
    response::rejection::{Rejection, Responder},
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
    pub fn scope(self, scope: impl Into<String>) -> Self {
        self.limiter(ConfigErrorKind::Scope, "scope", |limiter| limiter.scope(scope))
    }

    /// Sets the key of requests: each value of the key has a separate quota. See [`key`](crate::key). Required.
    ///
    /// [`build`](Self::build) fails if the key is set twice.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.keys.main.push(Extractor::new(key));
        self
    }

    /// Adds a policy. Maximum: 16.
    ///
    /// A request is admitted if all policies admit it. Otherwise, no policy is charged.
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

    /// Sets how requests are handled if the store returns no decision. See [`FailureMode`]. Default:
    /// [`FailureMode::Open`].
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        self.limiter(ConfigErrorKind::Store, "failure mode", |limiter| {
            limiter.failure_mode(failure_mode)
        })
    }

    /// Sets the response to rejected requests. See [`Rejection`] for an example. Default: [`Rejection::to_response`].
    ///
    /// The closure sets the status and the body. It runs on the request's task and must not block. The layer then adds
    /// `RateLimit`, `RateLimit-Policy` and `Retry-After`. If the response already has a `Retry-After`, the later time
    /// applies. If the response has no `Cache-Control` and caches may store its status by default, the layer adds
    /// `no-store`.
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
    /// Returns the first misconfiguration found. The message names the policy or setting, the value and the bound:
    ///
    /// - A scope, key or policy is missing.
    /// - A policy or setting is out of range.
    /// - A [fixed cost](Self::cost) exceeds the capacity of a policy.
    /// - A [unit](QuotaPolicy::with_unit) has no cost.
    /// - No policy uses a [named key](Self::named_key) or [unit](Self::unit_cost). This is allowed if
    ///   [rules](Self::rules) are set as data, because later rules may use it.
    pub fn build(mut self) -> Result<RateLimitLayer, ConfigError> {
        self.keys.check()?;
        self.screening.check()?;
        self.fields.check()?;
        self.lingering_close.check()?;
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
        let traits = inner.guard.store().traits();
        let neighbour = RegisteredLayer::new(traits.identity(), &inner.keys, &keys, &inner.policies);
        if let Some(policy) = neighbour.register() {
            telemetry::two_quotas(limiter.scope(), &policy);
        }
        let limits = Limits {
            screening: self.screening,
            keys,
            tiers: tiers.unwrap_or_default(),
            cost: self.cost,
            responder: self.responder,
            status: self.status,
            lingering_close: self.lingering_close,
            decision_in_request: self.decision_in_request,
            decision_in_response: self.decision_in_response || traits.is_for_tests(),
            log: LayerTelemetry::new(limiter.scope()),
            neighbour,
            view,
            limiter,
        };
        Ok(RateLimitLayer(Shared::new(limits)))
    }
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

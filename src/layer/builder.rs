use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode, request, response};
use tower_layer::Layer;

use super::{
    LingeringClose, RateLimit, RateLimitLayer,
    admission::Limits,
    attribution::{Extractor, ExtractorSettings},
    cost::{ExpectedCost, RequestCost},
    registry::RegisteredLayer,
};
use crate::{
    access::{AbnormalUsage, AccessList, Capacity, Exemption, Screening},
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    limiter::{FailureMode, Limiter, LimiterBuilder, MissingKey},
    policy::{QuotaPolicy, UnitName},
    response::{
        fields::ResponseFields,
        rejection::{Rejection, Responder},
    },
    rules::{LayerView, Rules, TierSource, Tiers},
    store::Store,
    sync::per_thread::Shared,
    telemetry::{self, LayerTelemetry},
};

/// The settings of a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// [`scope`](Self::scope), [`key`](Self::key), and [`policy`](Self::policy) or [`tiers`](Self::tiers) are required; all
/// other settings have defaults. Deadlines, a fallback store, secrets and clocks are settings of the
/// [limiter](crate::LimiterBuilder): see [`RateLimitLayer::with_limiter`] and the `From` implementation below.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_quota::{Decision, Exemption, FailureMode, MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .named_key("team", key::header("x-team"))
///     .policy(QuotaPolicy::per_minute("user", 10))
///     .policy(QuotaPolicy::per_day("team", 5_000).keyed_by("team"))
///     .cost_by(|request| if request.uri.path() == "/search" { 5 } else { 1 })
///     .on_missing_key(MissingKey::Reject)
///     .failure_mode(FailureMode::Closed)
///     .exempt(Exemption::path("/health"))
///     .skip_cors_preflight()
///     .decision_in_response()
///     .build()?;
/// let service = ServiceBuilder::new()
///     .layer(limits)
///     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
/// let request = |path| Request::get(path).header("x-user-id", "alice").header("x-team", "red").body(String::new());
///
/// let search = service.clone().oneshot(request("/search")?).await?;
/// assert_eq!(search.headers()["ratelimit"], r#""user";r=5;t=30, "team";r=4995;t=86314"#);
/// let decision: &Decision = search.extensions().get().expect("`decision_in_response` inserts it");
/// assert_eq!(decision.allowances().map(|allowance| allowance.remaining()).min(), Some(5));
///
/// assert_eq!(service.clone().oneshot(request("/search")?).await?.status(), 200);
/// let rejected = service.clone().oneshot(request("/items")?).await?;
/// assert_eq!(rejected.status(), 429);
/// assert_eq!(rejected.headers()["retry-after"], "6");
/// assert_eq!(service.clone().oneshot(request("/health")?).await?.status(), 200);
/// # let status = async |request: http::request::Builder| {
/// #     service.clone().oneshot(request.body(String::new()).unwrap()).await.unwrap().status()
/// # };
/// # let preflight = Request::options("/").header("x-user-id", "alice").header("origin", "https://example.com");
/// # assert_eq!(status(preflight.header("access-control-request-method", "PUT")).await, 200);
/// # assert_eq!(status(Request::get("/").header("x-team", "red")).await, 403);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct RateLimitLayerBuilder {
    source: Source,
    keys: ExtractorSettings,
    /// `build()` allows at most one source.
    tiers: Vec<TierSource>,
    responder: Responder,
    status: StatusCode,
    lingering_close: LingeringClose,
    fields: ResponseFields,
    screening: Screening,
    cost: RequestCost,
    decision_in_request: bool,
    decision_in_response: bool,
}

enum Source {
    Built(Limiter),
    Settings(Box<LimiterBuilder>),
    /// A setting of the limiter was set, but the limiter is already built.
    Late(ConfigErrorKind, &'static str),
}

impl RateLimitLayer {
    /// Creates a builder for a layer that keeps its counts in `store`, which is not called before the first request.
    pub fn builder(store: impl Store) -> RateLimitLayerBuilder {
        Limiter::builder(store).into()
    }

    /// Creates a builder for a layer that uses the scope, rules, store and fault tolerance of `limiter`, so that
    /// several layers, and work that passes through no layer, share one set of rules.
    ///
    /// A [`key`](RateLimitLayerBuilder::key) is required. New rules must be valid for all layers of the limiter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 4))
    ///     .deadline(Duration::from_millis(20))
    ///     .build()?;
    /// let layer = RateLimitLayer::with_limiter(limiter.clone()).key(key::header("x-user-id")).build()?;
    /// let exports = RateLimitLayer::with_limiter(limiter.clone()).key(key::header("x-user-id")).cost(2).build()?;
    ///
    /// // Jobs of a user are charged to the same quota as the user's requests.
    /// let decision = limiter.check(&PartitionKey::new("x-user-id", "alice")).await;
    /// assert_eq!(decision.allowances().next().map(|hour| hour.remaining()), Some(3));
    /// # let alice = || http::Request::get("/").header("x-user-id", "alice");
    /// # assert_eq!(set_up::send(&exports, alice()).await.headers()["ratelimit"], r#""hour";r=1;t=900"#);
    /// # assert_eq!(set_up::send(&layer, alice()).await.headers()["ratelimit"], r#""hour";r=0;t=900"#);
    /// # assert_eq!(set_up::send(&layer, alice()).await.status(), 429);
    /// # Ok(()) });
    /// ```
    pub fn with_limiter(limiter: Limiter) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::new(Source::Built(limiter))
    }
}

/// Creates a builder from the settings of a limiter, for those that only [`LimiterBuilder`] has.
///
/// ```
/// use tower_quota::{
///     ConfigError, Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Store, key,
/// };
///
/// fn limits(store: impl Store) -> Result<RateLimitLayer, ConfigError> {
///     RateLimitLayerBuilder::from(Limiter::builder(store).fallback(MemoryStore::new()))
///         .scope("api")
///         .key(key::header("x-user-id"))
///         .policy(QuotaPolicy::per_hour("hour", 2))
///         .build()
/// }
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// # let layer = limits(set_up::Unavailable)?;
/// # for status in [200, 200, 429] {
/// #     let request = http::Request::get("/").header("x-user-id", "alice");
/// #     assert_eq!(set_up::send(&layer, request).await.status(), status);
/// # }
/// # Ok(()) });
/// ```
impl From<LimiterBuilder> for RateLimitLayerBuilder {
    fn from(limiter: LimiterBuilder) -> Self {
        Self::new(Source::Settings(Box::new(limiter)))
    }
}

/// # Basics
impl RateLimitLayerBuilder {
    /// Sets the namespace of these limits, such as `"api"` or `"login"`: 1 to 128 bytes. Required.
    ///
    /// Layers with the same scope and store share their counts, in all instances. Layers with different scopes never
    /// do.
    pub fn scope(self, scope: impl Into<String>) -> Self {
        self.limiter(ConfigErrorKind::Scope, "scope", |limiter| limiter.scope(scope))
    }

    /// Sets the [key](crate::key) of requests: each value has a separate quota. Required. [`build`](Self::build) fails
    /// if it is set twice.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.keys.main.push(Extractor::new(key));
        self
    }

    /// Adds a policy, up to 16. A request is admitted if all policies admit it; otherwise, none is charged.
    pub fn policy(self, policy: QuotaPolicy) -> Self {
        self.limiter(ConfigErrorKind::Policies, "policy", |limiter| limiter.policy(policy))
    }

    /// Sets the policies by the caller's tier, instead of [`policy`](Self::policy). See [`Tiers`].
    ///
    /// [`build`](Self::build) fails if this is combined with `policy` or called twice. A layer of a
    /// [limiter](RateLimitLayer::with_limiter) takes `Tiers` without policies, which only select the tier.
    pub fn tiers(mut self, tiers: Tiers) -> Self {
        self.tiers.push(tiers.source);
        match (&self.source, tiers.rules.is_empty()) {
            (Source::Built(_), true) => self,
            _ => self.limiter(ConfigErrorKind::Policies, "tiers", |limiter| limiter.tiers(tiers.rules)),
        }
    }

    /// Sets how requests are handled if the store returns no decision. Default: [`FailureMode::Open`].
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        self.limiter(ConfigErrorKind::Store, "failure mode", |limiter| {
            limiter.failure_mode(failure_mode)
        })
    }

    /// Sets the response to rejected requests. See [`Rejection`] for an example. Default: [`Rejection::to_response`].
    ///
    /// The closure sets the status and the body. It runs on the request's task and must not block. The layer then adds
    /// `RateLimit`, `RateLimit-Policy` and `Retry-After`; if the response already has a `Retry-After`, the later time
    /// applies. If caches may store the status by default, and the response has no `Cache-Control`, the layer adds
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
    /// Returns the first misconfiguration found:
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
        let decision_in_response = self.decision_in_response || traits.is_for_tests();
        let limits = Limits {
            tells_numbers: !decision_in_response && self.cost.actual.is_none(),
            screening: self.screening,
            keys,
            tiers: tiers.unwrap_or_default(),
            cost: self.cost,
            responder: self.responder,
            status: self.status,
            lingering_close: self.lingering_close,
            decision_in_request: self.decision_in_request,
            decision_in_response,
            log: LayerTelemetry::new(limiter.scope()),
            neighbour,
            view,
            limiter,
        };
        Ok(RateLimitLayer(Shared::new(limits)))
    }
}

/// # Advanced: attribution
impl RateLimitLayerBuilder {
    /// Adds a key, for policies that are [keyed by](crate::QuotaPolicy::keyed_by) it.
    ///
    /// Names must be unique and not empty. Each request is charged to the partitions of all keys in one decision. A
    /// layer of a [limiter](crate::RateLimitLayer::with_limiter) must extract exactly the keys that the limiter
    /// [names](crate::LimiterBuilder::named_key).
    pub fn named_key(mut self, name: impl Into<String>, key: impl KeyExtractor) -> Self {
        let name = name.into();
        self.source = match self.source {
            Source::Settings(limiter) => Source::Settings(Box::new(limiter.named_key(name.clone()))),
            built => built,
        };
        self.keys.named.push((name, Extractor::new(key)));
        self
    }

    /// Sets how requests without a key are handled. Default: [`MissingKey::Share`].
    pub fn on_missing_key(self, missing: MissingKey) -> Self {
        self.limiter(ConfigErrorKind::Key, "missing key", |limiter| {
            limiter.on_missing_key(missing)
        })
    }
}

/// # Advanced: responses and handlers
impl RateLimitLayerBuilder {
    /// Sets the header fields of responses. Default: [`ResponseFields::draft11`].
    pub fn response_fields(mut self, fields: ResponseFields) -> Self {
        self.fields = fields;
        self
    }

    /// Sets the [status](crate::Rejection::status) of rejections due to an exhausted quota. Default: 429. Range: 400 to
    /// 599, which [`build`](Self::build) checks.
    pub fn rejection_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets how request bodies are discarded that a rejection leaves unread. Default: [`LingeringClose::new`].
    pub fn lingering_close(mut self, lingering_close: LingeringClose) -> Self {
        self.lingering_close = lingering_close;
        self
    }

    /// Inserts the [`Decision`](crate::Decision) into the extensions of each forwarded request.
    ///
    /// axum handlers can take a `Decision` as an argument. If layers are nested, it is that of the innermost layer. The
    /// remaining units do not include later changes by the [actual cost](Self::actual_cost). Default: off, because this
    /// copies the decision for each request, in two allocations of about 600 bytes in total.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// async fn report(request: Request<String>) -> Result<Response<String>, Infallible> {
    ///     let decision: Option<&Decision> = request.extensions().get();
    ///     let remaining = decision.and_then(|decision| Some(decision.allowances().next()?.remaining()));
    ///     Ok(Response::new(format!("{remaining:?}")))
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .decision_in_request()
    ///     .build()?;
    /// let service = ServiceBuilder::new().layer(limits).service_fn(report);
    /// let response = service.oneshot(Request::get("/").header("x-user-id", "alice").body(String::new())?).await?;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "Some(59)");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn decision_in_request(mut self) -> Self {
        self.decision_in_request = true;
        self
    }

    /// Inserts the [`Decision`](crate::Decision) into the extensions of every response, for outer layers, logs and
    /// tests.
    ///
    /// By default, only rejections and responses to requests that [failed open](crate::Outcome::FailedOpen) have it,
    /// except with a store [for tests](crate::StoreTraits::for_tests). If layers are nested, a rejection by an inner
    /// layer is kept; otherwise, the decision is that of the outermost layer with this setting.
    pub fn decision_in_response(mut self) -> Self {
        self.decision_in_response = true;
        self
    }
}

/// # Advanced: policies and costs
impl RateLimitLayerBuilder {
    /// Adds policies or tiers that are defined outside the program, for example in a file. See [`Rules`].
    ///
    /// Rules are added to the policies of [`policy`](Self::policy), in call order. Rules with tiers require
    /// [`tiers`](Self::tiers), whose own tiers come after theirs, and cannot be combined with policies. A
    /// [`RulesHandle`](crate::RulesHandle) replaces all policies and tiers.
    pub fn rules(self, rules: Rules) -> Self {
        self.limiter(ConfigErrorKind::Policies, "rules", |limiter| limiter.rules(rules))
    }

    /// Sets the cost of each request, for policies that count requests. Default: 1.
    ///
    /// A request with cost 0 is not charged in any unit, unless its [`ActualCost`](crate::ActualCost) is above 0. Its
    /// response still has fields. [`build`](Self::build) and [new rules](crate::RulesHandle::replace) fail if the cost
    /// exceeds the capacity of a policy.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost.expected = ExpectedCost::Same(cost);
        self
    }

    /// Computes the cost of each request from its method, path, header fields and extensions. See [`cost`](Self::cost).
    ///
    /// Called once per request, on its task: `cost` must not block. A request that costs more than the capacity of a
    /// policy is rejected without `Retry-After`; an event reports the first one.
    pub fn cost_by<F>(mut self, cost: F) -> Self
    where
        F: Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost.expected = ExpectedCost::By(Box::new(cost));
        self
    }

    /// Computes the cost of each request in a [custom unit](crate::QuotaPolicy::with_unit). Required for each custom
    /// unit.
    ///
    /// All units are charged in one decision, together with [`cost`](Self::cost). An amount above the capacity of the
    /// policy is rejected without `Retry-After`. An amount of 0 is admitted unless the policy is overdrawn.
    ///
    /// The closure is called once per request, if a policy of the request counts the unit. It must not block and cannot
    /// read the body; see the [guide](crate::guide::tokens) for estimates that depend on the body.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// /// An estimate that a middleware has computed from the body.
    /// #[derive(Clone)]
    /// struct Estimate(u64);
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("models")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("requests", 60))
    ///     .policy(QuotaPolicy::per_minute("tokens", 6_000).with_unit("tokens"))
    ///     .unit_cost("tokens", |request| match request.extensions.get() {
    ///         Some(Estimate(tokens)) => *tokens,
    ///         None => 1_000,
    ///     })
    ///     .build()?;
    /// # let response = set_up::send(&layer, http::Request::post("/").extension(Estimate(1_500))).await;
    /// # assert_eq!(response.headers()["ratelimit"], r#""requests";r=59;t=59, "tokens";r=4500;t=45"#);
    /// # Ok(()) });
    /// ```
    pub fn unit_cost<F>(mut self, unit: &str, cost: F) -> Self
    where
        F: Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost.units.push((UnitName::new(unit), Box::new(cost)));
        self
    }

    /// Computes the actual cost of each request from its response. `None`, the default, leaves the charge as it is.
    ///
    /// The difference is charged or refunded without delaying the response. The closure runs on the request's task and
    /// must not block. [`ActualCost`](crate::ActualCost) in the response takes precedence.
    ///
    /// To count only failures, such as failed logins, charge 1 unit and [refund it on success](crate::guide::failure).
    ///
    /// ```
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let failed_logins = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("failed logins")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("failures", 10))
    ///     .actual_cost(|response| response.status.is_success().then_some(0))
    ///     .build()?;
    /// # use set_up::{Layer, Request, Response, ServiceExt, service_fn};
    /// # let login = failed_logins.layer(service_fn(async |request: Request<String>| {
    /// #     let status = if *request.body() == "sesame" { 200 } else { 401 };
    /// #     Response::builder().status(status).body(String::new())
    /// # }));
    /// # for (password, left) in [("sesame", "r=10"), ("12345", "r=9"), ("sesame", "r=9")] {
    /// #     let request = Request::post("/").header("x-user-id", "alice").body(password.to_owned())?;
    /// #     let response = login.clone().oneshot(request).await?;
    /// #     assert!(response.headers()["ratelimit"].to_str()?.contains(left), "{password}");
    /// # }
    /// # Ok(()) });
    /// ```
    ///
    /// # Rejections by inner layers
    ///
    /// The closure also runs for rejections by an inner [`RateLimitLayer`](crate::RateLimitLayer). They should [stay
    /// charged](crate::guide::address), as by default:
    ///
    /// ```
    /// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let outer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("outer")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("outer", 10))
    ///     .actual_cost(|response| {
    ///         let decision: Option<&Decision> = response.extensions.get();
    ///         let is_rejected = decision.is_some_and(|decision| !decision.outcome().is_admitted());
    ///         (response.status.is_server_error() && !is_rejected).then_some(0)
    ///     })
    ///     .build()?;
    /// # use set_up::{Layer, Request, Response, ServiceExt, StatusCode, service_fn};
    /// # let inner = RateLimitLayer::builder(MemoryStore::new())
    /// #     .scope("inner")
    /// #     .key(key::header("x-user-id"))
    /// #     .policy(QuotaPolicy::per_hour("inner", 1))
    /// #     .rejection_status(StatusCode::SERVICE_UNAVAILABLE)
    /// #     .build()?;
    /// # let service = outer.layer(inner.layer(service_fn(async |_: Request<String>| {
    /// #     Response::builder().status(500).body(String::new())
    /// # })));
    /// # for (status, left) in [(500, r#""outer";r=10;"#), (503, r#""outer";r=9;"#), (503, r#""outer";r=8;"#)] {
    /// #     let response = service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(String::new())?).await?;
    /// #     assert_eq!(response.status(), status);
    /// #     assert!(response.headers()["ratelimit"].to_str()?.contains(left));
    /// # }
    /// # Ok(()) });
    /// ```
    ///
    /// [`Settlement`](crate::Settlement#refunds) has the limits of refunds.
    pub fn actual_cost<F>(mut self, actual_cost: F) -> Self
    where
        F: Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    {
        self.cost.actual = Some(Box::new(actual_cost));
        self
    }
}

/// # Advanced: screening
impl RateLimitLayerBuilder {
    /// Admits matching requests uncounted, for example health checks. Default: none.
    ///
    /// Can be called up to 64 times. The first matching exemption applies. See [`Exemption`].
    pub fn exempt(mut self, exemption: Exemption) -> Self {
        self.screening.exemptions.push(exemption);
        self
    }

    /// Sets a list of clients that are blocked, or admitted uncounted, and that can change at run time: see
    /// [`AccessList`]. Default: none.
    ///
    /// The list is checked first: blocked clients are rejected regardless of all other settings. [`build`](Self::build)
    /// fails if two lists are set.
    pub fn access_list(self, list: AccessList) -> Self {
        self.limiter(ConfigErrorKind::AccessRules, "access list", |limiter| {
            limiter.access_list(list)
        })
    }

    /// Sets the status of requests that an [access list](Self::access_list) blocks: 403 or 429. Default: 403.
    ///
    /// Use 429 if clients should not notice that they are blocked; gRPC clients then get `RESOURCE_EXHAUSTED` instead
    /// of `PERMISSION_DENIED`. These rejections have no `Retry-After`. [`build`](Self::build) fails for other statuses;
    /// use [`respond_with`](Self::respond_with) for other responses.
    pub fn blocked_status(mut self, status: StatusCode) -> Self {
        self.screening.blocked_status = Some(status);
        self
    }

    /// Admits CORS preflight requests uncounted: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
    ///
    /// Use this unless a CORS layer outside this layer answers them. For scripts to read the fields, the CORS
    /// configuration must expose [`fields::EXPOSED`](crate::fields::EXPOSED). Default: preflight requests are counted.
    pub fn skip_cors_preflight(mut self) -> Self {
        self.screening.skips_cors_preflight = true;
        self
    }

    /// Rejects requests that are part of abnormal usage, as classified by `detect`. See [`AbnormalUsage`]. Default:
    /// none.
    ///
    /// `detect` is called once for each request that is neither blocked nor exempt, before the store, and must not
    /// block.
    pub fn abnormal_usage<F>(mut self, detect: F) -> Self
    where
        F: Fn(&request::Parts) -> Option<AbnormalUsage> + Send + Sync + 'static,
    {
        self.screening.abnormal_usage = Some(Box::new(detect));
        self
    }

    /// Sets the current capacity of the service. See [`Capacity`]. Default: always [`Capacity::full`].
    ///
    /// `capacity` is called like the closure of [`abnormal_usage`](Self::abnormal_usage), and must not block.
    pub fn capacity<F>(mut self, capacity: F) -> Self
    where
        F: Fn(&request::Parts) -> Capacity + Send + Sync + 'static,
    {
        self.screening.capacity = Some(Box::new(capacity));
        self
    }
}

impl RateLimitLayerBuilder {
    fn new(source: Source) -> Self {
        Self {
            source,
            keys: ExtractorSettings::default(),
            tiers: Vec::new(),
            responder: Responder::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            lingering_close: LingeringClose::new(),
            fields: ResponseFields::default(),
            screening: Screening::default(),
            cost: RequestCost::default(),
            decision_in_request: false,
            decision_in_response: false,
        }
    }

    /// Applies a setting of the limiter, unless the limiter is already built.
    fn limiter(
        mut self,
        kind: ConfigErrorKind,
        setting: &'static str,
        set: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Self {
        self.source = match self.source {
            Source::Settings(limiter) => Source::Settings(Box::new(set(*limiter))),
            Source::Built(_) => Source::Late(kind, setting),
            late => late,
        };
        self
    }
}

impl Source {
    fn build(self) -> Result<Limiter, ConfigError> {
        match self {
            Self::Built(limiter) => Ok(limiter),
            Self::Settings(limiter) => limiter.build(),
            Self::Late(kind, setting) => {
                let message = format!("{setting}: must be set on the builder of the limiter");
                Err(ConfigError::new(kind, message))
            }
        }
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

/// Never implemented. Its `on_unimplemented` message appears if `build` was not called; the foreign trait `Layer`
/// cannot have such a message.
#[diagnostic::on_unimplemented(
    message = "`RateLimitLayerBuilder` is not a layer",
    label = "`.build()` is missing here",
    note = "call `.build()?` after the last setting: it validates the settings and returns the `RateLimitLayer`"
)]
pub trait Built: Sized {
    /// Never called.
    fn layered(self, builder: &RateLimitLayerBuilder) -> RateLimit<Self>;
}

#[doc(hidden)]
impl<S: Built> Layer<S> for RateLimitLayerBuilder {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        inner.layered(self)
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .field("limiter", &self.source)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Built(limiter) => limiter.fmt(f),
            Self::Settings(limiter) => limiter.fmt(f),
            Self::Late(..) => f.write_str("none"),
        }
    }
}

// Declared last, so that the documentation of the builder begins with its basics.
#[cfg(feature = "axum")]
mod axum;

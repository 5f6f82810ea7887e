// This module is first, so that the builder's documentation begins with its methods.
mod basics;

mod attribution;
#[cfg(feature = "axum")]
mod axum;
mod response;
mod rules;
mod screening;

use std::fmt;

use http::StatusCode;
use tower_layer::Layer;

use super::{LingeringClose, RateLimit, RateLimitLayer, attribution::ExtractorSettings, cost::RequestCost};
use crate::{
    access::Screening,
    error::{ConfigError, ConfigErrorKind},
    limiter::{Limiter, LimiterBuilder},
    response::{fields::ResponseFields, rejection::Responder},
    rules::TierSource,
    store::Store,
};

/// The settings of a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Most programs need seven methods. [`scope`](Self::scope), [`key`](Self::key), and [`policy`](Self::policy) or
/// [`tiers`](Self::tiers) are required. [`failure_mode`](Self::failure_mode), [`respond_with`](Self::respond_with) and
/// the methods under "Advanced" have defaults. [`build`](Self::build) validates all settings, without calling the
/// store. Deadlines, a fallback store, secrets and clocks are settings of the [limiter](crate::LimiterBuilder): see
/// [`RateLimitLayer::with_limiter`] and the `From` implementation below.
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
    /// Creates a builder for a layer that keeps its counts in `store`. See [`RateLimitLayerBuilder`].
    ///
    /// The store is not called before the first request.
    pub fn builder(store: impl Store) -> RateLimitLayerBuilder {
        Limiter::builder(store).into()
    }

    /// Creates a builder for a layer that uses the scope, rules, store and fault tolerance of `limiter`.
    ///
    /// A [`key`](RateLimitLayerBuilder::key) is required. Use this for settings that only
    /// [`LimiterBuilder`](crate::LimiterBuilder) has, and to share one set of rules between several layers, or between
    /// a layer and work that passes through no layer. Each layer has its own keys, costs, fields and rejections. New
    /// rules must be valid for all layers of the limiter.
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

/// Creates a builder for a layer from the settings of a limiter. Use this for settings that only [`LimiterBuilder`]
/// has.
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

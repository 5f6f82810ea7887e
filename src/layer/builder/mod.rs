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

use super::{RateLimit, RateLimitLayer, attribution::ExtractorSettings, cost::RequestCost};
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
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// let builder = || RateLimitLayer::builder(MemoryStore::new()).scope("api").key(key::client_ip());
/// assert!(builder().policy(QuotaPolicy::per_minute("minute", 60)).build().is_ok());
///
/// let error = builder().build().unwrap_err();
/// assert_eq!(error.to_string(), "number of policies 0 is outside 1..=16");
/// let error = RateLimitLayer::builder(MemoryStore::new()).scope("api").build().unwrap_err();
/// assert_eq!(error.to_string(), "key: missing");
/// let error = RateLimitLayer::builder(MemoryStore::new()).key(key::client_ip()).build().unwrap_err();
/// assert_eq!(error.to_string(), "scope: missing or empty");
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct RateLimitLayerBuilder {
    source: Source,
    keys: ExtractorSettings,
    /// `build()` allows at most one source.
    tiers: Vec<TierSource>,
    responder: Responder,
    status: StatusCode,
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
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 3))
    ///     .deadline(Duration::from_millis(20))
    ///     .build()?;
    /// let rest = RateLimitLayer::with_limiter(limiter.clone()).key(key::header("x-user-id")).build()?;
    /// let exports = RateLimitLayer::with_limiter(limiter.clone())
    ///     .key(key::header("x-user-id"))
    ///     .cost(2)
    ///     .response_fields(ResponseFields::none())
    ///     .build()?;
    ///
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    /// assert!(send(&exports, alice()).await.headers().is_empty());
    /// assert_eq!(send(&rest, alice()).await.headers()["ratelimit"], r#""hour";r=0;t=1200"#);
    /// assert!(!limiter.check(&PartitionKey::new("x-user-id", "alice")).await.outcome().is_admitted());
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
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// let limiter = Limiter::builder(Unavailable).fallback(MemoryStore::new());
/// let layer = RateLimitLayerBuilder::from(limiter)
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 2))
///     .build()?;
/// for status in [200, 200, 429] {
///     assert_eq!(send(&layer, Request::get("/").header("x-user-id", "alice")).await.status(), status);
/// }
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

//! Configuration of a layer, checked as a whole.

// The first of all, so that the page of the builder begins with it.
mod basics;

mod attribution;
#[cfg(feature = "axum")]
mod axum;
mod limiter;
mod response;
mod rules;
mod screening;
mod store;

use std::{fmt, sync::Arc};

use http::StatusCode;
use tower_layer::Layer;

pub use self::limiter::LimiterBuilder;
use super::{RateLimit, RateLimitLayer, attribution::AttributionSettings, cost::RequestCost};
use crate::{
    access::Screening,
    clock::Clock,
    guard::GuardConfig,
    response::{fields::ResponseFields, rejection::Responder},
    rules::RulesSettings,
    store::Store,
};

/// Settings of a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Most programs need seven methods: [`scope`](Self::scope), [`key`](Self::key), and [`policy`](Self::policy) or
/// [`tiers`](Self::tiers) are required; [`failure_mode`](Self::failure_mode) and [`respond_with`](Self::respond_with) have
/// defaults; [`build`](Self::build) checks all of them, and needs no store that answers. The methods below the headings
/// "Advanced" all have defaults.
///
/// ```
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// let builder = || RateLimitLayer::builder(MemoryStore::new()).scope("api").key(key::client_ip());
/// assert!(builder().policy(QuotaPolicy::per_minute("minute", 60)).build().is_ok());
///
/// let error = builder().build().unwrap_err();
/// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
/// let error = RateLimitLayer::builder(MemoryStore::new()).scope("api").build().unwrap_err();
/// assert_eq!(error.to_string(), "key: it is missing");
/// let error = RateLimitLayer::builder(MemoryStore::new()).build().unwrap_err();
/// assert_eq!(error.to_string(), "scope: it is missing or empty");
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct RateLimitLayerBuilder {
    store: Arc<dyn Store>,
    attribution: AttributionSettings,
    rules: RulesSettings,
    terms: GuardConfig,
    clock: Clock,
    fallback: Option<Arc<dyn Store>>,
    responder: Responder,
    status: StatusCode,
    fields: ResponseFields,
    screening: Screening,
    cost: RequestCost,
    decision_in_request: bool,
    decision_in_response: bool,
}

impl RateLimitLayer {
    /// Settings of a layer that keeps its quota in `store`; see [`RateLimitLayerBuilder`]. The store is not asked
    /// before the first request.
    pub fn builder(store: impl Store) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder {
            store: Arc::new(store),
            attribution: AttributionSettings::default(),
            rules: RulesSettings::default(),
            terms: GuardConfig::default(),
            clock: Clock::system(),
            fallback: None,
            responder: Responder::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            fields: ResponseFields::default(),
            screening: Screening::default(),
            cost: RequestCost::default(),
            decision_in_request: false,
            decision_in_response: false,
        }
    }
}

/// No type implements it. It is there for its message where `build` was forgotten, since a message about `Layer` is not
/// ours to write.
#[diagnostic::on_unimplemented(
    message = "a `RateLimitLayerBuilder` is no layer yet",
    label = "`.build()` is missing here",
    note = "call `.build()?` at the end of the settings: it checks them and returns the `RateLimitLayer`"
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
            .field("scope", &self.attribution.scope)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

//! The layer, and the service that it makes.

mod admission;
mod answer;
mod attribution;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod builder;
mod content;
mod cost;
mod future;
mod registry;
mod service;

use std::fmt;

use tower_layer::Layer;

use self::admission::Limits;
#[cfg(feature = "axum")]
pub use self::axum::MissingDecision;
pub use self::{
    body::RateLimitBody,
    builder::RateLimitLayerBuilder,
    content::{RequestContent, RequestContentBody, RequestContentLayer},
    cost::ActualCost,
    future::ResponseFuture,
    service::RateLimit,
};
use crate::{limiter::Limiter, sync::per_thread::Shared};

/// Limits the requests of each caller. See the [crate documentation](crate) for a whole program.
///
/// It has no type parameters, so it can be named in signatures, and clones share their limits.
///
/// ```
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// fn login_limits(store: MemoryStore) -> Result<RateLimitLayer, tower_quota::ConfigError> {
///     RateLimitLayer::builder(store)
///         .scope("login")
///         .key(key::header("x-user-id"))
///         .policy(QuotaPolicy::per_minute("minute", 5))
///         .build()
/// }
///
/// # tokio_test::block_on(async {
/// let service = ServiceBuilder::new()
///     .layer(login_limits(MemoryStore::new())?)
///     .service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
/// let response = service.oneshot(Request::post("/login").header("x-user-id", "alice").body(())?).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""minute";r=4;t=48"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimitLayer(Shared<Limits>);

impl RateLimitLayer {
    /// The limiter of this layer: for work that does not pass through the layer, for support staff, and to replace the
    /// [rules](Limiter::rules) while requests are in progress.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.0.clone())
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.0.limiter)
            .finish_non_exhaustive()
    }
}

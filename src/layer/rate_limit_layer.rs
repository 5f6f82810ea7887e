use std::fmt;

use http::request::Parts;
use tower_layer::Layer;

use super::{admission::Limits, explanation::Explanation, service::RateLimit};
use crate::{limiter::Limiter, sync::per_thread::Shared};

/// A layer that limits the requests of each caller. Clones share their limits. See the [crate documentation](crate) for
/// a complete program.
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
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let service = ServiceBuilder::new()
///     .layer(login_limits(MemoryStore::new())?)
///     .service_fn(async |_: Request<String>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
/// let response = service.oneshot(Request::post("/login").header("x-user-id", "alice").body(String::new())?).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""minute";r=4;t=48"#);
/// # assert!(response.extensions().get::<tower_quota::Decision>().is_none());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimitLayer(pub(super) Shared<Limits>);

impl RateLimitLayer {
    /// Returns the limiter of this layer, for work that does not pass through the layer, for support tools, and to
    /// replace the [rules](Limiter::rules) at run time.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Explains the layer's decision on a request, without charging it.
    ///
    /// Use this to configure proxies, keys and tiers, in tests or on a page for operators. The explanation contains the
    /// client's address and how it was determined, and each step of the decision: the access rule or exemption, the
    /// tier, digests of the keys, and the policies. The store is not called, except by
    /// [`with_remaining`](Explanation::with_remaining). Closures of the application are called as for a request.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http::Request;
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// use tower_quota::key::{ForwardingField, PeerAddress};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8"]))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .build()?;
    ///
    /// let (request, _) = Request::get("/")
    ///     .extension(PeerAddress(SocketAddr::from(([10, 0, 0, 1], 4711))))
    ///     .header("x-forwarded-for", "203.0.113.9, 10.0.0.2")
    ///     .body(String::new())?
    ///     .into_parts();
    /// let text = layer.explain(&request).with_remaining().await?.to_string();
    /// assert!(text.contains("client 203.0.113.9, from x-forwarded-for, through the trusted proxies 10.0.0.1, 10.0.0.2"));
    /// assert!(text.contains(r#""minute": 60 of 60 left"#));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A client cannot request an explanation. A `DEBUG` event of target `tower_quota::explain` explains at most one
    /// request per layer every ten seconds.
    pub fn explain(&self, request: &Parts) -> Explanation {
        self.0.whole().explain(request)
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

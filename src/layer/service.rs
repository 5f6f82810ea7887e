//! The service: decide first, then call the service that was ready.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    RateLimitBody, ResponseFuture,
    admission::{Limits, Turn},
};
use crate::guard::Deciding;

/// The service that [`RateLimitLayer`](crate::RateLimitLayer) makes: passes a request on to `S` if all of its
/// policies allow it.
///
/// It is ready when `S` is, and a rejection is a response: the error type is that of `S`. Clones share their limits.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio_test::block_on(async {
/// # let layer = RateLimitLayer::builder(MemoryStore::new())
/// #     .scope("api")
/// #     .key(key::header("x-user-id"))
/// #     .policy(QuotaPolicy::per_hour("hour", 1))
/// #     .build()?;
/// let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
/// // One request an hour:
/// let mut service = layer.layer(inner);
/// let request = || Request::get("/").header("x-user-id", "alice").body(()).unwrap();
///
/// for status in [200, 429] {
///     assert_eq!(service.ready().await?.call(request()).await?.status(), status);
/// }
/// // Nobody limits the inner service, and nothing says what is left.
/// let unlimited = service.into_inner().oneshot(request()).await?;
/// assert_eq!(unlimited.status(), 200);
/// assert!(unlimited.headers().is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    limits: Arc<Limits>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, limits: Arc<Limits>) -> Self {
        Self { inner, limits }
    }

    /// The inner service. What is called on it is not limited.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service. What is called on it is not limited.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
{
    type Response = Response<RateLimitBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let limits = Arc::clone(&self.limits);
        let (mut parts, body) = request.into_parts();
        let (deciding, selection) = limits.decide(&parts);
        match deciding {
            Deciding::Decided(decision) if decision.outcome().is_pass() => {
                let verdict = limits.admit(decision, selection, &mut parts);
                let request = Request::from_parts(parts, body);
                match Turn::of(&limits, &verdict) {
                    Turn::Now => {
                        verdict.passed_on();
                        ResponseFuture::calling(limits, self.inner.call(request), verdict)
                    }
                    // The clone that takes its place need not be ready; the place that this one holds is let go.
                    Turn::In(delay) => ResponseFuture::queued(limits, delay, self.let_go(), request, verdict),
                }
            }
            Deciding::Decided(decision) => {
                // A service that is ready may hold a place in a queue: it has to be let go, not kept until the next
                // request.
                drop(self.take_ready());
                let response = limits.reject(decision, &selection, &parts);
                ResponseFuture::rejected(limits, response)
            }
            Deciding::Waiting(decision) => {
                let service = self.take_ready();
                ResponseFuture::deciding(limits, decision, selection, service, Request::from_parts(parts, body))
            }
        }
    }
}

impl<S: Clone> RateLimit<S> {
    /// A clone of the service that was polled ready, which is dropped.
    fn let_go(&mut self) -> S {
        drop(self.take_ready());
        self.inner.clone()
    }

    /// The service that was polled ready; a clone, which need not be ready, takes its place.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("scope", &self.limits.scope_name)
            .finish_non_exhaustive()
    }
}

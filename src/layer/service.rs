use std::{
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    RateLimitBody, ResponseFuture,
    admission::{Admission, Limits},
    future::State,
};
use crate::{
    limiter::{DecisionState, Question},
    sync::{
        per_thread::Shared,
        ready::{ReadyService, take_ready},
    },
};

/// The service of [`RateLimitLayer`](crate::RateLimitLayer): forwards a request to `S` if its policies admit it.
///
/// Ready when `S` is ready. Rejections are responses, and the error type is `S::Error`. Clones share their limits.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .build()?;
/// let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
/// let mut service = layer.layer(inner);
/// let request = || Request::get("/").header("x-user-id", "alice").body(String::new());
///
/// for status in [200, 429] {
///     assert_eq!(service.ready().await?.call(request()?).await?.status(), status);
/// }
/// # let rejected = service.ready().await?.call(request()?).await?;
/// # assert!(rejected.extensions().get::<tower_quota::Decision>().is_some());
/// // Calls to the inner service are not limited, and their responses have no fields.
/// let unlimited = service.into_inner().oneshot(request()?).await?;
/// assert_eq!(unlimited.status(), 200);
/// assert!(unlimited.headers().is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    limits: Shared<Limits>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, limits: Shared<Limits>) -> Self {
        Self { inner, limits }
    }

    /// Returns the inner service. Calls to it are not limited.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service. Calls to it are not limited.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Body + Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<RateLimitBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (limits, ready) = (self.limits.local(), ReadyService::new(&mut self.inner));
        let (mut parts, body) = request.into_parts();
        limits.watch(&mut parts);
        let admission = match limits.ask(&parts) {
            Question::Charged(charge) => limits.judge_charge(charge, &mut parts),
            Question::Decided(decision, selection) => limits.judge(decision, selection, &mut parts),
            Question::Plan(plan, selection) => match limits.limiter.0.guard.decide(plan) {
                DecisionState::Decided(decision) => limits.judge(decision, selection, &mut parts),
                DecisionState::Pending(decision) => {
                    let held = Some(Box::new((take_ready(ready.keep()), parts, body)));
                    let state = State::Deciding {
                        decision,
                        selection,
                        held,
                    };
                    return ResponseFuture { state, limits };
                }
            },
        };
        let inner = ready.keep();
        match admission {
            Admission::Call(admitted) => {
                admitted.passed_on();
                // As an argument of another function, the request would be moved once more.
                let future = inner.call(Request::from_parts(parts, body));
                let admitted = Some(admitted);
                ResponseFuture {
                    state: State::Calling { future, admitted },
                    limits,
                }
            }
            admission => {
                let state = State::judged(admission, inner, Request::from_parts(parts, body), &limits);
                // Dropping the ready service releases a permit that other requests may need.
                drop(take_ready(inner));
                ResponseFuture { state, limits }
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("scope", &self.limits.scope_name())
            .finish_non_exhaustive()
    }
}

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Origin, OriginBody, OriginLayer,
    future::{OriginFuture, State},
    outcome::PreCheck,
};
use crate::ready::take_ready;

/// The service of [`OriginLayer`](super::OriginLayer). Clones share spent tags.
///
/// Rejections are responses; errors come only from `S`.
#[derive(Clone)]
pub struct OriginService<S> {
    inner: S,
    origin: Arc<Origin>,
}

impl<S> Layer<S> for OriginLayer {
    type Service = OriginService<S>;

    fn layer(&self, inner: S) -> OriginService<S> {
        OriginService {
            inner,
            origin: Arc::clone(&self.0),
        }
    }
}

impl<S> OriginService<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for OriginService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Body + Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<OriginBody<R>>;
    type Error = S::Error;
    type Future = OriginFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> OriginFuture<S, B> {
        let origin = Arc::clone(&self.origin);
        let (parts, body) = request.into_parts();
        let state = match origin.glance(&parts) {
            PreCheck::Pass => State::Calling {
                future: self.inner.call(Request::from_parts(parts, body)),
                is_accepted: false,
            },
            PreCheck::Proof(claim) => State::Judging {
                judging: Box::pin(Arc::clone(&origin).judge(*claim)),
                held: Some((take_ready(&mut self.inner), Request::from_parts(parts, body))),
            },
            PreCheck::Rejected(outcome) => {
                // The ready inner service may hold a permit; release it, because this request does not call it.
                drop(take_ready(&mut self.inner));
                State::rejected(outcome, Request::from_parts(parts, body), &origin)
            }
        };
        OriginFuture::new(origin, state)
    }
}

impl<S: fmt::Debug> fmt::Debug for OriginService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginService")
            .field("inner", &self.inner)
            .field("policy", &self.origin.policy)
            .finish_non_exhaustive()
    }
}

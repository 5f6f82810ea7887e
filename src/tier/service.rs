use std::task::{Context, Poll};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    future::{ResponseFuture, State},
    layer::TierLayer,
    shared::Found,
};
use crate::sync::ready::{ReadyService, take_ready};

/// The service created by [`TierLayer`](crate::tier::TierLayer), which forwards each request with its tier to `S`.
///
/// It rejects nothing, and does not change bodies, responses or errors. Clones share the cached tiers.
#[derive(Clone, Debug)]
pub struct ResolveTier<S> {
    inner: S,
    layer: TierLayer,
}

impl<S> Layer<S> for TierLayer {
    type Service = ResolveTier<S>;

    fn layer(&self, inner: S) -> ResolveTier<S> {
        ResolveTier {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S> ResolveTier<S> {
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

impl<S, B> Service<Request<B>> for ResolveTier<S>
where
    S: Service<Request<B>> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (parts, body) = request.into_parts();
        let ready = ReadyService::new(&mut self.inner);
        let found = (self.layer.0.source)(&parts, &self.layer.0.cache);
        let inner = ready.keep();
        let request = Request::from_parts(parts, body);
        match found {
            Found::Now(tier) => ResponseFuture::new(State::calling(inner, request, tier)),
            Found::Later(tier) => {
                // The service that was polled ready is kept with the request and replaced by a clone, which need not
                // be ready.
                let held = Some((take_ready(inner), request));
                ResponseFuture::new(State::Resolving { tier, held })
            }
        }
    }
}

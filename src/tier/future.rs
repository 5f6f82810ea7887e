use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Request;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::shared::{PendingLookup, TierOfRequest};

pin_project! {
    /// The future of [`ResolveTier`](crate::tier::ResolveTier). If it is dropped before the tier is known, the inner
    /// service is not called. The lookup continues, and its result is cached.
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<S: Service<Request<B>>, B> {
        Resolving {
            tier: PendingLookup,
            // The ready inner service and the request. Set to `None` when the tier is known.
            held: Option<(S, Request<B>)>,
        },
        Calling { #[pin] future: S::Future },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn new(state: State<S, B>) -> Self {
        Self { state }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    pub(super) fn calling(service: &mut S, mut request: Request<B>, tier: TierOfRequest) -> Self {
        match tier {
            Ok(tier) => drop(request.extensions_mut().insert(tier)),
            Err(no_tier) => drop(request.extensions_mut().insert(no_tier)),
        }
        let future = service.call(request);
        Self::Calling { future }
    }
}

impl<S: Service<Request<B>>, B> Future for ResponseFuture<S, B> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Resolving => Calling
                StateProjection::Resolving { tier, held } => {
                    let tier = ready!(tier.as_mut().poll(cx));
                    let (mut service, request) = held.take().expect("the future is polled to completion once");
                    State::calling(&mut service, request, tier)
                }
                // ## Calling => done
                StateProjection::Calling { future } => return future.poll(cx),
            };
            this.state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

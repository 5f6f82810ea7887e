//! The way of a request after `call`: wait for the tier, then for the inner service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Request;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::policy::ResolvedTier;

pin_project! {
    /// The future of [`TierService`](crate::TierService).
    ///
    /// When it is dropped before the tier is known, the inner service has not been called; the look-up goes on, and
    /// what it finds is remembered.
    pub struct TierFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S: Service<Request<B>>, B> {
        Resolving {
            tier: Pin<Box<dyn Future<Output = Option<ResolvedTier>> + Send>>,
            // The service that was ready when the request came, and the request; taken when the tier is known.
            held: Option<(S, Request<B>)>,
        },
        Calling { #[pin] future: S::Future },
    }
}

impl<S: Service<Request<B>>, B> TierFuture<S, B> {
    pub(super) fn resolving(
        tier: Pin<Box<dyn Future<Output = Option<ResolvedTier>> + Send>>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let held = Some((service, request));
        Self {
            state: State::Resolving { tier, held },
        }
    }

    pub(super) fn calling(future: S::Future) -> Self {
        Self {
            state: State::Calling { future },
        }
    }
}

/// Calls the service with the request, which carries the tier if there is one.
pub(super) fn pass_on<S: Service<Request<B>>, B>(
    service: &mut S,
    mut request: Request<B>,
    tier: Option<ResolvedTier>,
) -> S::Future {
    if let Some(tier) = tier {
        request.extensions_mut().insert(tier);
    }
    service.call(request)
}

impl<S: Service<Request<B>>, B> Future for TierFuture<S, B> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Resolving => Calling
                StateProjection::Resolving { tier, held } => {
                    let tier = ready!(tier.as_mut().poll(cx));
                    let (mut service, request) = held.take().expect("a tier is found once");
                    State::Calling {
                        future: pass_on(&mut service, request, tier),
                    }
                }
                // ## Calling => done
                StateProjection::Calling { future } => return future.poll(cx),
            };
            this.state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for TierFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TierFuture")
    }
}

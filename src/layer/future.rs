//! The way of a request after `call`: wait for the decision, then for the inner service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    RateLimitBody,
    limits::{Limits, Verdict},
};
use crate::{decision::Decision, policy::Tier};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// When it is dropped before the decision, the inner service has not been called; the charge may have been made.
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
        limits: Arc<Limits>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S: Service<Request<B>>, B> {
        Deciding {
            decision: Pin<Box<dyn Future<Output = Decision> + Send>>,
            tier: Tier,
            // The service that was ready when the request came, and the request; taken when the decision is there.
            held: Option<(S, Request<B>)>,
        },
        Calling { #[pin] future: S::Future, verdict: Option<Verdict> },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn deciding(
        limits: Arc<Limits>,
        decision: Pin<Box<dyn Future<Output = Decision> + Send>>,
        tier: Tier,
        service: S,
        request: Request<B>,
    ) -> Self {
        Self {
            state: State::Deciding {
                decision,
                tier,
                held: Some((service, request)),
            },
            limits,
        }
    }

    pub(super) fn calling(limits: Arc<Limits>, future: S::Future, verdict: Verdict) -> Self {
        Self {
            state: State::Calling {
                future,
                verdict: Some(verdict),
            },
            limits,
        }
    }

    pub(super) fn refused(limits: Arc<Limits>, response: Response<Bytes>) -> Self {
        Self {
            state: State::Refused {
                response: Some(response),
            },
            limits,
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<RateLimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Deciding => (Calling | Refused)
                StateProjection::Deciding { decision, tier, held } => {
                    let decision = ready!(decision.as_mut().poll(cx));
                    let (mut service, request) = held.take().expect("a decision is polled to its end once");
                    let verdict = Verdict { decision, tier: *tier };
                    if verdict.decision.outcome().is_pass() {
                        State::Calling {
                            future: service.call(request),
                            verdict: Some(verdict),
                        }
                    } else {
                        let (request, _) = request.into_parts();
                        State::Refused {
                            response: Some(this.limits.refuse(verdict, &request)),
                        }
                    }
                }
                // ## Calling => done
                StateProjection::Calling { future, verdict } => {
                    let mut response = ready!(future.poll(cx))?;
                    let verdict = verdict.take().expect("polled after it was ready");
                    this.limits.tell(verdict, &mut response);
                    return Poll::Ready(Ok(response.map(RateLimitBody::passed)));
                }
                // ## Refused => done
                StateProjection::Refused { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(RateLimitBody::refused)));
                }
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

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
use tower_quota::content::LingeringClose;
use tower_service::Service;

use super::{AcceptedToken, Origin, OriginBody, outcome::TokenOutcome};
use crate::authorization::remove_token;

pin_project! {
    /// The future of [`OriginService`](super::OriginService).
    ///
    /// If dropped before the inner service is called, the token may be spent already: the client must not use it again.
    pub struct OriginFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
        origin: Arc<Origin>,
    }
}

type Judging = Pin<Box<dyn Future<Output = TokenOutcome> + Send>>;

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<S: Service<Request<B>>, B> {
        Judging {
            judging: Judging,
            // `None` once the token has been checked.
            held: Option<(S, Request<B>)>,
        },
        Calling { #[pin] future: S::Future, is_accepted: bool },
        Rejected { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> OriginFuture<S, B> {
    pub(super) fn new(origin: Arc<Origin>, state: State<S, B>) -> Self {
        Self { state, origin }
    }
}

impl<S, B> State<S, B>
where
    S: Service<Request<B>>,
    B: Body + Send + 'static,
{
    pub(super) fn rejected(outcome: TokenOutcome, request: Request<B>, origin: &Origin) -> Self {
        let (head, body) = request.into_parts();
        let mut response = origin.reject(outcome, &head.headers);
        LingeringClose::new().discard(&head, body, response.headers_mut());
        Self::Rejected {
            response: Some(response),
        }
    }

    fn judged(outcome: TokenOutcome, mut service: S, mut request: Request<B>, origin: &Origin) -> Self {
        if outcome != TokenOutcome::Accepted {
            return Self::rejected(outcome, request, origin);
        }
        origin.log.judged(&origin.policy, outcome.name());
        remove_token(request.headers_mut());
        let accepted = AcceptedToken::new(&origin.issuer, &origin.policy);
        request.extensions_mut().insert(accepted);
        Self::Calling {
            future: service.call(request),
            is_accepted: true,
        }
    }
}

impl<S, B, R> Future for OriginFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Body + Send + 'static,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<OriginBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Judging { judging, held } => {
                    let outcome = ready!(judging.as_mut().poll(cx));
                    let (service, request) = held.take().expect("a request is judged once");
                    State::judged(outcome, service, request, this.origin)
                }
                StateProjection::Calling { future, is_accepted } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(match is_accepted {
                        true => this.origin.answer_accepted(response),
                        false => this.origin.answer_without_token(response),
                    }));
                }
                StateProjection::Rejected { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(response.map(OriginBody::rejected)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for OriginFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OriginFuture")
    }
}

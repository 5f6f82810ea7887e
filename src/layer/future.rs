//! The way of a request after `call`: wait for the decision, for its turn, then for the inner service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::{
    RateLimitBody,
    admission::{Limits, Turn, Verdict},
};
use crate::{decision::Decision, guard::Waiting, rules::Selection};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// Dropping it cancels the request. The inner service is then not called any more; **the request stays charged**, and
    /// its slots are free:
    ///
    /// - Before the decision, a task waits for the store's answer in its place, until the deadline. A request that the
    ///   store has allowed is charged although it is not passed on: clients could otherwise ask for as much as they like,
    ///   and reset each stream a moment later. Bytes that it had announced, and that were never sent, are given back.
    /// - While it waits in a [leaky bucket](crate::Algorithm::LeakyBucketQueue), its place stays taken, too.
    /// - After that, bytes are charged as far as they were transferred.
    ///
    /// A future that was never polled has asked no store that has to be waited for, as one in Redis has: nothing is
    /// charged. A store that decides at once, as a [`MemoryStore`](crate::MemoryStore) does, has charged it with `call`.
    ///
    /// If the inner service fails while the request waits for its turn, all of the charge is given back.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, Service, ServiceExt, service_fn};
    /// # use tower_quota::{Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFuture, key};
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// // One request a minute leaves, and one may wait.
    /// let queue = Algorithm::LeakyBucketQueue { max_waiting: 1 };
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("even", 1).with_algorithm(queue))
    ///     .build()?;
    /// # let inner = service_fn(async |_: Request<()>| Ok::<_, http::Error>(Response::new(String::new())));
    /// let mut service = layer.layer(inner);
    /// let request = || Request::get("/").header("x-user-id", "alice").body(()).unwrap();
    ///
    /// assert_eq!(service.ready().await?.call(request()).await?.status(), 200);
    /// let waiting: ResponseFuture<_, ()> = service.ready().await?.call(request());
    /// assert_eq!(service.ready().await?.call(request()).await?.status(), 429);
    /// // The one that waits is cancelled, and its place stays taken.
    /// drop(waiting);
    /// assert_eq!(service.ready().await?.call(request()).await?.status(), 429);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
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
            decision: Waiting,
            selection: Selection,
            // The service that was ready when the request came, and the request; taken when the decision is there.
            held: Option<(S, Request<B>)>,
        },
        Queued {
            sleep: Pin<Box<Sleep>>,
            // Not the service that was ready when the request came: that one may hold what others need.
            held: Option<(S, Request<B>, Verdict)>,
        },
        Calling { #[pin] future: S::Future, verdict: Option<Verdict> },
        Rejected { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn deciding(
        limits: Arc<Limits>,
        decision: Waiting,
        selection: Selection,
        service: S,
        request: Request<B>,
    ) -> Self {
        Self {
            state: State::Deciding {
                decision,
                selection,
                held: Some((service, request)),
            },
            limits,
        }
    }

    pub(super) fn queued(
        limits: Arc<Limits>,
        delay: Duration,
        service: S,
        request: Request<B>,
        verdict: Verdict,
    ) -> Self {
        Self {
            state: State::queued(delay, service, request, verdict),
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

    pub(super) fn rejected(limits: Arc<Limits>, response: Response<Bytes>) -> Self {
        Self {
            state: State::Rejected {
                response: Some(response),
            },
            limits,
        }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    #[allow(clippy::disallowed_methods, reason = "a queue is there to wait in")]
    fn queued(delay: Duration, service: S, request: Request<B>, verdict: Verdict) -> Self {
        Self::Queued {
            sleep: Box::pin(tokio::time::sleep(delay)),
            held: Some((service, request, verdict)),
        }
    }

    /// The decision is there.
    fn decided(decision: Decision, selection: Selection, service: S, request: Request<B>, limits: &Limits) -> Self
    where
        S: Clone,
    {
        let (mut parts, body) = request.into_parts();
        if !decision.outcome().is_pass() {
            return Self::Rejected {
                response: Some(limits.reject(decision, &selection, &parts)),
            };
        }
        let verdict = limits.admit(decision, selection, &mut parts);
        let request = Request::from_parts(parts, body);
        match Turn::of(limits, &verdict) {
            Turn::Now => Self::calling(service, request, verdict),
            Turn::In(delay) => {
                let clone = service.clone();
                drop(service);
                Self::queued(delay, clone, request, verdict)
            }
        }
    }

    fn calling(mut service: S, request: Request<B>, verdict: Verdict) -> Self {
        verdict.passed_on();
        Self::Calling {
            future: service.call(request),
            verdict: Some(verdict),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<RateLimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Deciding => (Queued | Calling | Rejected)
                StateProjection::Deciding {
                    decision,
                    selection,
                    held,
                } => {
                    let decision = ready!(Pin::new(decision).poll(cx));
                    let (service, request) = held.take().expect("a decision is polled to its end once");
                    State::decided(decision, std::mem::take(selection), service, request, this.limits)
                }
                // ## Queued => Calling
                StateProjection::Queued { sleep, held } => {
                    ready!(sleep.as_mut().poll(cx));
                    let (service, ..) = held.as_mut().expect("a turn comes once");
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        if let Some((.., verdict)) = held.take() {
                            verdict.unserved();
                        }
                        return Poll::Ready(Err(error));
                    }
                    let (service, request, verdict) = held.take().expect("a turn comes once");
                    State::calling(service, request, verdict)
                }
                // ## Calling => done
                StateProjection::Calling { future, verdict } => {
                    let response = ready!(future.poll(cx));
                    // Taken also when the service has failed: the request is over, however long the future is kept.
                    let verdict = verdict.take().expect("polled after it was ready");
                    return Poll::Ready(response.map(|response| this.limits.answer(verdict, response)));
                }
                // ## Rejected => done
                StateProjection::Rejected { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(RateLimitBody::rejected)));
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

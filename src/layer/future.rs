use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::{
    RateLimitBody,
    admission::{Admission, Admitted, Limits},
};
use crate::{
    decision::Decision,
    limiter::PendingDecision,
    rules::Selection,
    sync::{per_thread::PerThreadRef, sleep::sleep},
};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// # Errors
    ///
    /// Returns the error of the inner service. If the service fails while the request is queued, the charge is
    /// refunded.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the request. The inner service is not called afterwards, and slots are released.
    /// **The request stays charged:**
    ///
    /// - Before the decision, a task continues to wait for the store, until the deadline. Bytes that were announced but
    ///   not sent are refunded.
    /// - In the queue of a [leaky bucket](crate::Algorithm::LeakyBucketQueue), the request keeps its place.
    /// - After the inner service was called, only the transferred bytes are charged.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use http::{Request, Response};
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_quota::{Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// // One request leaves per minute, and one may wait.
    /// let queue = Algorithm::LeakyBucketQueue { max_waiting: 1 };
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("even", 1).with_algorithm(queue))
    ///     .build()?;
    /// let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    /// let mut service = layer.layer(inner);
    /// let request = || Request::get("/").header("x-user-id", "alice").body(String::new());
    ///
    /// assert_eq!(service.ready().await?.call(request()?).await?.status(), 200);
    /// let waiting = service.ready().await?.call(request()?);
    /// drop(waiting);
    /// // The cancelled request keeps its place, so the queue is full.
    /// assert_eq!(service.ready().await?.call(request()?).await?.status(), 429);
    /// # Ok(()) });
    /// ```
    ///
    /// If the future was never polled, a remote store such as Redis was not called, and nothing is charged.
    /// [`MemoryStore`](crate::MemoryStore) has already charged the request in `call`.
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        pub(super) state: State<S, B>,
        pub(super) limits: PerThreadRef<Limits>,
    }
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<S: Service<Request<B>>, B> {
        Deciding {
            decision: PendingDecision,
            selection: Selection,
            // The service that was polled ready, and the request. Taken when the decision is made. Boxed, because callers
            // move the future of every request.
            held: Option<Box<(S, Parts, B)>>,
        },
        Queued {
            sleep: Pin<Box<Sleep>>,
            // A clone of the service. The ready service was dropped, because it may hold a permit that other requests
            // need.
            held: Option<Box<(S, Request<B>, Admitted)>>,
        },
        Calling { #[pin] future: S::Future, admitted: Option<Admitted> },
        Rejected { response: Option<Response<Bytes>> },
    }
}

impl<S, B> State<S, B>
where
    S: Service<Request<B>> + Clone,
    B: Body + Send + 'static,
{
    pub(super) fn judged(admission: Admission, service: &mut S, request: Request<B>, limits: &Limits) -> Self {
        match admission {
            Admission::Call(admitted) => Self::calling(service, request, admitted),
            Admission::Queue(delay, admitted) => Self::Queued {
                sleep: sleep(delay),
                held: Some(Box::new((service.clone(), request, admitted))),
            },
            Admission::Reject(mut response) => {
                let (parts, body) = request.into_parts();
                limits.lingering_close.discard(&parts, body, response.headers_mut());
                Self::Rejected {
                    response: Some(response),
                }
            }
        }
    }

    /// Not inlined, so that requests that do not wait run through less code.
    #[inline(never)]
    fn decided(decision: Decision, selection: Selection, held: Option<Box<(S, Parts, B)>>, limits: &Limits) -> Self {
        let (mut service, mut parts, body) = *held.expect("a decision is polled to completion once");
        let admission = limits.judge(decision, selection, &mut parts);
        Self::judged(admission, &mut service, Request::from_parts(parts, body), limits)
    }

    #[inline(never)]
    fn dequeued(
        held: &mut Option<Box<(S, Request<B>, Admitted)>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self, S::Error>> {
        let queued = held.as_mut().expect("a queued request is admitted once");
        let ready = ready!(queued.0.poll_ready(cx));
        let (mut service, request, admitted) = *held.take().expect("a queued request is admitted once");
        if let (Err(_), Some(charge)) = (&ready, admitted.open_charge()) {
            charge.unserved();
        }
        Poll::Ready(ready.map(|()| Self::calling(&mut service, request, admitted)))
    }

    #[inline]
    pub(super) fn calling(service: &mut S, request: Request<B>, admitted: Admitted) -> Self {
        admitted.passed_on();
        Self::Calling {
            future: service.call(request),
            admitted: Some(admitted),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Body + Send + 'static,
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
                    State::decided(decision, std::mem::take(selection), held.take(), this.limits)
                }
                // ## Queued => Calling
                StateProjection::Queued { sleep, held } => {
                    ready!(sleep.as_mut().poll(cx));
                    match ready!(State::dequeued(held, cx)) {
                        Ok(next) => next,
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                // ## Calling => done
                StateProjection::Calling { future, admitted } => {
                    let response = ready!(future.poll(cx));
                    // Taken on failure, too, so that the charge is settled now and not when the future is dropped.
                    let admitted = admitted.take().expect("polled after completion");
                    return Poll::Ready(response.map(|response| this.limits.answer(admitted, response)));
                }
                // ## Rejected => done
                StateProjection::Rejected { response } => {
                    let response = response.take().expect("polled after completion");
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

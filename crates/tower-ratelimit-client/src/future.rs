use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http::{Method, Request, Response, StatusCode, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ClientError, ClientLayer, NoRetries, Retry, Throttled,
    advice::Advice,
    origin::{ClientConfig, Entry, Origin, Ticket, Waiting},
    ready::ReadyService,
};

pin_project! {
    /// The future of [`Client`](super::Client).
    ///
    /// # Cancellation
    ///
    /// Until it is sent, a request whose future is dropped leaves the queue. Afterwards, the server may have counted
    /// it.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_ratelimit_client::ClientLayer;
    ///
    /// # tokio_test::block_on(async {
    /// let server = service_fn(async |_: Request<()>| {
    ///     Response::builder().header("ratelimit", r#""a";r=0;t=60"#).body(())
    /// });
    /// let mut client = ClientLayer::new().layer(server);
    /// let request = || Request::get("http://a.example/").body(()).unwrap();
    /// client.ready().await?.call(request()).await?;
    ///
    /// let (parts, ()) = request().into_parts();
    /// let future = client.ready().await?.call(request());
    /// assert_eq!(client.layer().origin_status(&parts).unwrap().waiting(), 1);
    /// drop(future);
    /// assert_eq!(client.layer().origin_status(&parts).unwrap().waiting(), 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub struct ResponseFuture<S: Service<Request<B>>, B, R = NoRetries> {
        #[pin]
        state: State<S, B>,
        context: RequestContext<R>,
    }
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<S: Service<Request<B>>, B> {
        Waiting {
            turn: Waiting,
            // A clone of the service that was ready at `call`, because the ready service may hold a permit.
            held: Option<(S, Request<B>)>,
        },
        Readying { held: Option<(S, Request<B>, Ticket)> },
        Calling {
            #[pin]
            future: S::Future,
            method: Method,
            ticket: Option<Ticket>,
            // The service and the request for a retry. The service need not be ready.
            again: Option<(S, Request<B>)>,
        },
        Throttled { error: Option<Throttled> },
    }
}

/// Shared by all attempts of a request.
pub(super) struct RequestContext<R> {
    origin: Arc<Origin>,
    config: Arc<ClientConfig>,
    deadline: Instant,
    retries: u8,
    failures: u32,
    retry: R,
}

impl<R> RequestContext<R> {
    pub(super) fn new(layer: &ClientLayer<R>, retries: u8, request: &Parts, now: Instant) -> Self
    where
        R: Clone,
    {
        Self {
            origin: layer.origins.get_or_insert(request, now),
            config: Arc::clone(&layer.origins.config),
            deadline: now + layer.origins.config.queue_timeout,
            retries,
            failures: 0,
            retry: layer.retry.clone(),
        }
    }

    pub(super) fn enter(&self) -> Entry {
        self.origin.enter(&self.config, self.deadline)
    }

    fn enter_later(&self, delay: Duration) -> Entry {
        match delay.is_zero() {
            true => self.enter(),
            false => self.origin.enter_later(&self.config, self.deadline, delay),
        }
    }

    /// The wait before a retry. `None` if the response is final or the deadline would pass.
    fn retry_in<T>(&mut self, method: &Method, response: &Response<T>, advice: &Advice) -> Option<Duration> {
        self.failures += 1;
        let imposes_a_wait = advice.retry_after().is_some_and(|wait| !wait.is_zero());
        let delay = match response.status() {
            // The server has not processed the request, and the queue waits as long as the rejection requires.
            _ if advice.is_rejection() => Duration::ZERO,
            // The server may have started to process the request.
            StatusCode::SERVICE_UNAVAILABLE if !method.is_idempotent() => return None,
            StatusCode::SERVICE_UNAVAILABLE if imposes_a_wait => Duration::ZERO,
            // Other requests may reach an instance that works.
            StatusCode::SERVICE_UNAVAILABLE => self.origin.backoff(self.failures),
            _ => return None,
        };
        let may_return = !advice.is_final() && self.origin.may_return(&self.config, self.deadline, delay);
        may_return.then_some(delay)
    }
}

impl<S: Service<Request<B>>, B, R> ResponseFuture<S, B, R> {
    pub(super) fn new(state: State<S, B>, context: RequestContext<R>) -> Self {
        Self { state, context }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    fn enter(entry: Entry, service: S, request: Request<B>) -> Self {
        match entry {
            Entry::Go(ticket) => Self::readying(Ok(ticket), service, request),
            Entry::Wait(turn) => Self::waiting(turn, service, request),
            Entry::Throttled(error) => Self::throttled(error),
        }
    }

    pub(super) fn waiting(turn: Waiting, service: S, request: Request<B>) -> Self {
        let held = Some((service, request));
        Self::Waiting { turn, held }
    }

    pub(super) fn throttled(error: Throttled) -> Self {
        Self::Throttled { error: Some(error) }
    }

    fn readying(turn: Result<Ticket, Throttled>, service: S, request: Request<B>) -> Self {
        match turn {
            Ok(ticket) => Self::Readying {
                held: Some((service, request, ticket)),
            },
            Err(error) => Self::throttled(error),
        }
    }

    /// Waits again if the server has imposed a wait since the ticket was issued.
    fn ready<R: Retry<B>>(context: &RequestContext<R>, mut service: S, request: Request<B>, ticket: Ticket) -> Self
    where
        S: Clone,
    {
        if ticket.is_outdated() {
            let clone = service.clone();
            drop((service, ticket));
            return Self::enter(context.enter(), clone, request);
        }
        Self::calling(context, ReadyService::new(&mut service), request, ticket)
    }

    pub(super) fn calling<R: Retry<B>>(
        context: &RequestContext<R>,
        ready: ReadyService<'_, S>,
        request: Request<B>,
        mut ticket: Ticket,
    ) -> Self
    where
        S: Clone,
    {
        let (parts, body) = request.into_parts();
        let clone = (context.retries > 0).then(|| context.retry.clone_body(&body)).flatten();
        let service = ready.keep();
        let again = clone.map(|body| (service.clone(), Request::from_parts(parts.clone(), body)));
        let method = parts.method.clone();
        let request = Request::from_parts(parts, body);
        ticket.send();
        Self::Calling {
            future: service.call(request),
            method,
            ticket: Some(ticket),
            again,
        }
    }
}

impl<S, B, T, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    R: Retry<B>,
{
    type Output = Result<Response<T>, ClientError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Waiting => (Readying | Throttled)
                StateProjection::Waiting { turn, held } => {
                    let turn = ready!(turn.as_mut().poll(cx));
                    let (service, request) = held.take().expect("a queued request is admitted once");
                    State::readying(turn, service, request)
                }
                // ## Readying => (Calling | Readying | Waiting | Throttled)
                StateProjection::Readying { held } => {
                    let (service, ..) = held.as_mut().expect("the service becomes ready once");
                    let ready = ready!(service.poll_ready(cx));
                    // If the service has failed, dropping the ticket cancels the unsent request.
                    let (service, request, ticket) = held.take().expect("the service becomes ready once");
                    ready.map_err(ClientError::Inner)?;
                    State::ready(this.context, service, request, ticket)
                }
                // ## Calling => (done | Readying | Waiting | Throttled)
                StateProjection::Calling {
                    future,
                    method,
                    ticket,
                    again,
                } => {
                    let response = ready!(future.poll(cx));
                    // Taken even if the service has failed: the request has ended, although the caller may keep the
                    // future.
                    let ticket = ticket.take().expect("polled after completion");
                    let again = again.take();
                    let mut response = response.map_err(ClientError::Inner)?;
                    let advice = ticket.answer(response.status(), response.headers());
                    let retry = again.and_then(|again| {
                        let delay = this.context.retry_in(method, &response, &advice)?;
                        Some((delay, again))
                    });
                    let Some((delay, (service, request))) = retry else {
                        keep(&mut response, advice);
                        return Poll::Ready(Ok(response));
                    };
                    this.context.retries -= 1;
                    State::enter(this.context.enter_later(delay), service, request)
                }
                // ## Throttled => done
                StateProjection::Throttled { error } => {
                    let error = error.take().expect("polled after completion");
                    return Poll::Ready(Err(error.into()));
                }
            };
            this.state.set(next);
        }
    }
}

fn keep<T>(response: &mut Response<T>, advice: Advice) {
    if !advice.is_empty() {
        response.extensions_mut().insert(advice);
    }
}

impl<S: Service<Request<B>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

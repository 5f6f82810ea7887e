use std::{
    fmt,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    ClientError, ClientLayer, NoRetries, ResponseFuture, Retry,
    future::{RequestContext, State},
    origin::{Entry, now},
    ready::ReadyService,
};

/// The service created by [`ClientLayer`], ready when `S` is.
///
/// A waiting request releases the ready `S`, which may hold a permit.
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{Advice, ClientLayer};
///
/// # tokio_test::block_on(async {
/// let server = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", r#""a";r=9;t=60"#).body(()));
/// let client = ClientLayer::new().layer(server);
///
/// let response = client.clone().oneshot(Request::get("http://a.example/").body(())?).await?;
/// let advice = response.extensions().get::<Advice>().expect("the server sends limits");
/// assert_eq!(advice.limits()[0].remaining(), Some(9));
/// assert_eq!(client.layer().origins(), 1);
///
/// // Requests to the inner service are not tracked.
/// client.get_ref().clone().oneshot(Request::get("http://b.example/").body(())?).await?;
/// assert_eq!(client.layer().origins(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Client<S, R = NoRetries> {
    inner: S,
    layer: ClientLayer<R>,
}

impl<S, R: Clone> Layer<S> for ClientLayer<R> {
    type Service = Client<S, R>;

    fn layer(&self, inner: S) -> Client<S, R> {
        Client {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, R> Client<S, R> {
    /// Returns the layer, which has the [known limits](ClientLayer::origin_status).
    pub fn layer(&self) -> &ClientLayer<R> {
        &self.layer
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes the client and returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, T, R> Service<Request<B>> for Client<S, R>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    R: Retry<B>,
{
    type Response = Response<T>;
    type Error = ClientError<S::Error>;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ClientError::Inner)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B, R> {
        let (parts, body) = request.into_parts();
        let ready = ReadyService::new(&mut self.inner);
        let context = RequestContext::new(&self.layer, self.layer.retry.count(), &parts, now());
        let request = Request::from_parts(parts, body);
        let state = match context.enter() {
            Entry::Go(ticket) => State::calling(&context, ready, request, ticket),
            Entry::Wait(turn) => {
                drop(ready);
                State::waiting(turn, self.inner.clone(), request)
            }
            Entry::Throttled(error) => State::throttled(error),
        };
        ResponseFuture::new(state, context)
    }
}

impl<S: fmt::Debug, R> fmt::Debug for Client<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}

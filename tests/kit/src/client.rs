use std::{
    convert::Infallible,
    fmt::Debug,
    future::{Ready, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt, service_fn, util::ServiceFn};
use tower_layer::Layer;
use tower_quota::{
    Decision, Limiter, LimiterBuilder, Outcome, RateLimitLayerBuilder, Store,
    fields::Hints,
    key::{self, KeyExtractor},
};

/// A service that answers `hello` to everything.
pub type Hello<B> = ServiceFn<fn(Request<B>) -> Ready<Result<Response<Full<Bytes>>, Infallible>>>;

pub fn hello<B>() -> Hello<B> {
    service_fn(|_| ready(Ok(Response::new(Full::from("hello")))))
}

/// The builder of a layer whose callers are named by `x-user-id`. A machine that is busy with other tests must not make
/// requests pass uncounted.
pub fn limits(store: impl Store) -> RateLimitLayerBuilder {
    limits_by(key::header("x-user-id"), store)
}

pub fn limits_by(key: impl KeyExtractor, store: impl Store) -> RateLimitLayerBuilder {
    let limiter = Limiter::builder(store).deadline(Duration::from_secs(60));
    RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope("test")
        .key(key)
}

/// The same as [`limits`] with the settings of this limiter.
pub fn limits_of(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope("test")
        .key(key::header("x-user-id"))
}

pub fn request(user: &str) -> Request<String> {
    Request::builder()
        .header("x-user-id", user)
        .body(String::new())
        .unwrap()
}

/// A request of alice that costs this, if the layer takes its costs [by `x-cost`](cost).
pub fn costing(cost: u64) -> Request<String> {
    let mut request = request("alice");
    request.headers_mut().insert("x-cost", cost.into());
    request
}

/// The cost that is in `x-cost`, or 1.
pub fn cost(request: &http::request::Parts) -> u64 {
    let cost = request.headers.get("x-cost");
    cost.map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
}

/// Sends a request through the layer to a service that answers `hello`, and reads all of the response.
pub async fn send<L, A, B>(layer: &L, request: Request<A>) -> Response<Bytes>
where
    L: Layer<Hello<A>>,
    L::Service: Service<Request<A>, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    call(layer.layer(hello()), request).await
}

pub async fn call<S, A, B>(service: S, request: Request<A>) -> Response<Bytes>
where
    S: Service<Request<A>, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

/// The parts of a response that tests look at.
pub trait Answered {
    fn code(&self) -> u16;

    /// The only line of a field, or an empty text where it is absent.
    fn field(&self, name: &str) -> &str;

    fn fields<const N: usize>(&self, names: [&str; N]) -> [&str; N] {
        names.map(|name| self.field(name))
    }

    /// The names and the remaining units of the policies in the `RateLimit` field.
    fn remaining(&self) -> Vec<(String, u64)>;

    fn decision(&self) -> &Decision;

    fn outcome(&self) -> Outcome {
        self.decision().outcome()
    }
}

impl<B> Answered for Response<B> {
    fn code(&self) -> u16 {
        self.status().as_u16()
    }

    fn field(&self, name: &str) -> &str {
        let mut lines = self.headers().get_all(name).iter();
        let line = lines.next().map_or("", |value| value.to_str().unwrap());
        assert!(lines.next().is_none(), "{name} has more than one line");
        line
    }

    fn remaining(&self) -> Vec<(String, u64)> {
        let hints = Hints::read(self.headers());
        let limits = hints.limits().iter();
        limits
            .map(|limit| (limit.name().unwrap().to_owned(), limit.remaining().unwrap()))
            .collect()
    }

    fn decision(&self) -> &Decision {
        self.extensions().get().expect("the response carries its decision")
    }
}

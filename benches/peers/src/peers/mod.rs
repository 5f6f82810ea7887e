//! The compared limiters, each in its own file, and their common parts.

mod bare_script;
mod barnacle;
mod tower_quota;
mod tower_rate_limiter;
mod tower_rate_tier;

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn, util::ServiceFn};

/// The field that every request has, and that every limiter counts by.
const USER: &str = "x-user-id";

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type Ask = dyn Fn(u32) -> BoxFuture<Answer> + Send + Sync;

/// A service with limits.
#[derive(Clone)]
pub struct Limiter(Arc<Ask>);

impl Limiter {
    /// One decision about a user.
    pub fn ask(&self, user: u32) -> BoxFuture<Answer> {
        (self.0)(user)
    }
}

pub type Connected = Result<Limiter, Box<dyn Error + Send + Sync>>;

/// A limiter and its properties, from its documentation and source.
pub struct Peer {
    pub name: &'static str,
    /// Its name in `Cargo.lock`.
    pub package: Option<&'static str>,
    pub algorithm: &'static str,
    /// `yes` if a request is charged to all windows or to none.
    pub atomic: &'static str,
    /// The fields that it sends to clients.
    pub fields: &'static str,
    /// The behavior without Redis that its settings here promise.
    pub failure: &'static str,
    pub connect: fn(url: String, windows: Windows) -> BoxFuture<Connected>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// As `Cargo.lock` has it.
pub fn version(package: Option<&str>) -> &'static str {
    let Some(package) = package else { return "" };
    let mut lines = include_str!("../../Cargo.lock").lines();
    lines
        .find(|line| line.strip_prefix("name = ").map(|name| name.trim_matches('"')) == Some(package))
        .and_then(|_| lines.next()?.strip_prefix("version = "))
        .map_or("", |version| version.trim_matches('"'))
}

/// All of them. The first is what the others are measured against, the second is the crate itself.
pub fn all() -> Vec<Peer> {
    let mut peers = vec![bare_script::PEER];
    peers.extend(tower_quota::PEERS);
    peers.extend(barnacle::PEERS);
    peers.extend(tower_rate_limiter::PEERS);
    peers.push(tower_rate_tier::PEER);
    peers
}

/// A quota and the time it is for.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub name: &'static str,
    pub quota: u32,
    pub length: Duration,
}

impl Window {
    pub const fn new(name: &'static str, quota: u32, seconds: u64) -> Self {
        let length = Duration::from_secs(seconds);
        Self { name, quota, length }
    }
}

/// From the shortest to the longest.
pub type Windows = [Window; 3];

pub const fn windows(second: u32, minute: u32, day: u32) -> Windows {
    [
        Window::new("second", second, 1),
        Window::new("minute", minute, 60),
        Window::new("day", day, 86_400),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Counted and passed on.
    Allowed,
    /// Counted or not, and answered with status 429.
    Rejected,
    /// Passed on without having been counted.
    Uncounted,
    /// Any other status.
    Failed(u16),
}

impl Answer {
    pub fn is_decision(self) -> bool {
        matches!(self, Self::Allowed | Self::Rejected)
    }

    /// The meaning of a status; a response of the service behind may be counted or not.
    fn of<B>(response: &Response<B>, is_counted: impl FnOnce() -> bool) -> Self {
        match response.status().as_u16() {
            200 if is_counted() => Self::Allowed,
            200 => Self::Uncounted,
            429 => Self::Rejected,
            status => Self::Failed(status),
        }
    }
}

type Handler = ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;

/// The service behind every limiter: always ready, and answers at once.
fn inner() -> Handler {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

/// The service with one layer around it.
fn limited<L, B>(layer: L, answer: fn(&Response<B>) -> Answer) -> Limiter
where
    L: Layer<Handler>,
    L::Service: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    limited_service(layer.layer(inner()), answer)
}

/// One layer for each window, the shortest outermost: it rejects first and spares the others the call.
fn limited_thrice<L, A, B, C>([second, minute, day]: [L; 3], answer: fn(&Response<Body>) -> Answer) -> Limiter
where
    L: Layer<Handler, Service = A> + Layer<A, Service = B> + Layer<B, Service = C>,
    C: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    C::Future: Send,
{
    limited_service(second.layer(minute.layer(day.layer(inner()))), answer)
}

fn limited_service<S, B>(service: S, answer: fn(&Response<B>) -> Answer) -> Limiter
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Limiter(Arc::new(move |user| {
        let service = service.clone();
        Box::pin(async move {
            let request = Request::builder().header(USER, user_id(user)).body(Body::empty());
            let request = request.expect("the parts of the request are sound");
            let Ok(response) = service.oneshot(request).await;
            answer(&response)
        }) as BoxFuture<_>
    }))
}

/// A name of the same length for all users.
fn user_id(user: u32) -> String {
    format!("user-{user:06}")
}

// The hidden part of the examples in the documentation: each includes this file as a module. It is a file and no item of the
// crate, so that the examples run with any features and users never meet it.

pub use std::{convert::Infallible, error::Error, net::SocketAddr, time::Duration};

pub use http::{Request, Response, StatusCode, request::Parts};
pub use http_body_util::BodyExt;
pub use tower::{Layer, Service, ServiceExt, service_fn};
pub use tower_quota::tier::TierLayer;
pub use tower_quota::{key::PeerAddress, *};

/// Runs an example. Its timers do not wait in real time.
pub fn run(example: impl Future<Output = Result<(), Box<dyn Error>>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(example).unwrap();
}

/// Sends a request through the layer, to a service that answers 200.
pub async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    layer.layer(inner).oneshot(request.body(String::new()).unwrap()).await.unwrap()
}

/// Returns `true` if the layer counts the request.
pub async fn is_counted(layer: &RateLimitLayer, request: http::request::Builder) -> bool {
    send(layer, request).await.headers().contains_key("ratelimit")
}

/// The head of a request, as a key sees it.
pub fn parts(request: http::request::Builder) -> Parts {
    request.body(String::new()).unwrap().into_parts().0
}

/// The head of a request from this address.
pub fn from(address: &str) -> Parts {
    parts(Request::get("/").extension(PeerAddress(SocketAddr::new(address.parse().unwrap(), 4711))))
}

/// The tier that a request of this user carries behind the layer.
pub async fn tier_of(layer: &TierLayer, user: u64) -> Option<String> {
    let inner = service_fn(async |request: Request<String>| {
        let tier = request.extensions().get().map(|tier: &ResolvedTier| tier.as_str().to_owned());
        Ok::<_, Infallible>(tier)
    });
    layer.layer(inner).oneshot(Request::builder().extension(user).body(String::new()).unwrap()).await.unwrap()
}

/// A store whose server is unavailable.
#[derive(Debug)]
pub struct Unavailable;

impl Store for Unavailable {
    fn acquire(&self, _: Plan) -> StoreFuture<Measurement> {
        StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "connection refused")))
    }

    fn settle(&self, _: Settlement) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, _: Plan) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

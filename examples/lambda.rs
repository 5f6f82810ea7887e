//! AWS Lambda: limits by the client's address behind API Gateway, a function URL or a load balancer.
//!
//! ```sh
//! cargo build --release --example lambda
//! ```
//!
//! The program is the file `bootstrap` of a function with the runtime `provided.al2023`.
//!
//! Lambda passes an event to the program, and no connection. API Gateway (REST and HTTP APIs) and function URLs put the
//! client's address into the context of the request, where no client can write it. An Application Load Balancer appends the
//! address to `X-Forwarded-For`.
//!
//! `REDIS_URL` is required: Lambda handles concurrent requests in several instances, which share nothing but Redis.

use std::{
    env,
    error::Error,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::{Router, extract::Request, middleware};
use lambda_http::{RequestExt, request::RequestContext};
use tower::ServiceBuilder;
use tower_quota::{
    ConfigError, Limiter, LimiterBuilder, MissingKey, QuotaPolicy, RateLimitLayer, RedisStore,
    key::{self, ClientIp, ForwardingField, PeerAddress},
};

/// Stands for the load balancer, whose own address is not in the event. No client of API Gateway has this address.
const LOAD_BALANCER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let redis = RedisStore::new(env::var("REDIS_URL")?)?;
    let limits = limits(Limiter::builder(redis))?;
    // Once per instance, before the first request.
    if let Err(error) = limits.limiter().ready(Duration::from_secs(1)).await {
        eprintln!("requests may pass unlimited: {error}");
    }
    lambda_http::run(app(limits)).await
}

/// Lambda freezes an instance after each response, so use policies that are charged before. A settlement at the end of a
/// response (concurrent requests, custom units) may reach Redis only with the next event of the instance.
pub(crate) fn limits(limiter: LimiterBuilder) -> Result<RateLimitLayer, ConfigError> {
    let limiter = limiter
        .scope("api")
        .on_missing_key(MissingKey::Reject)
        .policy(QuotaPolicy::per_second("second", 10))
        .policy(QuotaPolicy::per_hour("hour", 1_000))
        .build()?;
    RateLimitLayer::with_limiter(limiter).key(client()).build()
}

/// With CloudFront in front of the API, add its networks: the source of the request is then CloudFront.
pub(crate) fn client() -> ClientIp {
    key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, [LOAD_BALANCER.to_string()])
}

pub(crate) fn app(limits: RateLimitLayer) -> Router {
    // The first one of these sees a request first.
    let layers = ServiceBuilder::new()
        .layer(middleware::map_request(set_peer))
        .layer(limits);
    // The paths of a REST API begin with its stage, such as `/prod/items`.
    Router::new().fallback(|| async { "Hello!\n" }).layer(layers)
}

async fn set_peer(mut request: Request) -> Request {
    if let Some(address) = request.request_context_ref().and_then(peer) {
        let peer = PeerAddress(SocketAddr::new(address, 0));
        request.extensions_mut().insert(peer);
    }
    request
}

/// `None` for a test from the console, whose source is not an address.
fn peer(context: &RequestContext) -> Option<IpAddr> {
    let source = match context {
        RequestContext::ApiGatewayV1(context) => &context.identity.source_ip,
        // Function URLs have the same format.
        RequestContext::ApiGatewayV2(context) => &context.http.source_ip,
        RequestContext::Alb(_) => return Some(LOAD_BALANCER),
        _ => return None,
    };
    source.as_ref()?.parse().ok()
}

//! AWS Lambda: limits by client address behind API Gateway, a function URL or a load balancer.
//!
//! ```sh
//! cargo build --release -p example-lambda
//! ```
//!
//! Deploy the program as `bootstrap` of a function with the runtime `provided.al2023`.
//!
//! Lambda passes events to the program instead of connections. API Gateway (REST and HTTP APIs) and function URLs add
//! the client address to the request context, which clients cannot modify. An Application Load Balancer appends the
//! address to `X-Forwarded-For`.
//!
//! `REDIS_URL` is required, because Lambda handles concurrent requests in several instances, which share only Redis.

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

/// Represents the load balancer, whose address is not in the event. No client of API Gateway has this address.
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

/// Lambda freezes an instance after each response, so use policies that are charged up front. A settlement at the end
/// of a response (concurrency limits, custom units) may not reach Redis until the next event of the instance.
pub(crate) fn limits(limiter: LimiterBuilder) -> Result<RateLimitLayer, ConfigError> {
    let limiter = limiter
        .scope("api")
        .on_missing_key(MissingKey::Reject)
        .policy(QuotaPolicy::per_second("second", 10))
        .policy(QuotaPolicy::per_hour("hour", 1_000))
        .build()?;
    RateLimitLayer::with_limiter(limiter).key(client()).build()
}

/// If CloudFront is in front of the API, add its networks, because the source of the request is then CloudFront.
pub(crate) fn client() -> ClientIp {
    key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, [LOAD_BALANCER.to_string()])
}

pub(crate) fn app(limits: RateLimitLayer) -> Router {
    // The first layer runs first.
    let layers = ServiceBuilder::new()
        .layer(middleware::map_request(set_peer))
        .layer(limits);
    // The paths of a REST API start with its stage, such as `/prod/items`.
    Router::new().fallback(|| async { "Hello!\n" }).layer(layers)
}

async fn set_peer(mut request: Request) -> Request {
    if let Some(address) = request.request_context_ref().and_then(peer) {
        let peer = PeerAddress(SocketAddr::new(address, 0));
        request.extensions_mut().insert(peer);
    }
    request
}

/// Returns `None` for a test from the console, whose source is not an address.
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

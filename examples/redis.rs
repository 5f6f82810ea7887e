//! The quickstart with its limits in Redis: any number of these processes enforce them together.
//!
//! ```sh
//! PORT=3000 cargo run --example redis
//! PORT=3001 cargo run --example redis
//! ```
//!
//! Six requests to both in turn; three pass, since they share a limit of three per second:
//!
//! ```sh
//! for i in 1 2 3; do curl -is -w '\n' -H 'x-user-id: alice' http://127.0.0.1:3000/ http://127.0.0.1:3001/; done
//! ```
//!
//! Now stop Redis: requests pass without `RateLimit` fields, and an event tells you so. Start it again, and the
//! limits are back. The service can also be started before Redis is.
//!
//! `REDIS_URL` says where Redis is, by default `redis://127.0.0.1/`; `PORT` sets the port; 0 takes a free one.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware,
    routing::get,
};
use tokio::net::TcpListener;
use tower_quota::{
    QuotaPolicy, RateLimitLayer, RedisStore,
    key::{self, KeyExtractor, PeerAddress},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt::init();

    let redis_url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let limits = RateLimitLayer::builder(RedisStore::new(redis_url)?)
        // Processes share the limits because they have the same Redis and the same scope.
        .scope("redis example")
        // Any client can send any header: this one is right only behind a gateway that sets or removes it.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_second("second", 3))
        .policy(QuotaPolicy::per_minute("minute", 5))
        .policy(QuotaPolicy::per_day("day", 100))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits)
        .layer(middleware::map_request(show_peer));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("Start another one with a different PORT, and send requests to both:");
    println!("  curl -i -H 'x-user-id: alice' {url}");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Shows the peer's address to `key::client_ip`. With the feature `axum` of tower-quota you need not do this.
async fn show_peer(ConnectInfo(address): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(PeerAddress(address));
    request
}

//! The quickstart with limits in Redis, shared by any number of processes.
//!
//! ```sh
//! PORT=3000 cargo run --example redis
//! PORT=3001 cargo run --example redis
//! ```
//!
//! Send six requests to both processes in turn. Three pass, because the processes share a limit of three per second:
//!
//! ```sh
//! for i in 1 2 3; do curl -is -w '\n' -H 'x-user-id: alice' http://127.0.0.1:3000/ http://127.0.0.1:3001/; done
//! ```
//!
//! If you stop Redis, requests pass without `RateLimit` fields, and a warning is logged. After Redis restarts, the
//! limits apply again. The service can also be started before Redis; the service then prints within a second that
//! requests may pass unlimited.
//!
//! `REDIS_URL` sets the URL of Redis (by default `redis://127.0.0.1/`), and `PORT` the port (0 selects a free one).
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread"] }
//! tower-quota = "0.1.0"
//! tracing-subscriber = { version = "0.3", default-features = false, features = ["fmt"] }
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

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
        // Processes with the same Redis and scope share the limits.
        .scope("redis example")
        // Clients can send any header. Use `x-user-id` only behind a gateway that sets or removes the field.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_second("second", 3))
        .policy(QuotaPolicy::per_minute("minute", 5))
        .policy(QuotaPolicy::per_day("day", 100))
        .build()?;
    if let Err(error) = limits.limiter().ready(Duration::from_secs(1)).await {
        eprintln!("requests may pass unlimited: {error}");
    }

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

/// Passes the peer address to `key::client_ip`. Not needed with the feature `axum` of tower-quota.
async fn show_peer(ConnectInfo(address): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(PeerAddress(address));
    request
}

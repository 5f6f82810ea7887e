//! An axum service with three limits in memory.
//!
//! ```sh
//! cargo run --example quickstart
//! ```
//!
//! Get a response with `RateLimit` fields, then send requests until one is rejected:
//!
//! ```sh
//! curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/
//! for i in 1 2 3 4 5 6; do curl -is -w '\n' -H 'x-user-id: alice' http://127.0.0.1:3000/; done
//! ```
//!
//! `PORT` sets the port; 0 selects a free one.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread"] }
//! tower-quota = { version = "0.1.0", default-features = false }
//! ```

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware,
    routing::get,
};
use tokio::net::TcpListener;
use tower_quota::{
    MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, KeyExtractor, PeerAddress},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("quickstart")
        // Clients can send any header. Use `x-user-id` only behind a gateway that sets or removes the field. If you
        // authenticate users yourself, use `key::extension`, as in the example `tiers`.
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
    println!("A response with RateLimit fields, then requests until one is rejected:");
    println!("  curl -i -H 'x-user-id: alice' {url}");
    println!("  for i in 1 2 3 4 5 6; do curl -is -w '\\n' -H 'x-user-id: alice' {url}; done");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Passes the peer address to `key::client_ip`. Not needed with the feature `axum` of tower-quota.
async fn show_peer(ConnectInfo(address): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(PeerAddress(address));
    request
}

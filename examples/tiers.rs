//! Free, premium and unlimited accounts, limits per route, and custom rejections.
//!
//! ```sh
//! cargo run --example tiers
//! ```
//!
//! The keys of this example are `alice` (free), `bob` (premium) and `root` (admin):
//!
//! ```sh
//! curl -i -H 'authorization: Bearer alice' http://127.0.0.1:3000/items    # "minute";q=5
//! curl -i -H 'authorization: Bearer bob' http://127.0.0.1:3000/items      # "minute";q=50
//! curl -i -H 'authorization: Bearer root' http://127.0.0.1:3000/items     # no limit, no fields
//! curl -i -H 'authorization: Bearer eve' http://127.0.0.1:3000/items      # 401, and no quota is used
//! curl -i http://127.0.0.1:3000/items                                     # free, counted by address
//! for i in 1 2 3 4 5 6; do curl -is -X POST http://127.0.0.1:3000/login; done
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
    body::Bytes,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Response, StatusCode, header},
    middleware,
    routing::{get, post},
};
use tokio::net::TcpListener;
use tower_quota::{
    ConfigError, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Rejection, Tiers, ToPartitionKey,
    key::{self, KeyExtractor, PeerAddress},
};

/// The authenticated caller.
#[derive(Clone)]
struct Account {
    id: u64,
    tier: &'static str,
}

impl ToPartitionKey for Account {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("account", self.id.to_be_bytes())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new();
    let app = Router::new()
        .route(
            "/login",
            post(|| async { "Welcome!\n" }).layer(login_limits(store.clone())?),
        )
        .route("/items", get(|| async { "Some items.\n" }).layer(item_limits(store)?))
        .route("/health", get(|| async { "Fine.\n" }))
        // The layer added last runs first, so the limits use the results of the two layers below.
        .layer(middleware::map_request(authenticate))
        .layer(middleware::map_request(show_peer));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("The keys are alice (free), bob (premium) and root (admin):");
    println!("  curl -i -H 'authorization: Bearer alice' {url}/items");
    println!("  for i in 1 2 3 4 5 6; do curl -is -X POST {url}/login; done");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Clients are not logged in yet, so attempts are counted by address.
fn login_limits(store: MemoryStore) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(store)
        .scope("login")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_minute("minute", 5))
        .respond_with(slow_down)
        .build()
}

/// Callers without an account have the first tier and are counted by address.
fn item_limits(store: MemoryStore) -> Result<RateLimitLayer, ConfigError> {
    let tiers = Tiers::from_fn(|request| request.extensions.get::<Account>().map(|account| account.tier))
        .tier("free", [QuotaPolicy::per_minute("minute", 5)])
        .tier(
            "premium",
            [
                QuotaPolicy::per_second("second", 10),
                QuotaPolicy::per_minute("minute", 50),
            ],
        )
        .unlimited("admin");

    RateLimitLayer::builder(store)
        .scope("items")
        .key(key::extension::<Account>().or_else(key::client_ip()))
        .tiers(tiers)
        .respond_with(slow_down)
        .build()
}

/// The body of a rejection; the layer adds `RateLimit`, `RateLimit-Policy` and `Retry-After`.
fn slow_down(rejection: &Rejection<'_>) -> Response<Bytes> {
    let violated = rejection.decision().violated();
    let names: Vec<_> = violated.map(|allowance| allowance.policy().name()).collect();
    let mut response = Response::new(format!("Slow down, please: too many in one {}.\n", names.join(", ")).into());
    *response.status_mut() = rejection.status();
    let text = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

/// Looks up the account of an API key. Requests with a wrong key are rejected before they are charged.
async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
    if let Some(authorization) = request.headers().get(header::AUTHORIZATION) {
        let (id, tier) = match authorization.as_bytes() {
            b"Bearer alice" => (1, "free"),
            b"Bearer bob" => (2, "premium"),
            b"Bearer root" => (3, "admin"),
            _ => return Err(StatusCode::UNAUTHORIZED),
        };
        request.extensions_mut().insert(Account { id, tier });
    }
    Ok(request)
}

/// Passes the peer address to `key::client_ip`. Not needed with the feature `axum` of tower-quota.
async fn show_peer(ConnectInfo(address): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(PeerAddress(address));
    request
}

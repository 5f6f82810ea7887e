//! The layer on a bare hyper server, without axum.
//!
//! ```sh
//! cargo run --example hyper
//! ```
//!
//! Get a response with `RateLimit` fields, then send requests until one is rejected:
//!
//! ```sh
//! curl -i http://127.0.0.1:3000/
//! for i in 1 2 3 4; do curl -is -w '\n' http://127.0.0.1:3000/; done
//! ```
//!
//! `PORT` sets the port; 0 selects a free one.
//!
//! ```toml
//! [dependencies]
//! hyper = { version = "1.7", features = ["http1", "server"] }
//! hyper-util = { version = "0.1.16", features = ["http1", "service", "tokio"] }
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread"] }
//! tower = { version = "0.5", features = ["util"] }
//! tower-quota = { version = "0.1.0", default-features = false }
//! ```

use std::{convert::Infallible, env, error::Error};

use hyper::{Request, Response, body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_quota::{
    MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, PeerAddress},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("hyper example")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_second("second", 3))
        .policy(QuotaPolicy::per_day("day", 100))
        .build()?;

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("A response with RateLimit fields, then requests until one is rejected:");
    println!("  curl -i {url}");
    println!("  for i in 1 2 3 4; do curl -is -w '\\n' {url}; done");

    loop {
        let (stream, address) = listener.accept().await?;
        let service = ServiceBuilder::new()
            // Passes the peer address of the connection to the layer.
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddress(address));
                request
            })
            // Clones share their limits.
            .layer(limits.clone())
            .service_fn(hello);
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("{error}");
            }
        });
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("Hello!\n".to_owned()))
}

mod token_bucket_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    FailureMode, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod token_bucket_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::new("burst", 5, Duration::from_secs(10)))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, QuotaPolicy, RateLimitLayer, RedisStore,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .failure_mode(FailureMode::Closed)
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, RedisStore,
    ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::builder(RedisStore::new("redis://127.0.0.1/")?).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod strict_token_bucket_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, LegacyReset, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod fixed_window_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::FixedWindow),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(QuotaPolicy::per_day("all of \"them\"", 50_000))
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, RedisStore,
    ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::builder(RedisStore::new("redis://127.0.0.1/")?).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder,
    ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_counter_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::FixedWindow),
        )
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .cost(2)
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder,
    ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod sliding_window_log_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, RedisStore,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::builder(RedisStore::new("redis://127.0.0.1/")?).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_meter_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::StrictTokenBucket),
        )
        .cost(2)
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_draft_11 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_draft_11_and_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(RedisStore::new("redis://127.0.0.1/")?)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::draft11().with_draft06_limit())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_in_between {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A store in memory does not fail. A `RedisStore` in its place can.
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_burst_capacity(40),
        )
        .response_fields(ResponseFields::in_between())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_draft_06 {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .response_fields(ResponseFields::draft06())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_x_seconds {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, FailureMode, LegacyReset, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        // A store in memory does not fail. A `RedisStore` in its place can.
        .failure_mode(FailureMode::Closed)
        .response_fields(ResponseFields::legacy(LegacyReset::DeltaSeconds))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_x_unix_time {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, RedisStore,
    ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::builder(RedisStore::new("redis://127.0.0.1/")?).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .cost(2)
        .response_fields(ResponseFields::legacy(LegacyReset::UnixTime))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}

mod leaky_bucket_queue_none {
// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = { version = "1", features = ["full"] }
// tower-quota = { version = "0.1", features = ["axum"] }

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields,
    key::{self, KeyExtractor},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000)
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .response_fields(ResponseFields::none())
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
}


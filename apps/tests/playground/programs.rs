mod program_0 {
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
mod program_1 {
use std::{error::Error, net::SocketAddr};
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_second("burst", 5))
        .policy(QuotaPolicy::per_minute("minute", 20).with_burst_capacity(15))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
        )
        .cost(2)
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
mod program_2 {
use std::{error::Error, net::SocketAddr};
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, LegacyReset, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder,
    ResponseFields,
    key::{self, KeyExtractor},
};
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_second("burst", 5))
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_algorithm(Algorithm::StrictTokenBucket)
                .with_burst_capacity(15),
        )
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
        )
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
mod program_3 {
use std::{error::Error, net::SocketAddr};
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_day("burst", 5).with_algorithm(Algorithm::StrictTokenBucket))
        .policy(QuotaPolicy::per_minute("minute", 20).with_burst_capacity(15))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
        )
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
mod program_4 {
use std::{error::Error, net::SocketAddr};
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    Algorithm, Limiter, MemoryStore, QuotaPolicy, RateLimitLayerBuilder, ResponseFields,
    key::{self, KeyExtractor},
};
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(MemoryStore::new()).fallback(MemoryStore::new());
    let limits = RateLimitLayerBuilder::from(limiter)
        .scope("api")
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(QuotaPolicy::per_day("burst", 5).with_algorithm(Algorithm::FixedWindow))
        .policy(QuotaPolicy::per_minute("minute", 20))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
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
mod program_5 {
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowCounter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20))
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
mod program_6 {
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::SlidingWindowLog),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_algorithm(Algorithm::StrictTokenBucket)
                .with_burst_capacity(15),
        )
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
mod program_7 {
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::new("burst", 5, Duration::from_secs(10))
                .with_algorithm(Algorithm::LeakyBucketMeter),
        )
        .policy(QuotaPolicy::per_minute("minute", 20).with_burst_capacity(15))
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
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
mod program_8 {
use std::{error::Error, net::SocketAddr};
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::per_hour("burst", 5)
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(QuotaPolicy::per_minute("minute", 20).with_burst_capacity(15))
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
mod program_9 {
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
mod program_10 {
use std::{error::Error, net::SocketAddr};
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
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .policy(
            QuotaPolicy::per_second("burst", 5)
                .with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 5 }),
        )
        .policy(
            QuotaPolicy::per_minute("minute", 20)
                .with_algorithm(Algorithm::StrictTokenBucket)
                .with_burst_capacity(15),
        )
        .policy(
            QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(Algorithm::FixedWindow),
        )
        .cost(2)
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

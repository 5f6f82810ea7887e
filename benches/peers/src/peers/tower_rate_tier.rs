//! `tower-rate-tier`: a layer for each window, all on one connection manager. Its README recommends the circuit breaker
//! with local memory where Redis may become unavailable. Under load, the breaker would decide from memory whenever a
//! call is late, so the cost of a Redis decision is measured without it. Its fields cannot be turned off.

use std::sync::Arc;

use http::Response;
use redis::{
    Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tower_rate_tier::{
    CircuitBreaker, Quota, RateTier, RedisStorage, TierIdentity, TierLimitLayer,
    storage::{Storage, memory::MemoryStorage},
    tier::RateTierBuilder,
};

use super::{Answer, BoxFuture, Connected, Local, Peer, Tables, USER, Window, Windows, limited, limited_thrice};

const REDIS: Peer = Peer {
    name: "tower-rate-tier x3",
    package: Some("tower-rate-tier"),
    algorithm: "GCRA",
    atomic: "no",
    fields: "X-RateLimit, one window",
    failure: "open",
    tables: Tables::All,
    connect: |url, windows| connect(url, windows, |storage| Arc::new(storage)),
};

pub(super) const PEERS: [Peer; 2] = [
    REDIS,
    Peer {
        name: "tower-rate-tier x3, breaker",
        failure: "local memory",
        tables: Tables::Outages,
        connect: |url, windows| {
            connect(url, windows, |storage| {
                Arc::new(CircuitBreaker::new(storage, MemoryStorage::new()))
            })
        },
        ..REDIS
    },
];

pub(super) const LOCALS: [Local; 1] = [Local {
    name: "tower-rate-tier",
    package: Some("tower-rate-tier"),
    fields: "X-RateLimit, one window",
    one: |window| limited(layer(window, builder(window)), answer),
    three: |windows| limited_thrice(windows.map(|window| layer(window, builder(window))), answer),
}];

fn connect(
    url: String,
    windows: Windows,
    storage: fn(RedisStorage<ConnectionManager>) -> Arc<dyn Storage>,
) -> BoxFuture<Connected> {
    Box::pin(async move {
        let connection = Client::open(url)?.get_connection_manager_lazy(ConnectionManagerConfig::new())?;
        let storage = storage(RedisStorage::new(connection));
        let layers = windows.map(|window| layer(window, builder(window).storage(Arc::clone(&storage))));
        Ok(limited_thrice(layers, answer))
    })
}

fn answer<B>(response: &Response<B>) -> Answer {
    // A request that failed open has no fields.
    Answer::of(response, || response.headers().contains_key("x-ratelimit-remaining"))
}

fn builder(window: Window) -> RateTierBuilder {
    RateTier::builder().tier(window.name, Quota::with_window(window.quota, window.length))
}

fn layer(window: Window, builder: RateTierBuilder) -> TierLimitLayer {
    TierLimitLayer::new(builder.build()).identifier_fn(move |headers| {
        let user = headers.get(USER)?.to_str().ok()?;
        Some(TierIdentity::new(user, window.name))
    })
}

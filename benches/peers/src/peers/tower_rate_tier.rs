//! `tower-rate-tier`: a layer for each window, all on one connection manager. Without its circuit breaker, which would
//! decide from memory whenever a call is late. Its fields cannot be turned off.

use std::sync::Arc;

use http::Response;
use redis::{Client, aio::ConnectionManagerConfig};
use tower_rate_tier::{Quota, RateTier, RedisStorage, TierIdentity, TierLimitLayer, storage::Storage};

use super::{Answer, BoxFuture, Connected, Peer, USER, Window, Windows, limited_thrice};

pub(super) const PEER: Peer = Peer {
    name: "tower-rate-tier x3",
    package: Some("tower-rate-tier"),
    algorithm: "GCRA",
    atomic: "no",
    fields: "X-RateLimit, one window",
    failure: "open",
    connect,
};

fn connect(url: String, windows: Windows) -> BoxFuture<Connected> {
    Box::pin(async move {
        let connection = Client::open(url)?.get_connection_manager_lazy(ConnectionManagerConfig::new())?;
        let storage: Arc<dyn Storage> = Arc::new(RedisStorage::new(connection));
        Ok(limited_thrice(windows.map(|window| layer(window, &storage)), answer))
    })
}

fn answer<B>(response: &Response<B>) -> Answer {
    // A request that failed open has no fields.
    Answer::of(response, || response.headers().contains_key("x-ratelimit-remaining"))
}

fn layer(window: Window, storage: &Arc<dyn Storage>) -> TierLimitLayer {
    let quota = Quota::with_window(window.quota, window.length);
    let builder = RateTier::builder()
        .tier(window.name, quota)
        .storage(Arc::clone(storage));
    TierLimitLayer::new(builder.build()).identifier_fn(move |headers| {
        let user = headers.get(USER)?.to_str().ok()?;
        Some(TierIdentity::new(user, window.name))
    })
}

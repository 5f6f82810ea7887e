//! A name that does not resolve, or whose server changes. The function that opens connections resolves names, so it
//! simulates a resolver.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use tower_quota::{
    Limiter, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, key,
    redis::{Client, ConnectionInfo},
};

/// A label of more than 63 letters is never valid, so no name server is queried.
pub fn nowhere() -> String {
    format!("{}.invalid", "a".repeat(64))
}

/// The name of the server at a port of this machine.
#[derive(Clone, Debug, Default)]
pub struct Name(Arc<AtomicU16>);

impl Name {
    pub fn of(port: u16) -> Self {
        let name = Self::default();
        name.now_means(port);
        name
    }

    pub fn now_means(&self, port: u16) {
        self.0.store(port, Ordering::SeqCst);
    }

    /// A store that connects to the current server of the name, or to a name that does not resolve if there is none.
    pub fn store(&self) -> RedisStore {
        let Self(port) = self.clone();
        let connect = move |_: ConnectionInfo| {
            let url = match port.load(Ordering::SeqCst) {
                0 => format!("redis://{}/", nowhere()),
                port => format!("redis://{}:{port}/", Ipv4Addr::LOCALHOST),
            };
            async move {
                let client = Client::open(url)?;
                client.get_multiplexed_async_connection().await
            }
        };
        RedisStore::builder("redis://limits.example/")
            .connect_with(connect)
            .build()
            .unwrap()
    }
}

/// A layer with a quota of five requests a day, which calls the store for each request.
pub fn five_a_day(store: RedisStore, deadline: Duration) -> RateLimitLayer {
    RateLimitLayerBuilder::from(Limiter::builder(store).rejection_cache(0).deadline(deadline))
        .scope("names")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("day", 5))
        .build()
        .unwrap()
}

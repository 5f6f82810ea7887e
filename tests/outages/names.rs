//! A name that does not resolve, and one that comes to mean another server: the function that opens connections resolves
//! names, so it stands in for a resolver.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use tokio::{task::block_in_place, time::sleep};
use tower_quota::{
    Outcome, QuotaPolicy, RateLimitLayer, RedisStore, key,
    redis::{Client, ConnectionInfo},
};

use super::{
    machine::Stopwatch,
    quota::{assert_limit_holds, outcome, until_decided},
    support::RedisServer,
};

/// A label of more than 63 letters is no name anywhere, and no server is asked for it.
fn nowhere() -> String {
    format!("{}.invalid", "a".repeat(64))
}

/// Connects to the port of the moment, or to a name that does not resolve while there is none.
fn layer(port: &Arc<AtomicU16>) -> RateLimitLayer {
    let port = Arc::clone(port);
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
    let store = RedisStore::builder("redis://limits.example/")
        .connect_with(connect)
        .build()
        .unwrap();
    RateLimitLayer::builder(store)
        .scope("names")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("day", 5))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_lets_requests_pass_and_limits_hold_once_it_does() {
    let server = block_in_place(RedisServer::start);
    let port = Arc::new(AtomicU16::new(0));
    let layer = layer(&port);
    for _ in 0..50 {
        assert_eq!(outcome(&layer, "before").await, Outcome::FailedOpen);
    }
    port.store(server.port(), Ordering::SeqCst);
    let healed = Stopwatch::start();
    until_decided(&layer, "someone").await;
    assert!(healed.elapsed() < Duration::from_secs(2), "{:?}", healed.elapsed());
    assert_limit_holds(&layer, "after", 5).await;
}

/// The name itself, as the store resolves it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_name_that_does_not_resolve_serves() {
    let layer = RateLimitLayer::builder(RedisStore::new(format!("redis://{}/", nowhere())).unwrap())
        .scope("names")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("day", 5))
        .build()
        .unwrap();
    for _ in 0..50 {
        assert_eq!(outcome(&layer, "someone").await, Outcome::FailedOpen);
    }
}

/// Connections that are open stay where they are; new ones follow the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_comes_to_mean_another_server_is_followed_when_connections_end() {
    let (old, new) = block_in_place(|| (RedisServer::start(), RedisServer::start()));
    let port = Arc::new(AtomicU16::new(old.port()));
    let layer = layer(&port);
    until_decided(&layer, "someone").await;
    port.store(new.port(), Ordering::SeqCst);
    assert_limit_holds(&layer, "still on the old one", 5).await;
    block_in_place(|| old.kill());
    let healed = Stopwatch::start();
    until_decided(&layer, "someone").await;
    assert!(healed.elapsed() < Duration::from_secs(2), "{:?}", healed.elapsed());
    sleep(Duration::from_millis(100)).await;
    assert_limit_holds(&layer, "on the new one", 5).await;
    let keys = block_in_place(|| new.command(&["DBSIZE"]));
    assert_ne!(keys, "0");
}

//! A name that does not resolve, and one that comes to mean another server.

use std::time::Duration;

use test_kit::{RedisServer, load::assert_limit_holds, load::outcome, load::until, load::until_decided};
use tokio::task::block_in_place;
use tower_quota::{Outcome, RateLimitLayer, RedisStore};

use super::resolver::{Name, five_a_day, nowhere};

/// Only calls that cannot be sent fail open here, not late answers on a busy machine.
fn layer(store: RedisStore) -> RateLimitLayer {
    five_a_day(store, Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_lets_requests_pass_and_limits_hold_once_it_does() {
    let server = block_in_place(RedisServer::start);
    let name = Name::default();
    let layer = layer(name.store());
    for _ in 0..50 {
        assert_eq!(outcome(&layer, "before").await, Outcome::FailedOpen);
    }
    name.now_means(server.port());
    until_decided(&layer, "someone").await;
    assert_limit_holds(&layer, "after", 5).await;
}

/// The name itself, as the store resolves it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_name_that_does_not_resolve_serves() {
    let layer = layer(RedisStore::new(format!("redis://{}/", nowhere())).unwrap());
    for _ in 0..50 {
        assert_eq!(outcome(&layer, "someone").await, Outcome::FailedOpen);
    }
}

/// Connections that are open stay where they are; new ones follow the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_comes_to_mean_another_server_is_followed_when_connections_end() {
    let (old, new) = block_in_place(|| (RedisServer::start(), RedisServer::start()));
    let name = Name::of(old.port());
    let layer = layer(name.store());
    until_decided(&layer, "someone").await;
    name.now_means(new.port());
    assert_limit_holds(&layer, "still on the old one", 5).await;
    block_in_place(|| old.kill());
    until_decided(&layer, "someone").await;
    // The end of a connection that the program has opened shows when it is used.
    until("both connections lead to the new one", || async {
        outcome(&layer, "someone").await;
        // The connection that runs this command is included.
        block_in_place(|| new.command(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count()) == 3
    })
    .await;
    assert_limit_holds(&layer, "on the new one", 5).await;
    let keys = block_in_place(|| new.command(&["KEYS", "quota:*"]));
    assert_eq!(keys.lines().count(), 2, "{keys}");
}

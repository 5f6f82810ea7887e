//! Two instances of an origin with one server, one cluster, or one primary that changes.

use std::time::Duration;

use futures_util::future::join_all;
use test_kit::{RedisServer, Sentinels, shared_cluster, shared_server};
use tower_quota::{FailureMode, RedisStore};

use crate::instances::{instance, new_key, status, tokens};

fn count(statuses: &[u16], wanted: u16) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

/// M30, M31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_equal_tokens_at_two_instances_on_one_redis_one_passes() {
    let (server, key) = (shared_server(), new_key());
    let layers = [0, 1].map(|_| instance(&key, RedisStore::new(server.url()).unwrap()).build().unwrap());
    let tokens = tokens(&layers[0], &key, 3).await;
    for token in &tokens {
        let statuses = join_all((0..50).map(|number| status(&layers[number % 2], token))).await;
        assert_eq!((count(&statuses, 200), count(&statuses, 429)), (1, 49), "{statuses:?}");
    }
}

/// The memory of a token in a server that has 100 MB for tokens.
#[tokio::test]
async fn a_spent_token_takes_at_most_120_bytes_of_redis_and_expires_after_two_windows() {
    let (server, key) = (RedisServer::start(), new_key());
    let layer = instance(&key, RedisStore::new(server.url()).unwrap()).build().unwrap();
    let tokens = tokens(&layer, &key, 20).await;
    for token in &tokens {
        assert_eq!(status(&layer, token).await, 200);
    }
    let names = server.command(&["KEYS", "*"]);
    let names: Vec<&str> = names.split_whitespace().collect();
    assert_eq!(names.len(), 20);
    let two_days = 2 * 86_400_000;
    for name in names {
        let bytes: u64 = server.command(&["MEMORY", "USAGE", name]).parse().unwrap();
        assert!(bytes <= 120, "{bytes}");
        let left: u64 = server.command(&["PTTL", name]).parse().unwrap();
        assert!((two_days - 60_000..=two_days).contains(&left), "{left}");
    }
}

/// Tags spread over the slots, so each node has some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_a_token_is_accepted_once_whichever_node_keeps_it() {
    let (cluster, key) = (shared_cluster(), new_key());
    let layers = [0, 1].map(|_| {
        instance(&key, RedisStore::cluster(cluster.urls()).unwrap())
            .build()
            .unwrap()
    });
    let tokens = tokens(&layers[0], &key, 24).await;
    for token in &tokens {
        let statuses = join_all([0, 1, 0, 1].map(|number| status(&layers[number], token))).await;
        assert_eq!(count(&statuses, 200), 1, "{statuses:?}");
    }
    for token in &tokens {
        let statuses = [status(&layers[0], token).await, status(&layers[1], token).await];
        assert_eq!(statuses, [429; 2]);
    }
}

/// A token that was spent at the primary is spent at the replica that takes over, as far as that has heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_a_token_stays_spent_when_the_primary_changes() {
    let (servers, key) = (Sentinels::start(), new_key());
    let store = || RedisStore::sentinel(servers.urls(), Sentinels::SERVICE).unwrap();
    // Closed: a request without a decision must not look accepted.
    let closed = |store| instance(&key, store).failure_mode(FailureMode::Closed).build().unwrap();
    let layers = [closed(store()), closed(store())];
    let tokens = tokens(&layers[0], &key, 2).await;
    assert_eq!(status(&layers[0], &tokens[0]).await, 200);

    let primary = servers.primary();
    let replicated = servers.servers[primary].command(&["WAIT", "1", "5000"]);
    assert_eq!(replicated, "1");
    servers.servers[primary].kill();
    servers.wait_for_primary(1 - primary);
    let answer = async |layer, token| loop {
        match status(layer, token).await {
            503 => tokio::task::yield_now().await,
            status => return status,
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), answer(&layers[1], &tokens[0])).await;
    assert_eq!(waited, Ok(429));
    assert_eq!(answer(&layers[1], &tokens[1]).await, 200);
    assert_eq!(answer(&layers[0], &tokens[1]).await, 429);
}

/// M38
#[tokio::test]
async fn when_redis_is_gone_an_instance_accepts_no_token_twice_and_shares_again_when_it_is_back() {
    let (server, key) = (RedisServer::start(), new_key());
    let layers = [0, 1].map(|_| {
        let layer = instance(&key, RedisStore::new(server.url()).unwrap());
        layer.deadline(Duration::from_millis(500)).build().unwrap()
    });
    let tokens = tokens(&layers[0], &key, 60).await;
    assert_eq!(status(&layers[0], &tokens[0]).await, 200);
    server.kill();
    let mut accepted = 0;
    for replay in 0..100 {
        match status(&layers[replay % 2], &tokens[1]).await {
            200 => accepted += 1,
            status => assert_eq!(status, 429),
        }
    }
    assert_eq!(accepted, 2);
    assert_eq!(status(&layers[0], &tokens[0]).await, 429);
    server.restart();
    // The circuit closes with one of the next requests; from then on, what one accepts the other rejects.
    let mut spent = tokens[2..].iter();
    loop {
        let token = spent.next().expect("the circuit closes within some tokens");
        let statuses = [status(&layers[0], token).await, status(&layers[1], token).await];
        if statuses == [200, 429] {
            break;
        }
        assert_eq!(statuses, [200, 200]);
        std::thread::sleep(Duration::from_millis(100));
    }
}

//! A primary, its replica and three sentinels: the store follows the primary through every failure and failover.
//!
//! Uses real servers and real time. Time limits only distinguish a hang from a wait; benchmarks measure durations.

#![allow(clippy::disallowed_methods, reason = "sentinels do not follow virtual time")]

use std::{
    io::{BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use test_kit::{
    Proxy, RedisServer, Sentinels, encode, eventually, load::Load, load::assert_limit_holds, load::outcome,
    load::until_decided, read_reply,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower_quota::{Limiter, Outcome, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, key};

use crate::{
    history::Lost,
    load::{Client, Observed},
};

fn layer(store: RedisStore) -> RateLimitLayer {
    let limiter = Limiter::builder(store)
        // These tests need every request to reach the store.
        .rejection_cache(0)
        // A machine that is busy with other things must not look like a primary that is lost.
        .deadline(Duration::from_millis(500));
    RateLimitLayerBuilder::from(limiter)
        .scope("sentinel")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("daily", 5))
        .build()
        .unwrap()
}

/// A layer whose ways to the sentinels count the connections.
async fn counted(sentinels: &Sentinels) -> (RateLimitLayer, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for sentinel in &sentinels.sentinels {
        proxies.push(Proxy::start(sentinel.port()).await);
    }
    let store = RedisStore::sentinel(proxies.iter().map(Proxy::url), Sentinels::SERVICE).unwrap();
    (layer(store), proxies)
}

fn users(prefix: &str) -> Vec<String> {
    (0..40).map(|number| format!("{prefix}{number}")).collect()
}

/// Everything that alice may use is used, and the replica knows it.
async fn use_up(layer: &RateLimitLayer, primary: &RedisServer) {
    until_decided(layer, "alice").await;
    while outcome(layer, "alice").await == Outcome::Allowed {}
    wait_for_replica(primary, "quota:replicated");
}

/// Waits until the replica has everything that the primary has acknowledged. `WAIT` only covers the writes of the same
/// connection, so this function writes a key first.
pub fn wait_for_replica(primary: &RedisServer, key: &str) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, primary.port())).unwrap();
    let commands: [&[&[u8]]; 2] = [&[b"SET", key.as_bytes(), b"1"], &[b"WAIT", b"1", b"5000"]];
    for command in commands {
        stream.write_all(&encode(command)).unwrap();
    }
    let (mut stream, mut replies) = (BufReader::new(stream), Vec::new());
    for _ in commands {
        read_reply(&mut stream, &mut replies).unwrap();
    }
    assert_eq!(replies, b"+OK\r\n:1\r\n");
}

/// Two instances whose requests are recorded.
fn observed(sentinels: &Sentinels) -> Observed {
    Observed::start(2, |instance, record| {
        let store = RedisStore::sentinel_builder(sentinels.urls(), Sentinels::SERVICE);
        Client::with_store(instance, store, record)
    })
}

/// The first server stops being the primary while requests continue.
async fn fail_over(sentinels: Sentinels, end: fn(&Sentinels)) -> (Sentinels, RateLimitLayer) {
    let (layer, proxies) = counted(&sentinels).await;
    use_up(&layer, &sentinels.servers[0]).await;
    let load = Load::start(&layer, &users("load"), 8);
    load.is_under_way().await;
    let observed = observed(&sentinels);
    observed.is_under_way().await;
    let before: Vec<usize> = proxies.iter().map(Proxy::connections).collect();
    let record = observed.record.clone();
    let sentinels = tokio::task::spawn_blocking(move || {
        let replicated_until = record.now();
        wait_for_replica(&sentinels.servers[0], "quota:replicated");
        record.fault_begins();
        let start = record.now();
        end(&sentinels);
        record.has_lost(Lost::Since(replicated_until), start, None);
        sentinels.wait_for_primary(1);
        sentinels
    })
    .await
    .unwrap();
    until_decided(&layer, "bob").await;
    observed.check().await;
    let tallies = load.stop().await;
    assert!(tallies.iter().any(|tally| tally.allowed > 0), "{tallies:?}");
    until_decided(&layer, "bob").await;
    assert_limit_holds(&layer, "carol", 5).await;
    assert_eq!(
        outcome(&layer, "alice").await,
        Outcome::Rejected,
        "what was replicated counts"
    );
    for (proxy, before) in proxies.iter().zip(before) {
        let tries = proxy.connections() - before;
        assert!(tries < 60, "{tries} connections to a sentinel");
    }
    let keys = sentinels.servers[1].command(&["DBSIZE"]);
    assert!(keys.trim_start_matches(':').parse::<usize>().unwrap() >= 3, "{keys}");
    (sentinels, layer)
}

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_killed_under_load_is_followed_by_its_replica_with_what_was_replicated() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    fail_over(sentinels, |sentinels| sentinels.servers[0].kill()).await;
}

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hangs_under_load_is_left_and_not_used_when_it_comes_back() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let (sentinels, layer) = fail_over(sentinels, |sentinels| sentinels.servers[0].pause()).await;
    let old = &sentinels.servers[0];
    old.resume();
    // The old primary still considers itself the primary.
    for round in 0..3 {
        assert_eq!(outcome(&layer, "alice").await, Outcome::Rejected);
        assert_limit_holds(&layer, &format!("back {round}"), 5).await;
    }
    old.command(&["REPLICAOF", "127.0.0.1", &sentinels.servers[1].port().to_string()]);
    for round in 3..6 {
        assert_limit_holds(&layer, &format!("back {round}"), 5).await;
    }
}

/// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_by_hand_under_load_is_followed() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let by_hand = |sentinels: &Sentinels| {
        let command = ["SENTINEL", "FAILOVER", Sentinels::SERVICE];
        assert_eq!(sentinels.sentinels[1].command(&command), "OK");
        // Until then, the test does not know which charges went to the old primary.
        eventually("the old primary is a replica", || {
            sentinels.servers[0].has_role("slave")
        });
    };
    let (_sentinels, layer) = fail_over(sentinels, by_hand).await;
    assert_limit_holds(&layer, "dave", 5).await;
}

/// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_store_made_while_nothing_runs_works_later_and_one_sentinel_that_answers_is_enough() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    for sentinel in &sentinels.sentinels {
        sentinel.kill();
    }
    let layer = layer(RedisStore::sentinel(sentinels.urls(), Sentinels::SERVICE).unwrap());
    for _ in 0..50 {
        assert_eq!(outcome(&layer, "early").await, Outcome::FailedOpen);
    }
    sentinels.sentinels[2].restart();
    until_decided(&layer, "early").await;
    assert_limit_holds(&layer, "late", 5).await;
    // An instance that is connected needs no sentinel.
    sentinels.sentinels[2].kill();
    assert_limit_holds(&layer, "later", 5).await;
}

/// Something that answers like a sentinel whose primary listens on this port.
async fn sentinel_of(port: u16, epoch: &str) -> String {
    let port = port.to_string();
    let address = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    sentinel_that_says(address, format!("*2\r\n$12\r\nconfig-epoch\r\n{epoch}\r\n")).await
}

/// A fake sentinel that returns these answers for any service name.
async fn sentinel_that_says(address: String, master: String) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (address, master) = (address.clone(), master.clone());
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    let mut reply = "+PONG\r\n".repeat(text.matches("PING\r\n").count());
                    if text.contains("GET-MASTER-ADDR-BY-NAME") {
                        reply.push_str(&address);
                    } else if text.contains("MASTER") {
                        reply.push_str(&master);
                    }
                    if stream.write_all(reply.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_a_stale_sentinel_calls_the_primary_is_not_used() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let stale = sentinel_of(sentinels.servers[1].port(), ":0").await;
    let alone = layer(RedisStore::sentinel([&stale], Sentinels::SERVICE).unwrap());
    for _ in 0..20 {
        assert_eq!(outcome(&alone, "alice").await, Outcome::FailedOpen);
    }
    let urls = std::iter::once(stale).chain(sentinels.urls());
    let among_others = layer(RedisStore::sentinel(urls, Sentinels::SERVICE).unwrap());
    until_decided(&among_others, "alice").await;
    assert_limit_holds(&among_others, "bob", 5).await;
}

/// Found by a run on a busy machine: an old primary that hung came back, called itself the primary still, and gave each
/// caller a second quota.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_call_themselves_primary_the_one_of_the_last_fail_over_is_used() {
    let start = || tokio::task::spawn_blocking(RedisServer::start);
    let (old, new) = (start().await.unwrap(), start().await.unwrap());
    let stale = sentinel_of(old.port(), ":4").await;
    let informed = sentinel_of(new.port(), ":5").await;
    for round in 0..10 {
        let mut urls = [&stale, &informed, &stale];
        urls.rotate_left(round % 3);
        let store = RedisStore::sentinel_builder(urls, Sentinels::SERVICE).connection_timeout(Duration::from_secs(10));
        let layer = layer(store.build().unwrap());
        until_decided(&layer, "alice").await;
        assert_limit_holds(&layer, &format!("user {round}"), 5).await;
    }
    assert_eq!(old.command(&["DBSIZE"]), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_talk_nonsense_or_know_nothing_lose_no_request_and_hide_no_others() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let mut urls = Vec::new();
    for nonsense in [
        "*-1\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*1\r\n$9\r\n127.0.0.1\r\n",
        "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n99999\r\n",
        "*2\r\n$9\r\n127.0.0.1\r\n$2\r\n-1\r\n",
        "*2\r\n$2\r\n\u{7f}!\r\n:6379\r\n",
        "*2\r\n$0\r\n\r\n$1\r\n0\r\n",
        ":7\r\n",
        "+OK\r\n",
        "-IDONTKNOW never heard of it\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let url = sentinel_that_says(nonsense.to_owned(), nonsense.to_owned()).await;
        let alone = layer(RedisStore::sentinel([&url], Sentinels::SERVICE).unwrap());
        for _ in 0..3 {
            assert_eq!(outcome(&alone, "alice").await, Outcome::FailedOpen, "{nonsense:?}");
        }
        urls.push(url);
    }
    urls.push(sentinels.urls().remove(0));
    let among_others = layer(RedisStore::sentinel(urls, Sentinels::SERVICE).unwrap());
    until_decided(&among_others, "alice").await;
    assert_limit_holds(&among_others, "bob", 5).await;
}

/// Two connections are open; what one of them meets is true of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_meets_the_old_primary_as_a_replica_is_repeated_on_the_new_one() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let layer = layer(RedisStore::sentinel(sentinels.urls(), Sentinels::SERVICE).unwrap());
    until_decided(&layer, "alice").await;
    let [old, new] = &sentinels.servers;
    // Without the sentinels, which would close the connections.
    for sentinel in &sentinels.sentinels[1..] {
        sentinel.kill();
    }
    new.command(&["REPLICAOF", "NO", "ONE"]);
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let (name, port) = (Sentinels::SERVICE, new.port().to_string());
    let sentinel = &sentinels.sentinels[0];
    sentinel.command(&["SENTINEL", "REMOVE", name]);
    assert_eq!(
        sentinel.command(&["SENTINEL", "MONITOR", name, "127.0.0.1", &port, "1"]),
        "OK"
    );
    for round in 0..3 {
        assert_limit_holds(&layer, &format!("user {round}"), 5).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_sentinels_users_with_the_documented_permissions_are_enough() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    if !sentinels.sentinels[0].has_users() {
        return;
    }
    sentinels.servers[0].set_documented_user(&["+role"]);
    let (_, rule) = include_str!("../../docs/PRODUCTION.md")
        .split_once("ACL SETUSER sentinels ")
        .unwrap();
    let rule: Vec<_> = rule.split("```").next().unwrap().split_whitespace().collect();
    for sentinel in &sentinels.sentinels {
        sentinel.set_user("limits", &rule);
    }
    let urls = sentinels.urls();
    let urls = urls
        .iter()
        .map(|url| url.replace("redis://", "redis://limits:password@"));
    let store = RedisStore::sentinel_builder(urls, Sentinels::SERVICE).primary_url("redis://limits:password@primary/");
    let layer = layer(store.build().unwrap());
    until_decided(&layer, "alice").await;
    assert_limit_holds(&layer, "bob", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_the_primary_have_passwords_of_their_own() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    // Redis has users since version 6, its sentinels since 6.2.
    if !sentinels.sentinels[0].has_users() {
        return;
    }
    sentinels.servers[0].set_user("limiter", &["on", ">other secret", "~quota:*", "+@all"]);
    sentinels.servers[0].command(&["FLUSHALL"]);
    for sentinel in &sentinels.sentinels {
        sentinel.set_user("asker", &["on", ">secret", "&*", "+@all"]);
        sentinel.set_user("default", &["resetpass", ">hidden"]);
    }
    let urls = |login: &str| -> Vec<String> {
        let login = format!("redis://{login}");
        sentinels
            .urls()
            .iter()
            .map(|url| url.replace("redis://", &login))
            .collect()
    };
    let build = |login: &str, primary: &str| {
        let store = RedisStore::sentinel_builder(urls(login), Sentinels::SERVICE).primary_url(primary);
        layer(store.build().unwrap())
    };
    let primary = "redis://limiter:other%20secret@primary/3";
    let right = build("asker:secret@", primary);
    until_decided(&right, "alice").await;
    assert_limit_holds(&right, "bob", 5).await;
    let keyspace = sentinels.servers[0].command(&["INFO", "keyspace"]);
    assert!(
        keyspace.contains("db3:keys=2") && !keyspace.contains("db0"),
        "{keyspace}"
    );
    // An instance whose user may not run `ROLE` still uses the server.
    sentinels.servers[0].set_user("roleless", &["on", ">secret", "~quota:*", "+@all", "-role"]);
    let roleless = build("asker:secret@", "redis://roleless:secret@primary/");
    until_decided(&roleless, "alice").await;
    assert_limit_holds(&roleless, "carol", 5).await;
    for wrong in [
        build("asker:wrong@", primary),
        build("", primary),
        build("asker:secret@", "redis://limiter:wrong@primary/3"),
    ] {
        assert_eq!(outcome(&wrong, "alice").await, Outcome::FailedOpen);
    }
}

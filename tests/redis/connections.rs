//! The ways in which a Redis store connects: settings, functions of the program, and proxies that shard.

#![allow(clippy::disallowed_methods, reason = "a real server does not follow virtual time")]

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use http::{Request, Response};
use test_kit::{
    Mode, Proxy, RedisServer, limits, limits_of, load::assert_limit_holds, load::outcome, load::until,
    load::until_decided, request, shared_cluster,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Limiter, Outcome, Plan, QuotaPolicy, RateLimitLayer, RedisStore, RedisStoreBuilder, Store, StoreErrorKind,
    redis::{
        AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, MultiplexedConnection, RedisConnectionManager,
        RedisError, Value, bb8, cmd, from_redis_value,
    },
};

use super::support::{commands, left_of, life, plan as plan_of, scripts, user};

fn layer(store: RedisStoreBuilder, scope: &str) -> RateLimitLayer {
    // These tests count store calls, so no rejection is cached.
    let limiter = Limiter::builder(store.build().unwrap()).rejection_cache(0);
    let builder = limits_of(limiter.deadline(Duration::from_secs(1))).scope(scope);
    builder.policy(QuotaPolicy::per_day("daily", 5)).build().unwrap()
}

/// With the password of the moment.
async fn log_in(to: ConnectionInfo, password: String) -> Result<MultiplexedConnection, RedisError> {
    let login = to.redis_settings().clone().set_password(password);
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(to.set_redis_settings(login))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// L8
#[tokio::test]
async fn a_token_that_changes_is_asked_for_at_every_new_connection() {
    let server = Arc::new(RedisServer::start());
    let tokens = Arc::new(AtomicUsize::new(0));
    let set_password = |server: &RedisServer, number: usize| {
        let password = format!("token {number}");
        server.command(&["CONFIG", "SET", "requirepass", &password]);
    };
    set_password(&server, 0);
    let count = Arc::clone(&tokens);
    let store = RedisStore::builder(server.url())
        .connect_with(move |to| log_in(to, format!("token {}", count.load(Ordering::SeqCst))));
    let layer = layer(store, "tokens");
    until_decided(&layer, "before").await;
    server.restart();
    tokens.store(1, Ordering::SeqCst);
    set_password(&server, 1);
    until_decided(&layer, "after").await;
    assert_limit_holds(&layer, "alice", 5).await;
}

/// A layer whose store logs in with the password of the moment, and counts the connections that it opens.
fn rotating(server: &RedisServer, password: &Arc<Mutex<&'static str>>, opened: &Arc<AtomicUsize>) -> RateLimitLayer {
    let (password, opened) = (Arc::clone(password), Arc::clone(opened));
    let store = RedisStore::builder(server.url())
        .connection_timeout(Duration::from_secs(30))
        .connection_info_with(move |to| {
            opened.fetch_add(1, Ordering::SeqCst);
            let login = to.redis_settings().clone().set_username("limits");
            ready(Ok(to.set_redis_settings(login.set_password(*password.lock().unwrap()))))
        });
    // Nothing is refilled while the test runs.
    let slow = QuotaPolicy::new("slow", 1_000_000, Duration::from_secs(1_000_000_000));
    limits(store.build().unwrap()).policy(slow).build().unwrap()
}

/// Between two batches no call is in flight, so that none is lost with the connections that the server closes.
#[tokio::test]
async fn ten_thousand_decisions_are_made_while_the_password_changes_and_connections_are_closed() {
    const BATCHES: usize = 500;
    const BATCH: usize = 20;
    let server = RedisServer::start();
    let set_user = |rules: &[&str]| {
        let command = [&["ACL", "SETUSER", "limits"], rules].concat();
        assert_eq!(server.command(&command), "OK");
    };
    set_user(&["on", ">first", "~*", "+@all"]);
    let (password, opened) = (Arc::new(Mutex::new("first")), Arc::new(AtomicUsize::new(0)));
    let layer = rotating(&server, &password, &opened);
    let mut undecided = 0;
    for batch in 0..BATCHES {
        match batch {
            100 => set_user(&[">second"]),
            200 => *password.lock().unwrap() = "second",
            300 => set_user(&["<first"]),
            400 => {
                let before = opened.load(Ordering::SeqCst);
                assert_eq!(server.command(&["CLIENT", "KILL", "USER", "limits"]), "2");
                while opened.load(Ordering::SeqCst) < before + 2 {
                    yield_now().await;
                }
            }
            _ => {}
        }
        let outcomes = join_all((0..BATCH).map(|_| outcome(&layer, "alice"))).await;
        undecided += outcomes.iter().filter(|outcome| **outcome != Outcome::Allowed).count();
    }
    assert_eq!(undecided, 0);
    assert_eq!(left_of(&layer, "alice").await, [1_000_000 - (BATCHES * BATCH) as u64]);

    *password.lock().unwrap() = "first";
    server.command(&["CLIENT", "KILL", "USER", "limits"]);
    until("the old password opens no connection", || async {
        outcome(&layer, "alice").await == Outcome::FailedOpen
    })
    .await;
}

#[tokio::test]
async fn a_cluster_says_to_which_node_each_connection_has_to_lead() {
    let cluster = shared_cluster();
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&addresses);
    let store = RedisStore::cluster_builder([cluster.nodes[2].url()]).connect_with(move |to| {
        seen.lock().unwrap().push(to.addr().to_string());
        async move { Client::open(to)?.get_multiplexed_async_connection().await }
    });
    let layer = layer(store, "nodes");
    for user in 0..30 {
        until_decided(&layer, &user.to_string()).await;
    }
    let addresses = addresses.lock().unwrap();
    for node in &cluster.nodes {
        let address = format!("127.0.0.1:{}", node.port());
        assert!(addresses.contains(&address), "{address}: {addresses:?}");
    }
}

/// The mistakes that a function of the program may make.
#[tokio::test]
async fn a_function_that_fails_panics_or_hangs_loses_no_request_and_is_called_again() {
    let server = RedisServer::start();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let store = RedisStore::builder(server.url())
        .connections(1)
        .connection_timeout(Duration::from_millis(100))
        .connect_with(move |to| {
            let call = count.fetch_add(1, Ordering::SeqCst);
            async move {
                match call {
                    0 => Err((ErrorKind::Client, "no token").into()),
                    1 => panic!("on purpose"),
                    2 => std::future::pending().await,
                    _ => Client::open(to)?.get_multiplexed_async_connection().await,
                }
            }
        });
    let layer = layer(store, "wrong");
    assert_eq!(outcome(&layer, "alice").await, Outcome::FailedOpen);
    until_decided(&layer, "alice").await;
    assert_limit_holds(&layer, "bob", 5).await;
    assert!(calls.load(Ordering::SeqCst) >= 4);
}

/// Found where replies were lost for 50 ms: the attempt that lost one waited for the whole timeout, and no other began.
#[tokio::test]
async fn a_connection_whose_first_reply_is_lost_does_not_cost_the_whole_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set_mode(Mode::Swallow);
    let store = RedisStore::builder(proxy.url()).connections(1);
    let store = store.connection_timeout(Duration::from_secs(1)).build().unwrap();
    let decided = tokio::spawn(async move { store.decide(plan(&["a"])).await });
    while proxy.connections() < 2 && !decided.is_finished() {
        yield_now().await;
    }
    proxy.set_mode(Mode::Forward);
    assert_eq!(decided.await.unwrap().unwrap().outcome(), Outcome::Allowed);
}

/// L8
#[tokio::test]
async fn a_store_takes_another_connection_of_a_pool_when_it_loses_one_and_none_for_a_decision() {
    let server = RedisServer::start();
    let manager = RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(2).build(manager).await.unwrap();
    // The program keeps one of both.
    let _kept = pool.get().await.unwrap();
    let layer = layer(RedisStore::from_pool(pool.clone()), "pooled");
    until_decided(&layer, "before").await;
    let gets = || pool.state().statistics.get_direct + pool.state().statistics.get_waited;
    let before = gets();
    assert_limit_holds(&layer, "alice", 5).await;
    assert_eq!(gets(), before);
    server.restart();
    until_decided(&layer, "after").await;
    assert_limit_holds(&layer, "bob", 5).await;
    assert!(gets() > before);
}

#[tokio::test]
async fn an_exhausted_pool_is_named_in_the_error_of_the_store() {
    let server = RedisServer::start();
    let manager = RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder()
        .max_size(1)
        .connection_timeout(Duration::from_millis(20));
    let pool = pool.build(manager).await.unwrap();
    let _kept = pool.get().await.unwrap();
    let store = RedisStore::from_pool(pool.clone()).build().unwrap();
    let error = store.decide(plan(&["a"])).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("no free connection in the pool"), "{error}");
}

#[tokio::test]
async fn why_a_function_has_failed_is_in_the_error_of_the_store() {
    let fail = |_| async { Err((ErrorKind::Client, "the token service is away").into()) };
    let store = RedisStore::builder("redis://127.0.0.1/").connect_with(fail);
    let error = store.build().unwrap().decide(plan(&["a"])).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("the token service is away"), "{error}");
}

fn plan(partitions: &[&'static str]) -> Plan {
    let one = |name: &&'static str| plan_of([QuotaPolicy::per_day(name, 5)], user("slots", name), 1);
    partitions.iter().map(one).reduce(Plan::join).unwrap()
}

/// The last command of each connection becomes a script call.
#[tokio::test]
async fn decisions_use_the_open_connections_in_turn() {
    const COUNT: usize = 4;
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).connections(COUNT as u32);
    let store = store.build().unwrap();
    let used = || {
        let clients = server.command(&["CLIENT", "LIST"]);
        clients.lines().filter(|client| client.contains("cmd=evalsha")).count()
    };
    // The connections are opened meanwhile.
    for _ in 0..100 {
        for _ in 0..100 {
            let _ = store.acquire(plan(&["alice"])).await.unwrap();
        }
        if used() == COUNT {
            return;
        }
    }
    panic!("{} of {COUNT} connections are used", used());
}

/// L13, L22, L24, L35: all windows of a caller are one value under one key, and a decision is one call of the script,
/// with the script itself where the server does not know it. A request sends nothing else.
#[tokio::test]
async fn a_decision_about_three_windows_is_one_call_of_the_script_and_nothing_else() {
    let server = RedisServer::start();
    let layer = limits(RedisStore::new(server.url()).unwrap())
        .policy(QuotaPolicy::per_second("second", 1_000))
        .policy(QuotaPolicy::per_minute("minute", 10_000))
        .policy(QuotaPolicy::per_day("day", 100_000))
        .build()
        .unwrap();
    assert_eq!(outcome(&layer, "alice").await, Outcome::Allowed);
    let keys = server.command(&["KEYS", "*"]);
    assert!(keys.starts_with("quota:") && keys.lines().count() == 1, "{keys}");
    assert!(life(&server, &keys) > 0, "it expires by itself");

    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..20 {
        assert_eq!(outcome(&layer, "alice").await, Outcome::Allowed);
    }
    let ran = commands(&server);
    assert_eq!(ran["evalsha"], 20);
    // The script reads the time and the value, and writes the value. The rest are this test's own.
    let mut names: Vec<&str> = ran.keys().map(String::as_str).collect();
    // Before version 7, Redis counts all kinds of `CONFIG` together.
    names.retain(|name| !["info", "config", "config|resetstat"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["evalsha", "get", "set", "time"], "{ran:?}");

    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(outcome(&layer, "alice").await, Outcome::Allowed);
    let ran = commands(&server);
    assert_eq!((ran["evalsha"], ran["eval"]), (21, 1));
}

/// An inner rejection settles nothing, and exhausts the outer limit, whose rejections are cached.
#[tokio::test]
async fn two_thousand_requests_that_an_inner_layer_rejects_are_calls_of_the_script_until_the_outer_one_is_exhausted() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let [addresses, users] = [("addresses", 10), ("users", 2)].map(|(scope, quota)| {
        let builder = limits(store.clone()).scope(scope);
        builder.policy(QuotaPolicy::per_day(scope, quota)).build().unwrap()
    });
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let service = addresses.layer(users.layer(service_fn(move |_: Request<String>| {
        count.fetch_add(1, Ordering::SeqCst);
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    })));
    let (started, before) = (Instant::now(), scripts(&server));
    for _ in 0..2_000 {
        service.clone().oneshot(request("alice")).await.unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 2);
    let (calls, seconds) = (scripts(&server) - before, started.elapsed().as_secs() as usize + 1);
    // The ten requests that the address limit admits also make calls about the user.
    assert!(calls <= 10 + 10 + 2 * seconds, "{calls} calls in {seconds} s");
    assert_eq!(left_of(&addresses, "alice").await, [0]);
}

#[tokio::test]
async fn one_slot_per_call_asks_each_partition_in_a_call_of_its_own() {
    for (one_slot_per_call, expected) in [(false, 1), (true, 3)] {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url()).one_slot_per_call(one_slot_per_call);
        let store = store.build().unwrap();
        // The first finds out that the server does not know the script.
        store.decide(plan(&["warm"])).await.unwrap();
        let before = scripts(&server);
        let decision = store.decide(plan(&["a", "b", "c"])).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Allowed);
        assert_eq!(scripts(&server) - before, expected);
        let keys = server.command(&["KEYS", "quota:*"]);
        assert_eq!(keys.lines().count(), 4);
    }
}

#[test]
fn mistakes_are_found_by_build_and_named() {
    let (server, socket) = ("redis://127.0.0.1/", "redis+unix:///run/redis");
    let cluster = |urls: &[&str]| RedisStore::cluster_builder(urls);
    let sentinel = |urls: &[&str], service: &str| RedisStore::sentinel_builder(urls, service);
    let other = "redis://:secret@127.0.0.1/";
    let number = |of: &str, number: u32| format!("number of URLs of {of}: {number} is outside 1..=64");
    let differ = "the URLs of a cluster must have the same user, password and TLS setting";
    let primary = "primary_url requires sentinels";
    let cases: [(RedisStoreBuilder, &str); 9] = [
        (cluster(&[]), &number("nodes of a cluster", 0)),
        (cluster(&[server; 65]), &number("nodes of a cluster", 65)),
        (sentinel(&[], "limits"), &number("sentinels", 0)),
        (
            cluster(&["redis://127.0.0.1/3"]),
            "database 3 is not supported in a cluster",
        ),
        (cluster(&[server, other]), differ),
        (cluster(&[socket]), "nodes of a cluster cannot be Unix sockets"),
        (sentinel(&[server], ""), "the sentinels' service name is empty"),
        (RedisStore::builder(server).primary_url(server), primary),
        (cluster(&[server]).primary_url(server), primary),
    ];
    for (builder, message) in cases {
        let error = builder.build().unwrap_err();
        assert_eq!(error.to_string(), format!("redis store: {message}"));
    }
    let wrong = sentinel(&[server], "limits").primary_url("http://:secret@127.0.0.1/");
    let error = wrong.build().unwrap_err().to_string();
    assert!(error.contains(r#""http://…@127.0.0.1/": must start"#), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_command_of_the_program_goes_over_the_connections_of_the_store() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).connections(1);
    let store = store.key_prefix("own:").build().unwrap();
    assert_eq!(store.key_prefix(), "own:");
    for _ in 0..2 {
        store.command("settings", cmd("TIME")).await.unwrap();
    }
    assert_eq!(proxy.connections(), 1);
    let error = store.command("settings", cmd("NOSUCHCOMMAND")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Failed);
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<RedisError>().unwrap().code(), Some("ERR"));
}

#[tokio::test]
async fn in_a_cluster_a_command_of_the_program_goes_to_the_node_of_its_key() {
    let cluster = shared_cluster();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    for number in 0..20 {
        let key = format!("setting {number}");
        let (mut set, mut get) = (cmd("SET"), cmd("GET"));
        set.arg(&key).arg(number).arg("EX").arg(60);
        get.arg(&key);
        store.command(&key, set).await.unwrap();
        let found: u64 = from_redis_value(store.command(&key, get).await.unwrap()).unwrap();
        assert_eq!(found, number);
    }
}

/// Commands run in a script, which carries their number.
async fn commands_reply_as_elsewhere(store: RedisStoreBuilder) {
    let store = store.build().unwrap();
    let run = async |words: &[&str]| store.command("{c}", cmd(words[0]).arg(&words[1..]).clone()).await;
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    run(&["DEL", "{c}"]).await.unwrap();
    for (words, reply) in [
        (&["GET", "{c}"][..], Value::Nil),
        (&["SET", "{c}", "1"], Value::Okay),
        (&["INCRBY", "{c}", "-3"], Value::Int(-2)),
        (&["MGET", "{c}", "{c}2"], Value::Array(vec![text("-2"), Value::Nil])),
        (&["DEL", "{c}"], Value::Int(1)),
        (&["RPUSH", "{c}", "a", ""], Value::Int(2)),
        (&["LRANGE", "{c}", "0", "-1"], Value::Array(vec![text("a"), text("")])),
    ] {
        assert_eq!(run(words).await.unwrap(), reply, "{words:?}");
    }
    let error = run(&["GET", "{c}"]).await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    for (script, reply) in [
        ("local a = 1", Value::Nil),
        (
            "return {ok = KEYS[1] .. #ARGV} -- end",
            Value::SimpleString("{c}1".to_owned()),
        ),
        ("return redis.call('LLEN', KEYS[1]), 7", Value::Int(2)),
    ] {
        let words = ["EVAL", script, "1", "{c}", "word"];
        assert_eq!(run(&words).await.unwrap(), reply, "{script}");
    }
    let wrong_type = ["EVAL", "return redis.call('GET', KEYS[1])", "1", "{c}"];
    assert!(run(&wrong_type).await.is_err());
}

#[tokio::test]
async fn a_command_has_the_reply_that_it_has_elsewhere() {
    let server = RedisServer::start();
    commands_reply_as_elsewhere(RedisStore::builder(server.url())).await;
    commands_reply_as_elsewhere(RedisStore::builder(server.url()).one_slot_per_call(true)).await;
    commands_reply_as_elsewhere(RedisStore::cluster_builder(shared_cluster().urls())).await;
}

#[tokio::test]
async fn a_user_who_may_only_read_a_key_can_read_it() {
    let server = RedisServer::start();
    // Before Redis 7, no user can have the permission only to read.
    if !server.has_users() || !server.command(&["COMMAND", "INFO", "FCALL"]).contains("fcall") {
        return;
    }
    server.set_user("reader", &["on", ">password", "%R~c*", "+eval", "+get"]);
    let url = format!("redis://reader:password@127.0.0.1:{}/", server.port());
    let store = RedisStore::new(url).unwrap();
    let get = async |key: &str| store.command(key, cmd("GET").arg(key).clone()).await;
    assert_eq!(get("c").await.unwrap(), Value::Nil);
    let error = get("other").await.unwrap_err();
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<RedisError>());
    assert_eq!(source.and_then(RedisError::code), Some("NOPERM"), "{error}");
}

/// Twemproxy closes the connection on `CLIENT SETINFO`.
#[tokio::test]
async fn a_connection_reports_its_login_and_database_but_not_the_name_of_the_library() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let connections = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let number = connections.lock().unwrap().len();
            connections.lock().unwrap().push(String::new());
            let connections = Arc::clone(&connections);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = connection.read(&mut bytes).await {
                    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    connections.lock().unwrap()[number] += &text;
                    if text.contains("SETINFO") {
                        return;
                    }
                    // Each command is an array.
                    let commands = text.lines().filter(|line| line.starts_with('*')).count();
                    connection
                        .write_all("+OK\r\n".repeat(commands).as_bytes())
                        .await
                        .unwrap();
                }
            });
        }
    });
    let store = RedisStore::builder(format!("redis://limits:password@{address}/2")).connections(1);
    let store = store.build().unwrap();
    // `OK` is no reply to a script.
    let error = store.decide(plan(&["a"])).await.unwrap_err();
    assert!(!error.to_string().contains("broken pipe"), "{error}");
    let received = received.lock().unwrap();
    let last = received.last().unwrap();
    for part in ["AUTH", "limits", "password", "SELECT", "EVALSHA"] {
        assert!(last.contains(part), "{part}: {received:?}");
    }
    assert!(!received.iter().any(|text| text.contains("SETINFO")), "{received:?}");
}

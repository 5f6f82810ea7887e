//! Faults of connections by the network and a busy process: they end while they are idle, lose bytes of their replies,
//! and are read late.

#![allow(clippy::disallowed_methods, reason = "a real server does not follow virtual time")]

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use test_kit::{Mode, Proxy, RedisCluster, RedisServer, ScriptCall, ScriptedServer, Sentinels, bulk, load::outcome};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::watch,
    time::{sleep, timeout},
};
use tower_quota::{
    Decision, Limiter, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayerBuilder, RedisStore, Scope,
    Settlement, Store, StoreError, StoreErrorKind, key,
    redis::{AsyncConnectionConfig, Client},
};

use super::{callers::LEASE_TIME, harness::eventually};

/// Longer than anything here can take unless it hangs.
const HANG: Duration = Duration::from_secs(20);

/// A script's time in a reply.
const NOW: f64 = 1_700_000_000_000_000.0;
/// The reply of the script about one bucket: the time, by how much the partition's is ahead, its birth, and what was used.
const UNUSED: [f64; 4] = [NOW, 0.0, 1.0, 0.0];

fn plan(quota: u64, user: &str) -> Plan {
    let policies = PolicySet::new([QuotaPolicy::per_day("daily", quota)]).unwrap();
    Plan::new(
        policies,
        Scope::new("network").partition(&PartitionKey::new("user", user)),
        1,
    )
}

async fn acquire(store: &RedisStore, quota: u64, user: &str) -> Result<Decision, StoreError> {
    timeout(HANG, store.decide(plan(quota, user))).await.expect("it ends")
}

/// The number of client connections of a server, except the connection that runs this command.
fn clients(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
}

/// Makes decisions until each connection of the store has carried one, because a connection that the server lists may
/// still be opening.
async fn use_all(store: &RedisStore, server: &RedisServer, connections: usize) {
    eventually("every connection has carried a call", async || {
        let _ = acquire(store, 1_000_000, "opening").await;
        let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
        let used = list.lines().filter(|line| line.contains("cmd=eval")).count();
        (list.lines().count() - 1, used) == (connections, connections)
    })
    .await;
}

/// Sends a request now and then, each of which is counted.
async fn a_quiet_service_counts_all_of_its_requests(store: &RedisStore) {
    for number in 0..12 {
        let decision = acquire(store, 100, "quiet").await;
        assert!(decision.is_ok(), "request {number}: {decision:?}");
        sleep(Duration::from_millis(350)).await;
    }
    let left = store.peek(plan(100, "quiet")).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 88);
}

#[tokio::test]
async fn a_quiet_service_counts_all_of_its_requests_also_in_a_cluster_and_with_sentinels() {
    let (cluster, sentinels) = tokio::task::spawn_blocking(|| (RedisCluster::start(3, 0), Sentinels::start()))
        .await
        .unwrap();
    for server in cluster.nodes.iter().chain(&sentinels.servers) {
        server.command(&["CONFIG", "SET", "timeout", "1"]);
    }
    let of_cluster = RedisStore::cluster_builder([cluster.nodes[0].url()])
        .connections(4)
        .build()
        .unwrap();
    let of_sentinels = RedisStore::sentinel_builder(sentinels.urls(), Sentinels::SERVICE)
        .connections(4)
        .build()
        .unwrap();
    tokio::join!(
        a_quiet_service_counts_all_of_its_requests(&of_cluster),
        a_quiet_service_counts_all_of_its_requests(&of_sentinels),
    );
}

#[tokio::test]
async fn connections_that_are_killed_between_requests_lose_none_and_are_replaced_without_one() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).connections(3).build().unwrap();
    for number in 0..20 {
        use_all(&store, &server, 3).await;
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        if number % 2 == 0 {
            // The request comes before the runtime has had the time to look at its sockets.
            std::thread::sleep(Duration::from_millis(10));
        } else {
            sleep(Duration::from_millis(10)).await;
        }
        let decision = acquire(&store, 100, "killed").await;
        assert!(decision.is_ok(), "request {number}: {decision:?}");
    }
    let left = store.peek(plan(100, "killed")).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 80);
    eventually("all are open again", async || clients(&server) == 3).await;
}

#[tokio::test]
async fn while_a_server_rejects_connections_they_are_tried_a_few_times_a_second_and_then_opened_without_a_request() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::new(proxy.url()).unwrap();
    acquire(&store, 100, "first").await.unwrap();
    proxy.set_mode(Mode::Reject);
    let (before, rejecting) = (proxy.connections(), Instant::now());
    proxy.cut().await;
    eventually("some were tried", async || proxy.connections() >= before + 5).await;
    let tries = proxy.connections() - before;
    // The pauses between them are the longer, the busier the machine is.
    let periods = 1.0 + rejecting.elapsed().as_secs_f64() / 1.5;
    assert!(tries as f64 <= 16.0 * periods, "{tries} tries in {periods:.1} periods");
    proxy.set_mode(Mode::Forward);
    eventually("both are open again", async || clients(&server) == 2).await;
    drop(store);
    eventually("none is left", async || clients(&server) == 0).await;
    let afterwards = proxy.connections();
    sleep(Duration::from_millis(300)).await;
    assert_eq!(
        proxy.connections(),
        afterwards,
        "somebody still works for a store that is gone"
    );
}

/// Replies to the first bytes of each connection and closes it, as Redis does with more clients than `maxclients`.
#[tokio::test]
async fn a_server_that_replies_and_closes_each_connection_gets_a_few_of_them_and_its_reason_is_in_the_error() {
    for (reply, reason) in [
        ("-ERR max number of clients reached\r\n", "max number of clients"),
        ("-DENIED Redis is running in protected mode\r\n", "protected mode"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "Parse error"),
        ("+PONG\r\n", ""),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = stream.read(&mut [0; 1_024]).await;
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        });
        let store = RedisStore::new(url).unwrap();
        let error = acquire(&store, 100, "closed").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        // Those of the request, and of the task that opens them without requests.
        let accepted = accepted.load(Ordering::Relaxed);
        assert!(accepted <= 40, "{accepted} connections after {reply:?}");
        server.abort();
    }
}

/// Each attempt takes longer than a request waits for it: until the program has a password, and then for the server.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_in_vain_for_slow_attempts_do_not_start_others_each() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let store = RedisStore::builder("redis://127.0.0.1:1/").connection_timeout(TIMEOUT);
    let store = store.connect_with(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        pending()
    });
    let password = |to| async {
        sleep(TIMEOUT * 9 / 10).await;
        Ok(to)
    };
    let store = store.connection_info_with(password).build().unwrap();
    let begun = tokio::time::Instant::now();
    let requests = (0..100).map(async |number| {
        sleep(TIMEOUT / 100 * number).await;
        while begun.elapsed() < 5 * TIMEOUT {
            store.decide(plan(100, "slow")).await.unwrap_err();
        }
    });
    join_all(requests).await;
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(attempts <= 2 * 6, "{attempts} attempts in 5 timeouts");
}

/// Connections end while nothing of the process runs, so that only a call finds out, before any of it is written.
struct StandStill {
    /// Of the server and the way to it.
    outside: Runtime,
    inside: Runtime,
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
}

impl StandStill {
    fn new() -> Self {
        let server = RedisServer::start();
        let outside = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let inside = Builder::new_current_thread().enable_all().build().unwrap();
        let proxy = outside.block_on(Proxy::start(server.port()));
        let store = RedisStore::builder(proxy.url()).connections(1);
        Self {
            store: store.connection_timeout(HANG).build().unwrap(),
            outside,
            inside,
            server,
            proxy,
        }
    }

    /// Ends all connections. A call within a millisecond of the one before it would not look for that.
    fn cut(&self) {
        self.outside.block_on(async {
            self.proxy.cut().await;
            sleep(Duration::from_millis(5)).await;
        });
    }

    fn decide(&self) -> Result<Decision, StoreError> {
        self.inside.block_on(acquire(&self.store, 100, "still"))
    }
}

#[test]
fn a_call_of_which_nothing_was_written_is_sent_although_the_next_connection_ends_while_it_opens() {
    let still = StandStill::new();
    for round in 0..10 {
        let decision = still.decide();
        assert!(decision.is_ok(), "round {round}: {decision:?}");
        still.proxy.reject_next(1);
        still.cut();
    }
    let before = still.proxy.connections();
    let decision = still.decide();
    assert_eq!(decision.unwrap().allowances().next().unwrap().remaining(), 89);
    assert!(still.proxy.connections() >= before + 2, "one was rejected");
}

/// The end of the previous connection does not reveal the state of the server.
#[test]
fn a_call_for_which_no_other_connection_could_be_opened_says_why() {
    let still = StandStill::new();
    let store = RedisStore::builder(still.server.url()).connections(1).build().unwrap();
    let decide = || still.inside.block_on(acquire(&store, 100, "refused"));
    decide().unwrap();
    still.server.kill();
    let error = decide().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("refused"), "{error}");
}

/// The task that has read and written them is gone with its runtime.
#[test]
fn a_store_works_in_one_runtime_after_the_other() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    for _ in 0..3 {
        let runtime = runtime();
        for _ in 0..3 {
            runtime.block_on(acquire(&store, 100, "runtimes")).unwrap();
        }
    }
}

/// Nothing of a call may have been written when it is sent again.
#[tokio::test]
async fn a_call_that_was_written_is_not_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).connections(1).build().unwrap();
    acquire(&store, 100, "written").await.unwrap();
    for _ in 0..10 {
        // The call arrives, and its reply is lost with the connection.
        proxy.set_mode(Mode::CutAfter(0));
        let error = acquire(&store, 100, "written").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        proxy.set_mode(Mode::Forward);
        acquire(&store, 100, "written").await.unwrap();
    }
    let left = store.peek(plan(100, "written")).await.unwrap();
    assert_eq!(left.allowances().next().unwrap().remaining(), 100 - 21);
}

/// The reply of another call of the same caller looks exactly like the right one, but for the number.
#[tokio::test]
async fn a_reply_that_is_not_that_of_its_call_is_nobodys_decision_and_ends_the_connection() {
    type Answer = fn(ScriptCall) -> Vec<u8>;
    let wrong: [(&str, Answer); 8] = [
        ("another's from the first byte on", |mut call| {
            call.number[0] ^= 1;
            call.reply(&UNUSED)
        }),
        ("another's up to the last byte", |mut call| {
            call.number[7] ^= 1;
            call.reply(&UNUSED)
        }),
        ("with a rest", |call| call.reply(&[NOW, 0.0, 1.0, 0.0, 0.0])),
        ("with bytes missing", |call| call.reply(&UNUSED[..3])),
        ("without a number", |_| bulk(&[0; 16])),
        ("too short for a number", |_| bulk(b"1234567")),
        ("nothing", |_| b"$-1\r\n".to_vec()),
        ("of another kind", |_| b":1\r\n".to_vec()),
    ];
    for (what, answer) in wrong {
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let server = ScriptedServer::start(move |call| {
            if call.place == 0 {
                count.fetch_add(1, Ordering::SeqCst);
            }
            if count.load(Ordering::SeqCst) > 2 {
                call.reply(&UNUSED)
            } else {
                answer(call)
            }
        })
        .await;
        let store = RedisStore::builder(server.url()).connections(1).build().unwrap();
        for _ in 0..2 {
            let error = acquire(&store, 5, "alice").await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{what}: {error}");
        }
        let decision = acquire(&store, 5, "alice").await;
        assert_eq!(decision.unwrap().outcome(), Outcome::Allowed, "{what}");
        assert_eq!(connections.load(Ordering::SeqCst), 3, "{what}");
    }
}

/// A settlement, a release and a reset, too.
#[tokio::test]
async fn a_settlement_whose_reply_is_anothers_has_failed() {
    let server = ScriptedServer::start(|mut call| {
        call.number[0] ^= u8::from(call.place == 1);
        call.reply(&UNUSED)
    })
    .await;
    let store = RedisStore::builder(server.url()).connections(1).build().unwrap();
    let decision = acquire(&store, 5, "alice").await.unwrap();
    let error = store.settle(Settlement::refund_all(&decision)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    // All other commands are answered with OK.
    let error = store.reset(plan(5, "alice")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}

/// Replies of different callers are lost for a while, at any position, while many are in flight on few connections.
#[tokio::test(flavor = "multi_thread")]
async fn after_bytes_of_replies_are_lost_everybody_gets_decisions_of_its_own() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    // Each decision is a separate call, and many are in flight on the connection.
    let store = RedisStore::builder(proxy.url())
        .connections(1)
        .decisions_per_call(1)
        .build()
        .unwrap();
    let mut admitted = 0;
    let mut lost = 0;
    for lost_bytes in 1..120 {
        proxy.lose_replies(lost_bytes);
        let ask = |user: String, quota| {
            let store = &store;
            async move {
                let asked = timeout(Duration::from_millis(200), store.decide(plan(quota, &user))).await;
                asked.ok().and_then(Result::ok)
            }
        };
        let hot = (0..20).map(|_| ask("hot".to_owned(), 200));
        let idle = (0..20).map(|number| ask(format!("idle {lost_bytes} {number}"), 7));
        let (hot, idle) = tokio::join!(join_all(hot), join_all(idle));
        for decision in hot {
            match decision.map(|decision| decision.outcome()) {
                Some(Outcome::Allowed) => admitted += 1,
                Some(_) => {}
                None => lost += 1,
            }
        }
        for decision in idle.into_iter().flatten() {
            assert_eq!(decision.outcome(), Outcome::Allowed, "somebody else is exhausted");
            assert_eq!(decision.allowances().next().unwrap().remaining(), 6);
        }
    }
    assert!(admitted <= 200, "{admitted}");
    assert!(lost > 0, "nothing was lost");
    proxy.lose_replies(0);
    eventually("it heals", async || {
        let decisions = join_all((0..40).map(|_| acquire(&store, 200, "hot"))).await;
        decisions.iter().all(Result::is_ok)
    })
    .await;
}

/// Two tasks wait for a connection to send one release. The second one sends the next release instead, and must not
/// overtake the renewal of that slot.
#[tokio::test]
async fn a_slot_that_is_released_while_its_renewal_waits_for_a_connection_is_free() {
    let server = RedisServer::start();
    let is_open = watch::Sender::new(true);
    let gate = is_open.subscribe();
    let store = RedisStore::builder(server.url()).connections(1).lease_time(LEASE_TIME);
    let store = store.connection_timeout(HANG).connect_with(move |to| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|is_open| *is_open).await;
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            Client::open(to)?
                .get_multiplexed_async_connection_with_config(&config)
                .await
        }
    });
    let store = Arc::new(store.build().unwrap());
    let plan = Plan::new(
        PolicySet::new([QuotaPolicy::concurrent("slots", 3)]).unwrap(),
        Scope::new("network").partition(&PartitionKey::new("user", "alice")),
        1,
    );
    let [first, second] = [store.decide(plan.clone()).await, store.decide(plan.clone()).await].map(Result::unwrap);
    is_open.send_replace(false);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the store opens another", async || is_open.receiver_count() > 1).await;
    drop(store.settle(Settlement::refund_all(&first)));
    let third = tokio::spawn({
        let (store, plan) = (Arc::clone(&store), plan.clone());
        async move { store.decide(plan).await }
    });
    // A renewal begins, which includes the second slot.
    sleep(LEASE_TIME / 2).await;
    drop(store.settle(Settlement::refund_all(&second)));
    is_open.send_replace(true);
    assert_eq!(third.await.unwrap().unwrap().outcome(), Outcome::Allowed);
    store.flush(HANG).await.unwrap();
    assert_eq!(
        store.peek(plan).await.unwrap().allowances().next().unwrap().remaining(),
        2
    );
}

/// Its timers are up when it comes to look at its sockets, in which all the answers are.
#[tokio::test]
async fn a_process_that_is_late_reads_what_has_arrived_before_it_calls_a_decision_missed() {
    let server = RedisServer::start();
    let store = Arc::new(RedisStore::new(server.url()).unwrap());
    let layer = |scope: &'static str, policy: QuotaPolicy| {
        RateLimitLayerBuilder::from(Limiter::builder(Arc::clone(&store)).deadline(Duration::from_secs(2)))
            .scope(scope)
            .key(key::header("x-user-id"))
            .policy(policy)
            .build()
            .unwrap()
    };
    let alone = layer("alone", QuotaPolicy::per_day("daily", 1_000));
    let blocks = layer("blocks", QuotaPolicy::per_day("daily", 1_000).with_prefetch(10));
    assert_eq!(outcome(&alone, "warm").await, Outcome::Allowed);
    for _ in 0..2 {
        // Some decisions are separate calls, the others share calls.
        server.command(&["CLIENT", "PAUSE", "1500"]);
        let users: Vec<_> = (0..30).map(|user| user.to_string()).collect();
        let asked = join_all(
            users
                .iter()
                .flat_map(|user| [outcome(&alone, user), outcome(&blocks, user)]),
        );
        let stand_still = async {
            sleep(Duration::from_millis(250)).await;
            // During this time, Redis resumes and the deadline passes.
            std::thread::sleep(Duration::from_millis(2_250));
        };
        let (outcomes, ()) = tokio::join!(asked, stand_still);
        let missed = outcomes.iter().filter(|outcome| **outcome != Outcome::Allowed).count();
        assert_eq!(missed, 0, "{outcomes:?}");
    }
}

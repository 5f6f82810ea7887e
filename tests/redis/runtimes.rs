//! Stores that several runtimes use: one of them ends, while it connects or later.

#![allow(clippy::disallowed_methods, reason = "a real server is waited for in real time")]

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use test_kit::{
    Answered, Mode, Proxy, RedisCluster, RedisServer, Sentinels, eventually, hello, limits_of, load::HANG,
    load::outcome, load::until, request,
};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_quota::{Limiter, Outcome, QuotaPolicy, RateLimitBody, RateLimitLayer, RedisStore, RedisStoreBuilder};

/// The connections of a store to each server. When a runtime ends, their tasks end one after the other, and the second
/// may send a request after the end of the first.
const CONNECTIONS: usize = 2;

/// The ways in which a runtime ends.
const ENDINGS: [fn(Runtime); 2] = [drop, Runtime::shutdown_background];

/// The kinds of runtimes. The tasks of a current-thread runtime have not begun when it ends.
const FLAVORS: [fn() -> Builder; 2] = [Builder::new_current_thread, multi_thread];

fn multi_thread() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    builder
}

fn runtime(flavor: fn() -> Builder) -> Runtime {
    flavor().enable_all().build().unwrap()
}

/// Servers behind proxies. The proxies run in a separate runtime.
struct Servers {
    builder: RedisStoreBuilder,
    proxies: Vec<Proxy>,
    outside: Runtime,
    running: Running,
}

#[allow(dead_code, reason = "they run until they are dropped")]
enum Running {
    Single(RedisServer),
    Cluster(RedisCluster),
    Sentinel(Box<Sentinels>),
}

impl Servers {
    const ALL: [fn() -> Self; 3] = [Self::single, Self::cluster, Self::sentinel];

    fn single() -> Self {
        let server = RedisServer::start();
        let ports = [server.port()];
        Self::behind_proxies(Running::Single(server), &ports, |urls| RedisStore::builder(&urls[0]))
    }

    /// The proxy is also the address to which the cluster sends its clients.
    fn cluster() -> Self {
        let cluster = RedisCluster::start(1, 0);
        let ports = [cluster.nodes[0].port()];
        let servers = Self::behind_proxies(Running::Cluster(cluster), &ports, RedisStore::cluster_builder);
        if let Running::Cluster(cluster) = &servers.running {
            let port = servers.proxies[0].port().to_string();
            let node = &cluster.nodes[0];
            assert_eq!(node.command(&["CONFIG", "SET", "cluster-announce-port", &port]), "OK");
            eventually("the node announces the proxy", || {
                node.command(&["CLUSTER", "SLOTS"]).contains(&port)
            });
        }
        servers
    }

    /// The proxies are in front of the sentinels only.
    fn sentinel() -> Self {
        let sentinels = Sentinels::start();
        let ports: Vec<u16> = sentinels.sentinels.iter().map(RedisServer::port).collect();
        Self::behind_proxies(Running::Sentinel(Box::new(sentinels)), &ports, |urls| {
            RedisStore::sentinel_builder(urls, Sentinels::SERVICE)
        })
    }

    fn behind_proxies(running: Running, ports: &[u16], builder: impl FnOnce(Vec<String>) -> RedisStoreBuilder) -> Self {
        let outside = runtime(multi_thread);
        let proxies: Vec<Proxy> = ports.iter().map(|port| outside.block_on(Proxy::start(*port))).collect();
        Self {
            builder: builder(proxies.iter().map(Proxy::url).collect()),
            proxies,
            outside,
            running,
        }
    }

    fn set_mode(&self, mode: Mode) {
        for proxy in &self.proxies {
            proxy.set_mode(mode);
        }
    }

    /// Ends all connections, also those to the primary that the sentinels name.
    fn cut(&self) {
        for proxy in &self.proxies {
            self.outside.block_on(proxy.cut());
        }
        if let Running::Sentinel(sentinels) = &self.running {
            // The sentinels keep theirs, or else they would name another primary.
            let server = &sentinels.servers[0];
            let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
            for client in list.lines().filter(|client| !client.contains("name=sentinel-")) {
                let id = client.split([' ', '=']).nth(1).unwrap();
                server.command(&["CLIENT", "KILL", "ID", id, "SKIPME", "yes"]);
            }
        }
    }

    /// Waits until a store has all its connections again.
    fn wait_for_all_connections(&self) {
        if let Running::Single(server) = &self.running {
            eventually("the store has two connections, and the test has one", || {
                server.command(&["CLIENT", "LIST"]).lines().count() == 3
            });
        }
    }

    fn connections(&self) -> usize {
        self.proxies.iter().map(Proxy::connections).sum()
    }

    /// Waits until more connections were accepted.
    async fn wait_for_an_attempt(&self, before: usize) {
        until("a store tries to connect", async || self.connections() > before).await;
    }

    fn layer(&self, name: &str) -> RateLimitLayer {
        let store = self.builder.clone().connection_timeout(Duration::from_secs(2));
        let limiter = Limiter::builder(store.build().unwrap()).deadline(HANG / 2);
        let builder = limits_of(limiter).policy(QuotaPolicy::per_day("daily", 1_000_000));
        builder.scope(name).build().unwrap()
    }
}

async fn undecided(layer: &RateLimitLayer, requests: usize) -> usize {
    let mut undecided = 0;
    for _ in 0..requests {
        undecided += usize::from(outcome(layer, "alice").await != Outcome::Allowed);
    }
    undecided
}

/// At most one request is undecided, and after the first few, none.
async fn assert_decides(layer: &RateLimitLayer) {
    let first = undecided(layer, 10).await;
    assert!(first <= 1, "{first} undecided");
    assert_eq!(undecided(layer, 200).await, 0);
}

/// Calls this for each kind of servers, runtime and ending.
fn for_each(test: impl Fn(&Servers, &str, fn() -> Builder, fn(Runtime))) {
    for servers in Servers::ALL {
        let servers = servers();
        for (kind, flavor) in FLAVORS.into_iter().enumerate() {
            for (number, end) in ENDINGS.into_iter().enumerate() {
                test(&servers, &format!("{kind} {number}"), flavor, end);
            }
        }
    }
}

/// Calls this in a runtime, which then ends.
fn in_a_runtime<T>(flavor: fn() -> Builder, end: fn(Runtime), what: impl Future<Output = T>) -> T {
    let runtime = runtime(flavor);
    let result = runtime.block_on(what);
    end(runtime);
    result
}

#[test]
fn a_store_made_in_a_runtime_that_ends_before_it_has_connected_connects_in_the_next_one() {
    for_each(|servers, name, flavor, end| {
        let layer = in_a_runtime(flavor, end, async { servers.layer(name) });
        runtime(flavor).block_on(assert_decides(&layer));
    });
}

#[test]
fn a_store_whose_runtime_ends_while_redis_hangs_connects_in_the_next_one() {
    for_each(|servers, name, flavor, end| {
        servers.set_mode(Mode::Swallow);
        let before = servers.connections();
        let layer = in_a_runtime(flavor, end, async {
            let layer = servers.layer(name);
            let request = tokio::spawn({
                let layer = layer.clone();
                async move { outcome(&layer, "alice").await }
            });
            servers.wait_for_an_attempt(before).await;
            request.abort();
            layer
        });
        servers.set_mode(Mode::Forward);
        runtime(flavor).block_on(assert_decides(&layer));
    });
}

#[test]
fn a_store_whose_runtime_ends_in_use_connects_in_the_next_one() {
    for_each(|servers, name, flavor, end| {
        let layer = in_a_runtime(flavor, end, async {
            let layer = servers.layer(name);
            assert_decides(&layer).await;
            layer
        });
        for _ in 0..2 {
            in_a_runtime(flavor, end, assert_decides(&layer));
        }
    });
}

/// Requests of a runtime, one after the other.
struct Asking {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    /// Returns the runtime and the number of requests that were not decided.
    thread: thread::JoinHandle<(Runtime, usize)>,
}

impl Asking {
    fn start(runtime: Runtime, layer: &RateLimitLayer) -> Self {
        let (layer, is_over, asked) = (
            layer.clone(),
            Arc::<AtomicBool>::default(),
            Arc::<AtomicUsize>::default(),
        );
        let thread = thread::spawn({
            let (is_over, asked) = (Arc::clone(&is_over), Arc::clone(&asked));
            move || {
                let mut missed = 0;
                while !is_over.load(Ordering::SeqCst) {
                    missed += runtime.block_on(undecided(&layer, 1));
                    asked.fetch_add(1, Ordering::SeqCst);
                }
                (runtime, missed)
            }
        });
        Self { is_over, asked, thread }
    }

    fn wait_for(&self, requests: usize) {
        let until = self.asked.load(Ordering::SeqCst) + requests;
        eventually("more requests are sent", || self.asked.load(Ordering::SeqCst) >= until);
    }

    fn stop(self) -> (Runtime, usize) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Both use the same connections.
#[test]
fn a_runtime_that_ends_costs_another_one_that_uses_the_store_at_most_one_decision_per_connection() {
    for_each(|servers, name, flavor, end| {
        let first = runtime(multi_thread);
        let layer = first.block_on(async { servers.layer(name) });
        first.block_on(assert_decides(&layer));
        let asking = Asking::start(runtime(flavor), &layer);
        first.spawn({
            let layer = layer.clone();
            async move { while outcome(&layer, "bob").await != Outcome::Rejected {} }
        });
        asking.wait_for(100);
        end(first);
        asking.wait_for(300);
        let (second, missed) = asking.stop();
        assert!(missed <= CONNECTIONS, "{missed} undecided");
        second.block_on(assert_decides(&layer));
        if second.metrics().num_workers() > 1 {
            servers.wait_for_all_connections();
        }
    });
}

/// Both connect, and what the first one has begun ends with it.
#[test]
fn a_runtime_that_ends_while_redis_hangs_leaves_another_one_that_waits_too_able_to_connect() {
    for_each(|servers, name, flavor, end| {
        let second = runtime(multi_thread);
        let layer = second.block_on(async { servers.layer(name) });
        second.block_on(assert_decides(&layer));
        let asking = Asking::start(second, &layer);
        let before = servers.connections();
        servers.set_mode(Mode::Swallow);
        // An attempt that had already been answered may still open a connection.
        eventually("the store connects again", || {
            servers.cut();
            thread::sleep(Duration::from_millis(50));
            servers.connections() >= before + 4
        });
        in_a_runtime(flavor, end, async {
            tokio::spawn({
                let layer = layer.clone();
                async move { outcome(&layer, "bob").await }
            });
            servers.wait_for_an_attempt(servers.connections()).await;
        });
        servers.set_mode(Mode::Forward);
        let (second, _) = asking.stop();
        // Between two attempts to connect, requests wait for neither.
        second.block_on(until("the store connects", async || undecided(&layer, 1).await == 0));
        second.block_on(assert_decides(&layer));
        servers.wait_for_all_connections();
    });
}

/// Returns a response, with which its slot is released.
async fn response(layer: &RateLimitLayer) -> Response<RateLimitBody<Full<Bytes>>> {
    layer.layer(hello()).oneshot(request("alice")).await.unwrap()
}

#[test]
fn slots_acquired_in_a_runtime_that_has_ended_are_renewed_and_released_in_the_next_one() {
    const LEASE: Duration = Duration::from_secs(2);
    let servers = Servers::single();
    for (number, end) in ENDINGS.into_iter().enumerate() {
        let layer = || {
            let store = servers.builder.clone().lease_time(LEASE).build().unwrap();
            let limiter = Limiter::builder(store).rejection_cache(0).deadline(HANG / 2);
            let builder = limits_of(limiter).scope(number.to_string());
            builder.policy(QuotaPolicy::concurrent("slots", 2)).build().unwrap()
        };
        let (layer, first) = in_a_runtime(multi_thread, end, async {
            let layer = layer();
            let first = response(&layer).await;
            (layer, first)
        });
        let next = runtime(multi_thread);
        next.block_on(async {
            let second = response(&layer).await;
            assert_eq!([first.code(), second.code()], [200; 2]);
            for _ in 0..50 {
                tokio::time::sleep(LEASE / 20).await;
                assert_eq!(response(&layer).await.code(), 429);
            }
            drop((first, second));
            let again = [response(&layer).await, response(&layer).await];
            assert_eq!(again.each_ref().map(Answered::code), [200; 2]);
            assert_eq!(response(&layer).await.code(), 429);
        });
    }
}

//! Decisions on a machine that has more work than its processors can handle.
//!
//!     cargo bench -p tower-quota-tests --bench starved
//!
//! Starts a dedicated server, and `LOOPS` (2) processes that only use CPU time. Tasks of this process send requests in
//! a closed loop for `SECONDS` (5) through the whole layer: one window, three windows, two partitions with three
//! windows each, and the latter on a cluster of three nodes. A row shows how many requests were decided, how many the
//! store did not decide, by reason, and the round trip of a `PING` on its own connection, as `redis-cli --latency`
//! measures it. Users are chosen at random out of 250,000, so that no request is rejected.
//!
//! At the end, the server is stopped `ROUNDS` (10) times under the load of 512 tasks, until the circuit opens.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod decisions;
mod rounds;

use std::{
    collections::BTreeMap,
    io::{BufReader, Write as _},
    mem,
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use test_kit::{RedisCluster, RedisServer, encode, read_reply};
use tokio::runtime::Runtime;
use tower_quota::{Measurement, Plan, RateLimitLayer, RedisStore, Settlement, Store, StoreFuture, StoreTraits};

use self::decisions::{POLICIES, WholeLayer, run};

const TASKS: [usize; 3] = [64, 512, 1_500];

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let metrics = PrometheusBuilder::new()
        .install_recorder()
        .expect("there is no other recorder");
    let runtime = Runtime::new().expect("the runtime starts");
    let server = RedisServer::start();
    let cluster = RedisCluster::start(3, 0);
    let errors = Errors::default();
    let single = || Recording::new(RedisStore::new(server.url()).expect("the URL is valid"), &errors);
    let nodes = || {
        let store = RedisStore::cluster(cluster.urls()).expect("the URLs are valid");
        Recording::new(store, &errors)
    };
    let length = Duration::from_secs_f64(rounds::setting("SECONDS", 5.0));
    let _loops: Vec<_> = (0..rounds::setting("LOOPS", 2)).map(|_| BusyLoop::start()).collect();
    println!(
        "{:<24} {:>6} {:>9} {:>9}  reasons; PING p50, p99, longest",
        "", "tasks", "decided", "undecided"
    );
    for tasks in TASKS {
        let one = || WholeLayer::of(RateLimitLayer::builder(single()), POLICIES[2..].iter().cloned());
        let three = || WholeLayer::of(RateLimitLayer::builder(single()), POLICIES);
        let two = || WholeLayer::of_two(RateLimitLayer::builder(single()));
        let cluster = || WholeLayer::of_two(RateLimitLayer::builder(nodes()));
        let rows: [(&str, &dyn Fn() -> WholeLayer); 4] = [
            ("one window", &one),
            ("three windows", &three),
            ("two partitions", &two),
            ("two on a cluster", &cluster),
        ];
        for (name, layer) in rows {
            // The layer is created on the runtime that runs it.
            let layer = runtime.block_on(async { layer() });
            let (before, pings) = (undecided(&metrics), Pings::start(server.port()));
            let (decided, missed) = runtime.block_on(run(&layer, tasks, length));
            let (ping, reasons) = (pings.stop(), reasons(&before, &undecided(&metrics)));
            println!("{name:<24} {tasks:>6} {decided:>9} {missed:>9}  {reasons}; {ping}");
            errors.print();
        }
    }
    let three = runtime.block_on(async { WholeLayer::of(RateLimitLayer::builder(single()), POLICIES) });
    let times = until_open(&runtime, &server, &three, &metrics);
    println!("stopped until the circuit opens: {times:.0?}");
}

/// Returns the times from when the server is stopped until the circuit opens.
fn until_open(
    runtime: &Runtime,
    server: &RedisServer,
    layer: &WholeLayer,
    metrics: &PrometheusHandle,
) -> Vec<Duration> {
    let is_open = || {
        let text = metrics.render();
        let gauge = text.lines().find(|line| line.starts_with("tower_quota_circuit_open{"));
        gauge.is_some_and(|gauge| gauge.ends_with(" 1"))
    };
    let wait_until = |state| {
        let start = Instant::now();
        while is_open() != state && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    };
    let rounds = (0..rounds::setting("ROUNDS", 10)).map(|_| {
        let (layer, length) = (layer.clone(), Duration::from_secs(3));
        let load = runtime.spawn(async move { run(&layer, 512, length).await });
        thread::sleep(length / 3);
        server.pause();
        let opened = wait_until(true);
        server.resume();
        wait_until(false);
        runtime.block_on(load).expect("nothing panics");
        opened
    });
    rounds.collect()
}

fn reasons(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> String {
    let reasons = after.iter().filter_map(|(reason, count)| {
        let more = count - before.get(reason).unwrap_or(&0);
        (more > 0).then(|| format!("{reason} {more}"))
    });
    reasons.collect::<Vec<_>>().join(", ")
}

/// The errors of the store itself, by message.
#[derive(Clone, Debug, Default)]
struct Errors(Arc<Mutex<BTreeMap<String, u64>>>);

impl Errors {
    fn print(&self) {
        for (message, count) in mem::take(&mut *self.0.lock().expect("nobody panics")) {
            println!("{:>52}  {count} {message}", "");
        }
    }
}

/// Records the errors that the store returns before the deadline of the layer.
#[derive(Debug)]
struct Recording {
    store: RedisStore,
    errors: Errors,
}

impl Recording {
    fn new(store: RedisStore, errors: &Errors) -> Self {
        let errors = errors.clone();
        Self { store, errors }
    }
}

impl Store for Recording {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let (answer, errors) = (self.store.acquire(plan), self.errors.clone());
        StoreFuture::boxed(async move {
            let answer = answer.await;
            if let Err(error) = &answer {
                let mut errors = errors.0.lock().expect("nobody panics");
                *errors.entry(error.to_string()).or_default() += 1;
            }
            answer
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }

    fn traits(&self) -> StoreTraits {
        self.store.traits()
    }

    fn silence(&self) -> StoreFuture<Option<Duration>> {
        self.store.silence()
    }
}

fn undecided(metrics: &PrometheusHandle) -> BTreeMap<String, u64> {
    let text = metrics.render();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("tower_quota_undecided_total{"));
    rows.filter_map(|row| {
        let (_, reason) = row.split_once("reason=\"")?;
        let (reason, count) = reason.split_once("\"}")?;
        Some((reason.to_owned(), count.trim().parse().ok()?))
    })
    .collect()
}

/// A process that only uses CPU time, until dropped.
struct BusyLoop(Child);

impl BusyLoop {
    fn start() -> Self {
        let shell = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self(shell.expect("there is a shell"))
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures the round trip to the server every 10 ms.
struct Pings {
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

impl Pings {
    fn start(port: u16) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut writer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
            writer.set_nodelay(true).expect("this is a socket");
            let mut reader = BufReader::new(writer.try_clone().expect("this is a socket"));
            let mut times = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let start = Instant::now();
                writer.write_all(&encode(&[b"PING"])).expect("the server reads");
                read_reply(&mut reader, &mut Vec::new()).expect("the server answers");
                times.push(start.elapsed());
                thread::sleep(Duration::from_millis(10));
            }
            times.sort();
            times
        });
        Self { is_over, thread }
    }

    fn stop(self) -> String {
        self.is_over.store(true, Ordering::Relaxed);
        let times = self.thread.join().expect("nothing panics");
        let at = |share: f64| {
            times
                .get(((times.len() - 1) as f64 * share) as usize)
                .copied()
                .unwrap_or_default()
        };
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| at(share).as_secs_f64() * 1_000.0);
        format!("{p50:.1}, {p99:.1}, {longest:.1} ms")
    }
}

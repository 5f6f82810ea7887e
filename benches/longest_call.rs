//! The longest call that callers can bring about who know what costs the server most, and what it costs the others.
//!
//!     cargo bench -p tower-quota-tests --bench longest_call
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. Each decision has sixteen policies, the
//! maximum, whose logs are full. The first table shows the longest call of each kind by `SLOWLOG`, the minimum of
//! `ROUNDS` (7) rounds, because a call also includes the time in which the system runs something else. The second one
//! shows the 99th percentile of callers with three windows and 1,000 decisions a second, with and without eight callers
//! with full logs, in turns. The layer lets two calls a second of an exhausted caller through, and so does this
//! benchmark.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use test_kit::RedisServer;
use tokio::{runtime::Runtime, time::interval};
use tower_quota::{
    Algorithm, ChargeTime, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Settlement,
    Store,
    clock::{Clock, Timestamp},
};

const START: u64 = 1_700_000_040_000_000;
const WINDOW: Duration = Duration::from_secs(60);
const POLICIES: usize = 16;
const CALLERS: usize = 8;
const TOGETHER: usize = 64;
const PART: Duration = Duration::from_secs(3);

/// Fills up the log with this place among the sorted keys, from its only entry.
const FILL: &str = "local keys = redis.call('KEYS', '*') table.sort(keys) local key = keys[tonumber(ARGV[1])] \
    if not key or redis.call('TYPE', key).ok ~= 'zset' then return end \
    local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES') \
    local number, total = struct.unpack('>I6I7I4', newest[1]) \
    for n = 1, ARGV[2] - 1 do redis.call('ZADD', key, newest[2] + n, struct.pack('>I6I7I4', number + n, total + n, 1)) end";

const LONGEST: &str = "local longest = 0 for _, entry in ipairs(redis.call('SLOWLOG', 'GET', 5000)) do \
    if string.upper(entry[4][1]) == 'EVALSHA' and entry[3] > longest then longest = entry[3] end end return longest";

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let runtime = Runtime::new().expect("there is a runtime");
    runtime.block_on(async {
        let mut rows: Vec<(String, u64)> = Vec::new();
        for _ in 0..rounds::setting("ROUNDS", 7) {
            for (row, (name, micros)) in round().await.into_iter().enumerate() {
                match rows.get_mut(row) {
                    Some((_, least)) => *least = micros.min(*least),
                    None => rows.push((name, micros)),
                }
            }
        }
        println!("| the longest call | µs |\n|---|---|");
        for (name, micros) in rows {
            println!("| {name} | {micros} |");
        }
    });
    others(&runtime);
}

struct Bench {
    server: RedisServer,
    clock: Clock,
    store: RedisStore,
    policies: PolicySet,
}

fn policies(algorithm: Algorithm, quota: u64) -> PolicySet {
    let policy = |number| QuotaPolicy::new(format!("policy {number}"), quota, WINDOW).with_algorithm(algorithm);
    PolicySet::new((0..POLICIES).map(policy)).expect("the policies are sound")
}

fn partition(caller: usize) -> PartitionId {
    Scope::new("longest").partition(&PartitionKey::new("caller", caller.to_be_bytes()))
}

impl Bench {
    fn new(algorithm: Algorithm, quota: u64) -> Self {
        let server = RedisServer::start();
        for (name, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "5000")] {
            server.command(&["CONFIG", "SET", name, value]);
        }
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = RedisStore::builder(server.url()).clock(clock.clone());
        Self {
            store: store.build().expect("the store is sound"),
            policies: policies(algorithm, quota),
            server,
            clock,
        }
    }

    fn plan(&self, caller: usize, cost: u64) -> Plan {
        Plan::new(self.policies.clone(), partition(caller), cost)
    }

    async fn fill(&self, entries: u64) {
        for caller in 0..CALLERS {
            self.store
                .decide(self.plan(caller, 1))
                .await
                .expect("the server decides");
        }
        for place in 1..=CALLERS * (POLICIES + 1) {
            self.server
                .command(&["EVAL", FILL, "0", &place.to_string(), &entries.to_string()]);
        }
        self.clock.advance(Duration::from_millis(20));
        self.longest();
    }

    /// Many decisions at once, which share calls.
    async fn decide(&self, cost: u64) -> u64 {
        let decisions = (0..TOGETHER).map(|number| self.store.decide(self.plan(number % CALLERS, cost)));
        assert!(join_all(decisions).await.iter().all(Result::is_ok));
        self.longest()
    }

    async fn refund(&self, units: u64) -> u64 {
        let refund = |caller| Settlement::refund(self.plan(caller, units), ChargeTime::At(self.clock.now()));
        let settled = join_all((0..CALLERS).map(|caller| self.store.settle(refund(caller)))).await;
        assert!(settled.iter().all(Result::is_ok));
        self.longest()
    }

    /// Of the calls since the last time, in microseconds.
    fn longest(&self) -> u64 {
        let longest = self.server.command(&["EVAL", LONGEST, "0"]);
        self.server.command(&["SLOWLOG", "RESET"]);
        longest.trim().parse().expect("the server says a number")
    }
}

async fn round() -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    let bench = Bench::new(Algorithm::SlidingWindowLog, 10_000);
    bench.fill(10_000).await;
    rows.push(("full logs: rejected".to_owned(), bench.decide(1).await));
    rows.push((
        "full logs: rejected for half of the quota".to_owned(),
        bench.decide(5_000).await,
    ));
    rows.push((
        "full logs: a thousand units are given back".to_owned(),
        bench.refund(1_000).await,
    ));
    bench.clock.set(Timestamp::from_micros(START - 10_000_000));
    rows.push(("full logs: the clock was set back".to_owned(), bench.decide(1).await));
    bench.clock.advance(2 * WINDOW);
    rows.push(("full logs: all entries are over".to_owned(), bench.decide(1).await));
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
    ] {
        let bench = Bench::new(algorithm, 7);
        for told in ["charged", "rejected"] {
            let mut longest = 0;
            for _ in 0..8 {
                longest = bench.decide(1).await.max(longest);
            }
            rows.push((format!("{algorithm:?}: {told}"), longest));
        }
    }
    rows
}

/// The 99th percentile of the others, beside callers with full logs and without them.
fn others(runtime: &Runtime) {
    let bench = Bench::new(Algorithm::SlidingWindowLog, 10_000);
    runtime.block_on(bench.fill(10_000));
    let (mut quiet, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..rounds::setting("ROUNDS", 7) {
        quiet.push(runtime.block_on(percentile(&bench)));
        let done = AtomicBool::new(false);
        let others = percentile(&bench);
        beside.push(thread::scope(|scope| {
            scope.spawn(|| hostile(&bench, runtime, &done));
            let others = runtime.block_on(others);
            done.store(true, Ordering::Relaxed);
            others
        }));
    }
    let median = |values: &mut Vec<Duration>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (quiet, beside) = (median(&mut quiet), median(&mut beside));
    println!("\n| 99 % of the others | time |\n|---|---|\n| alone | {quiet:?} |\n| beside such callers | {beside:?} |");
    println!("| ratio | {:.2} |", beside.as_secs_f64() / quiet.as_secs_f64());
}

/// Two calls a second for each caller, spread over time: the timers of the runtime would wake the callers together with
/// the others.
fn hostile(bench: &Bench, runtime: &Runtime, done: &AtomicBool) {
    for caller in (0..CALLERS).cycle() {
        thread::sleep(Duration::from_millis(500) / CALLERS as u32);
        if done.load(Ordering::Relaxed) {
            break;
        }
        let decided = runtime.block_on(bench.store.decide(bench.plan(caller, 5_000)));
        decided.expect("the server decides");
    }
}

async fn percentile(bench: &Bench) -> Duration {
    let windows = [
        QuotaPolicy::per_second("second", 1_000),
        QuotaPolicy::per_minute("minute", 10_000),
        QuotaPolicy::per_day("day", 500_000),
    ];
    let windows = PolicySet::new(windows).expect("the policies are sound");
    let (start, mut due) = (Instant::now(), interval(Duration::from_millis(1)));
    let mut decided = Vec::new();
    for caller in 1_000.. {
        due.tick().await;
        if start.elapsed() > PART {
            break;
        }
        let decision = bench.store.decide(Plan::new(windows.clone(), partition(caller), 1));
        decided.push(tokio::spawn(async {
            let since = Instant::now();
            decision.await.expect("the server decides");
            since.elapsed()
        }));
    }
    let mut times: Vec<Duration> = join_all(decided)
        .await
        .into_iter()
        .map(Result::unwrap_or_default)
        .collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

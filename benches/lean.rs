//! The whole layer through Redis, next to a lean script alone; and a request that uses two partitions, next to one.
//!
//!     cargo bench -p tower-quota-tests --bench lean
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. The sides of a table are measured in
//! turns, `ROUNDS` (10) times for `SECONDS` (0.5) each, with users at random out of 250,000. The tables show medians,
//! and the median of the ratios within each round. Every side begins with an empty server.
//!
//! - *lean script*: GCRA in one key, about the least that a decision can be: `TIME`, `GET`, a few additions, `SET`. One
//!   multiplexed connection of the `redis` crate, one call for each decision; no key is hashed, nothing has a deadline, and
//!   no HTTP is involved.
//! - *whole layer*: as in the benchmark `redis`, with default settings; and the same with a separate call for each
//!   decision.
//! - One task is compared by the clock, by the time of all processors, client and server together, and by the server's
//!   script time. `ONE_TASK=1` measures nothing else.
//! - *two partitions*: three windows of the user, and three of a second key.
//! - *open load*: three windows; requests are due at fixed moments, whether or not earlier ones are answered, at 80 % of what
//!   the same side does in this run with 512 tasks right before, and at 60 000 a second (`RATE`). *Undecided* are requests that
//!   have passed without a decision. The load is also shown as a share of what the side does right after it.
//!
//! `SIDE` makes the decisions of one side alone, for a profiler: 0 for the lean script, 1 for the whole layer, 2 for the layer
//! with a call for each decision, 3 for the layer with prefetching (with few callers: `USERS=4`). `TIMES` is how many
//! (50 000), `TASKS` by how many tasks (64), `WINDOWS` of how many (3).
//! Two runs of different `TIMES` show what one decision costs.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod decisions;
#[path = "lean/open.rs"]
mod open;
mod rounds;

use std::time::Duration;

use redis::{Client, Script, aio::MultiplexedConnection, cmd};
use tower_quota::{Limiter, Outcome, QuotaPolicy, RateLimitLayerBuilder};

use self::{
    decisions::{Bench, Decide, POLICIES, StoreAlone, WholeLayer, store, store_without_sharing},
    rounds::Side,
};

const TASKS: [usize; 2] = [64, 512];

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let bench = Bench::start();
    let side = rounds::setting("SIDE", usize::MAX);
    if side != usize::MAX {
        one_side(&bench, side);
        println!("script calls: {}", bench.script_calls());
        println!("requests without a decision: {}", bench.undecided.get());
        return;
    }
    for windows in [1, 3] {
        if rounds::setting("ONE_TASK", 0) == 1 {
            one_task(&bench, windows);
            continue;
        }
        beside_a_lean_script(&bench, windows);
    }
    if rounds::setting("ONE_TASK", 0) == 0 {
        two_partitions(&bench);
        open_load(&bench);
    }
    println!("requests without a decision: {}", bench.undecided.get());
}

/// Makes the decisions of one side alone, and nothing else.
fn one_side(bench: &Bench, side: usize) {
    let (windows, tasks) = (rounds::setting("WINDOWS", 3), rounds::setting("TASKS", 64));
    let each = rounds::setting("TIMES", 50_000) / tasks as u64;
    let policies = POLICIES.into_iter().take(windows);
    match side {
        0 => bench.repeat(&LeanScript::new(bench, windows), tasks, each),
        1 => bench.repeat(&patient(bench, policies), tasks, each),
        // A caller whose quota is prefetched.
        3 => {
            let policies = ["one", "two", "three"].into_iter().take(windows);
            let policies = policies.map(|name| QuotaPolicy::per_minute(name, 100_000_000).with_prefetch(1_000));
            bench.repeat(&patient(bench, policies), tasks, each);
        }
        _ => bench.repeat(
            &WholeLayer::new(store_without_sharing(&bench.server), policies),
            tasks,
            each,
        ),
    }
}

/// The layer with a deadline that it also meets in a profiler, which makes the program slow.
fn patient(bench: &Bench, policies: impl IntoIterator<Item = QuotaPolicy>) -> WholeLayer {
    let limiter = Limiter::builder(store(&bench.server)).deadline(Duration::from_secs(30));
    WholeLayer::of(RateLimitLayerBuilder::from(limiter), policies)
}

fn beside_a_lean_script(bench: &Bench, windows: usize) {
    let policies = || POLICIES.into_iter().take(windows);
    let lean = LeanScript::new(bench, windows);
    let layer = WholeLayer::new(store(&bench.server), policies());
    let unshared = WholeLayer::new(store_without_sharing(&bench.server), policies());
    for tasks in TASKS {
        let sides = vec![
            Side::new("lean script", || bench.measure(&lean, tasks)),
            Side::new("whole layer", || bench.measure(&layer, tasks)),
            Side::new("whole layer, one decision per call", || bench.measure(&unshared, tasks)),
        ];
        table(&format!("windows: {windows}, tasks: {tasks}"), "decisions/s", sides);
    }
    one_task(bench, windows);
}

/// Decisions one after another: by the clock, and by the time of the processors.
fn one_task(bench: &Bench, windows: usize) {
    let lean = LeanScript::new(bench, windows);
    let layer = WholeLayer::new(store(&bench.server), POLICIES.into_iter().take(windows));
    let sides = vec![
        Side::new("lean script", || bench.measure(&lean, 1)),
        Side::new("whole layer", || bench.measure(&layer, 1)),
    ];
    table(&format!("windows: {windows}, tasks: 1"), "decisions/s", sides);
    let sides = vec![
        Side::new("lean script", || bench.measure_processors(&lean, 1)),
        Side::new("whole layer", || bench.measure_processors(&layer, 1)),
    ];
    table(&format!("windows: {windows}, tasks: 1"), "per cpu s", sides);
    let sides = vec![
        Side::new("lean script", || bench.measure_script(&lean, 1)),
        Side::new("whole layer", || bench.measure_script(&layer, 1)),
    ];
    table(&format!("windows: {windows}, tasks: 1"), "script us", sides);
}

fn two_partitions(bench: &Bench) {
    let (one, two) = (
        WholeLayer::new(store(&bench.server), POLICIES),
        WholeLayer::of_two_partitions(store(&bench.server)),
    );
    let (store_of_one, store_of_two) = (
        StoreAlone::new(&bench.server, POLICIES),
        StoreAlone::of_two_partitions(&bench.server),
    );
    for tasks in TASKS {
        let sides = vec![
            Side::new("whole layer, one partition", || bench.measure(&one, tasks)),
            Side::new("whole layer, two partitions", || bench.measure(&two, tasks)),
        ];
        table(
            &format!("windows of each partition: 3, tasks: {tasks}"),
            "decisions/s",
            sides,
        );
        let sides = vec![
            Side::new("RedisStore alone, one partition", || {
                bench.measure(&store_of_one, tasks)
            }),
            Side::new("RedisStore alone, two partitions", || {
                bench.measure(&store_of_two, tasks)
            }),
        ];
        table(
            &format!("windows of each partition: 3, tasks: {tasks}"),
            "decisions/s",
            sides,
        );
    }
}

fn open_load(bench: &Bench) {
    let lean = LeanScript::new(bench, POLICIES.len());
    let layer = WholeLayer::new(store(&bench.server), POLICIES);
    let unshared = WholeLayer::new(store_without_sharing(&bench.server), POLICIES);
    println!("\nopen load, without shared calls and with them");
    let eighty = |name: &str, side: &WholeLayer| {
        let closed = bench.measure(side, 512);
        let answers = open::measure(bench, side, 0.8 * closed);
        let (undecided, count) = (answers.undecided, answers.count());
        // A machine that others use as well may have had less for it than before.
        let after = 80.0 * closed / bench.measure(side, 512);
        println!("  {name}, 80 % of {closed:.0}/s, {after:.0} % of that afterwards: {undecided} undecided of {count}");
    };
    for _ in 0..rounds::setting("ROUNDS", 10) {
        eighty("one decision per call", &unshared);
        eighty("shared calls", &layer);
    }
    let rate = rounds::setting("RATE", 60_000.0);
    let sides = vec![
        Side::new("lean script", || open::measure(bench, &lean, rate).median_micros()),
        Side::new("whole layer", || open::measure(bench, &layer, rate).median_micros()),
        Side::new("whole layer, one decision per call", || {
            open::measure(bench, &unshared, rate).median_micros()
        }),
    ];
    table(&format!("open load of {rate}/s, p50"), "us", sides);
}

fn table(title: &str, unit: &str, mut sides: Vec<Side<'_>>) {
    // A round that opens the connections and does not count.
    rounds::measure(1, &mut sides);
    let values = rounds::measure(rounds::setting("ROUNDS", 10), &mut sides);
    rounds::print(title, unit, &sides, &values);
}

/// One multiplexed connection, as a program without this crate would have it.
#[derive(Clone)]
struct LeanScript {
    connection: MultiplexedConnection,
    hash: String,
    /// For each window the time of a unit and the time of all of them, in microseconds.
    windows: Vec<u64>,
}

impl LeanScript {
    fn new(bench: &Bench, windows: usize) -> Self {
        let script = Script::new(match windows {
            1 => include_str!("lean/gcra1.lua"),
            _ => include_str!("lean/gcra3.lua"),
        });
        let connection = bench.runtime.block_on(async {
            let client = Client::open(bench.server.url()).expect("the URL is valid");
            let connection = client.get_multiplexed_async_connection().await;
            let mut connection = connection.expect("the server answers");
            let loaded = script.prepare_invoke().load_async(&mut connection).await;
            loaded.expect("the server loads it");
            connection
        });
        let windows = POLICIES.into_iter().take(windows).flat_map(|policy| {
            let all = policy.window().expect("it has a window").as_micros() as u64;
            [all / policy.quota(), all]
        });
        Self {
            connection,
            hash: script.get_hash().to_owned(),
            windows: windows.collect(),
        }
    }
}

impl Decide for LeanScript {
    async fn decide(&self, user: usize) -> Outcome {
        let mut command = cmd("EVALSHA");
        command.arg(&self.hash).arg(1).arg(format!("quota:{{{user}}}"));
        for number in &self.windows {
            command.arg(*number);
        }
        let mut connection = self.connection.clone();
        let reply: Vec<u8> = command.query_async(&mut connection).await.expect("the server answers");
        match reply.first() {
            Some(1) => Outcome::Allowed,
            _ => Outcome::Rejected,
        }
    }
}

//! Decisions through Redis, next to a bare script; and what each algorithm costs the server.
//!
//!     cargo bench -p tower-quota-tests --bench redis
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. The sides of a table are measured in
//! turns, `ROUNDS` (10) times for `SECONDS` (0.5) each, with users at random out of 250,000; every side begins with an
//! empty server. The tables show medians, and the median of the ratios within each round.
//!
//! - *bare script*: GCRA in one key, about the least that a decision can be: `TIME`, `GET`, a few additions, `SET`. One
//!   multiplexed connection of the `redis` crate, one call for each decision; no key is hashed, nothing has a deadline,
//!   and no HTTP is involved.
//! - *RedisStore*: `acquire` with default settings for a digest that was made before. No deadline, no fields.
//! - *whole layer*: a request with a user ID in its extensions through `RateLimit` around a service that responds
//!   immediately: key and digest, plan, circuit breaker, the default deadline, decision, fields and response. Also with
//!   a separate call for each decision, and with a second partition that also has three windows.
//! - Decisions of one task are also compared by the CPU time of client and server together. `TASKS=1` measures no other
//!   number of tasks.
//! - *algorithms*: each with one policy of 100 per minute unless its name indicates otherwise, through `RedisStore`
//!   alone: decisions per second of the server's CPU time, including its network. Acquired slots are released, which is
//!   a second call. Then the bytes that the server stores per caller.
//!
//! Only decisions that were made count. The last line has the number of requests that passed without one; a rejection
//! or an error ends the run.
//!
//! `SIDE` makes the decisions of one side alone, for a profiler: 0 for the bare script, 1 for the whole layer, 2 for the
//! layer with a call for each decision, 3 for the layer with prefetching (with few callers: `USERS=4`). `TIMES` is how
//! many (50,000), `TASKS` by how many tasks (64), `WINDOWS` of how many (3). Two runs of different `TIMES` show what one
//! decision costs.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod algorithms;
mod decisions;
#[path = "../rounds/mod.rs"]
mod rounds;

use redis::{Client, Script, aio::MultiplexedConnection, cmd};
use tower_quota::{Outcome, QuotaPolicy};

use self::{
    decisions::{Bench, Decide, POLICIES, StoreAlone, WholeLayer},
    rounds::{Side, server},
};

const ROUNDS: usize = 10;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let bench = Bench::start();
    let side = rounds::setting("SIDE", usize::MAX);
    if side != usize::MAX {
        one_side(&bench, side);
        println!("script calls: {}", server::script_calls(&bench.server));
    } else if rounds::setting("TASKS", 0) == 1 {
        [1, 3]
            .into_iter()
            .for_each(|windows| beside_a_bare_script(&bench, windows, 1));
    } else {
        for tasks in [1, 64, 512] {
            [1, 3]
                .into_iter()
                .for_each(|windows| beside_a_bare_script(&bench, windows, tasks));
            two_partitions(&bench, tasks);
        }
        algorithms::measure(&bench);
        algorithms::print_sizes(&bench);
    }
    println!("requests without a decision: {}", bench.undecided.get());
}

/// Makes the decisions of one side alone, and nothing else.
fn one_side(bench: &Bench, side: usize) {
    let (windows, tasks) = (rounds::setting("WINDOWS", 3), rounds::setting("TASKS", 64));
    let each = rounds::setting("TIMES", 50_000) / tasks as u64;
    let policies = POLICIES.into_iter().take(windows);
    let layer = match side {
        0 => return bench.repeat(&BareScript::new(bench, windows), tasks, each),
        1 => WholeLayer::patient(bench.store(), policies),
        // A caller whose quota is prefetched.
        3 => {
            let policies = ["one", "two", "three"].into_iter().take(windows);
            let policies = policies.map(|name| QuotaPolicy::per_minute(name, 100_000_000).with_prefetch(1_000));
            WholeLayer::patient(bench.store(), policies)
        }
        _ => WholeLayer::new(bench.store_without_sharing(), policies),
    };
    bench.repeat(&layer, tasks, each);
}

fn beside_a_bare_script(bench: &Bench, windows: usize, tasks: usize) {
    let policies = || POLICIES.into_iter().take(windows);
    let bare = BareScript::new(bench, windows);
    let store = StoreAlone::new(bench.store(), policies());
    let layer = WholeLayer::new(bench.store(), policies());
    let unshared = WholeLayer::new(bench.store_without_sharing(), policies());
    let mut sides = [
        Side::new("bare script", || bench.measure(&bare, tasks)),
        Side::new("RedisStore alone", || bench.measure(&store, tasks)),
        Side::new("whole layer", || bench.measure(&layer, tasks)),
        Side::new("whole layer, one decision per call", || bench.measure(&unshared, tasks)),
    ];
    let title = format!("windows: {windows}, tasks: {tasks}");
    rounds::table(&title, "decisions/s", ROUNDS, &mut sides);
    if tasks == 1 {
        let mut sides = [
            Side::new("bare script", || bench.measure_processors(&bare, tasks)),
            Side::new("whole layer", || bench.measure_processors(&layer, tasks)),
        ];
        rounds::table(&title, "per cpu s", ROUNDS, &mut sides);
    }
}

fn two_partitions(bench: &Bench, tasks: usize) {
    let one = WholeLayer::new(bench.store(), POLICIES);
    let two = WholeLayer::of_two_partitions(bench.store());
    let mut sides = [
        Side::new("whole layer, one partition", || bench.measure(&one, tasks)),
        Side::new("whole layer, two partitions", || bench.measure(&two, tasks)),
    ];
    let title = format!("windows of each partition: 3, tasks: {tasks}");
    rounds::table(&title, "decisions/s", ROUNDS, &mut sides);
}

/// One multiplexed connection, as a program without this crate would have it.
#[derive(Clone)]
struct BareScript {
    connection: MultiplexedConnection,
    hash: String,
    /// For each window the time of a unit and the time of all of them, in microseconds.
    windows: Vec<u64>,
}

impl BareScript {
    fn new(bench: &Bench, windows: usize) -> Self {
        let script = Script::new(match windows {
            1 => include_str!("gcra1.lua"),
            _ => include_str!("gcra3.lua"),
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

impl Decide for BareScript {
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

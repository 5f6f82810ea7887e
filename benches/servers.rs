//! The server's time for a call of the store, by version of the server.
//!
//!     REDIS_SERVERS="PATH_OF_ONE PATH_OF_ANOTHER …" cargo bench -p tower-quota-tests --bench servers
//!
//! It starts each of these servers and sends all of them the same calls in turns, `ROUNDS` (201) times. A round is short, so
//! that the median leaves out those in which something else had the processor. The tables show the microseconds of a call
//! by `INFO commandstats`, and the ratio to the first server.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::env;

use futures_util::future::join_all;
use test_kit::{RedisServer, Setup};
use tokio::runtime::Runtime;
use tower_quota::{
    Decision, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Settlement, Store,
};

use self::rounds::Side;

const USERS: u64 = 500;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let paths = env::var("REDIS_SERVERS").unwrap_or_default();
    if paths.is_empty() {
        println!("REDIS_SERVERS has no paths of servers to compare");
        return;
    }
    let servers: Vec<_> = paths.split_whitespace().map(Bench::start).collect();
    for (name, measure) in [
        ("a decision about three windows", Bench::decisions as fn(&Bench) -> f64),
        ("a rejection by one of three windows", Bench::rejections),
        ("a settlement of three windows", Bench::settlements),
    ] {
        let side = |server| Side::new(Bench::version(server), || measure(server));
        let mut sides: Vec<_> = servers.iter().map(side).collect();
        // Rounds that make all users known and do not count.
        rounds::measure(3, &mut sides);
        let values = rounds::measure(rounds::setting("ROUNDS", 201), &mut sides);
        rounds::print(name, "us/call", &sides, &values);
    }
}

/// A server, and a store that sends it one decision in a call.
struct Bench {
    runtime: Runtime,
    server: RedisServer,
    store: RedisStore,
}

impl Bench {
    fn start(path: &str) -> Self {
        let server = RedisServer::start_with(Setup {
            binary: Some(path.into()),
            ..Setup::default()
        });
        let store = RedisStore::builder(server.url()).decisions_per_call(1);
        let store = store.build().expect("the settings are valid");
        let runtime = Runtime::new().expect("the runtime starts");
        Self { runtime, server, store }
    }

    fn version(&self) -> String {
        let info = self.server.command(&["INFO", "server"]);
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let valkey = field("valkey_version:").map(|version| format!("Valkey {version}"));
        valkey.unwrap_or_else(|| format!("Redis {}", field("redis_version:").unwrap_or("unknown")))
    }

    fn decisions(&self) -> f64 {
        self.reset();
        self.decide("often", 5_000_000, 1, Outcome::Allowed);
        self.micros_per_call()
    }

    fn rejections(&self) -> f64 {
        // The first round uses up what the others are rejected for.
        if self.server.command(&["SETNX", "exhausted", "1"]) == "1" {
            self.decide("never", 1, 1, Outcome::Allowed);
        }
        self.reset();
        self.decide("never", 1, 1, Outcome::Rejected);
        self.micros_per_call()
    }

    fn settlements(&self) -> f64 {
        let decisions = self.decide("settled", 5_000_000, 2, Outcome::Allowed);
        self.reset();
        self.runtime.block_on(async {
            let settle = |decision| self.store.settle(Settlement::new(decision, 1));
            for settled in join_all(decisions.iter().map(settle)).await {
                settled.expect("the server answers");
            }
        });
        self.micros_per_call()
    }

    /// Makes one decision about each user, with a daily quota of `per_day`.
    fn decide(&self, scope: &'static str, per_day: u64, cost: u64, outcome: Outcome) -> Vec<Decision> {
        let policies = PolicySet::new([
            QuotaPolicy::per_second("second", 1_000),
            QuotaPolicy::per_minute("minute", 10_000),
            QuotaPolicy::per_day("day", per_day),
        ]);
        let (policies, scope) = (policies.expect("the policies are valid"), Scope::new(scope));
        let plans = (0..USERS).map(|user| {
            let partition = scope.partition(&PartitionKey::new("user", user.to_le_bytes()));
            self.store.decide(Plan::new(policies.clone(), partition, cost))
        });
        let decisions = self.runtime.block_on(join_all(plans));
        let decisions: Vec<_> = decisions
            .into_iter()
            .map(|decision| decision.expect("the server answers"))
            .collect();
        assert!(decisions.iter().all(|decision| decision.outcome() == outcome));
        decisions
    }

    fn reset(&self) {
        self.server.command(&["CONFIG", "RESETSTAT"]);
    }

    fn micros_per_call(&self) -> f64 {
        let stats = self.server.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let micros = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")));
        micros.and_then(|micros| micros.parse().ok()).expect("a number")
    }
}

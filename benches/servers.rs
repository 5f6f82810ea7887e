//! The server's time for a decision about three windows, by version of the server.
//!
//!     REDIS_SERVERS="PATH_OF_ONE PATH_OF_ANOTHER …" cargo bench -p tower-quota-tests --bench servers
//!
//! It starts each of these servers and sends all of them the same calls in turns, `ROUNDS` (201) times. A round is
//! short, so that the median leaves out those in which something else had the processor. The table shows the
//! microseconds of a call by `INFO commandstats`, and the ratio to the first server.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::env;

use futures_util::future::join_all;
use test_kit::{RedisServer, Setup};
use tokio::runtime::Runtime;
use tower_quota::{Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

use self::rounds::{Side, server};

const USERS: u64 = 500;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let paths = env::var("REDIS_SERVERS").unwrap_or_default();
    let servers: Vec<_> = paths.split_whitespace().map(Bench::start).collect();
    if servers.is_empty() {
        println!("REDIS_SERVERS has no paths of servers to compare");
        return;
    }
    let sides = servers
        .iter()
        .map(|server| Side::new(server.version(), || server.decide()));
    let mut sides: Vec<_> = sides.collect();
    // Rounds that make all users known and do not count.
    rounds::measure(2, &mut sides);
    rounds::table("a decision about three windows", "us/call", 201, &mut sides);
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

    /// Makes one decision about each user, and returns the microseconds of one.
    fn decide(&self) -> f64 {
        server::reset_statistics(&self.server);
        let policies = PolicySet::new([
            QuotaPolicy::per_second("second", 1_000),
            QuotaPolicy::per_minute("minute", 10_000),
            QuotaPolicy::per_day("day", 5_000_000),
        ]);
        let (policies, scope) = (policies.expect("the policies are valid"), Scope::new("often"));
        let decided = (0..USERS).map(|user| {
            let partition = scope.partition(&PartitionKey::new("user", user.to_le_bytes()));
            self.store.decide(Plan::new(policies.clone(), partition, 1))
        });
        for decision in self.runtime.block_on(join_all(decided)) {
            assert_eq!(decision.expect("the server answers").outcome(), Outcome::Allowed);
        }
        server::script_micros(&self.server) / server::script_calls(&self.server)
    }
}

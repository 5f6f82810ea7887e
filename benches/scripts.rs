//! The server's time for a decision about token buckets: the script for buckets, beside the one for every algorithm.
//!
//!     cargo bench -p tower-quota-tests --bench scripts
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. The calls of a store are recorded first,
//! and then sent with one script and with the other in turns, `ROUNDS` (31) times, for 20,000 users, each known to the
//! server. The tables show the microseconds of a decision by `INFO commandstats`, medians of all rounds.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;
#[path = "../src/store/redis/scripts/mod.rs"]
#[allow(dead_code, reason = "leases are not renewed here")]
mod scripts;

use std::{
    io::{BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use test_kit::{RedisServer, ScriptCall, ScriptedServer, encode, read_reply};
use tokio::runtime::Runtime;
use tower_quota::{PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

use self::rounds::Side;

const USERS: u64 = 20_000;
const TOGETHER: usize = 32;
const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 1_000),
    QuotaPolicy::per_minute("minute", 10_000),
    QuotaPolicy::per_day("day", 500_000),
];

type Words = Vec<Vec<u8>>;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let server = RedisServer::start();
    let load = |source: String| server.command(&["SCRIPT", "LOAD", &source]).into_bytes();
    let (buckets, every_algorithm) = (load(scripts::buckets()), load(scripts::every_algorithm()));
    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("the server listens");
    for (name, policies, partitions, together) in [
        ("one bucket", 1, 1, 1),
        ("three buckets", 3, 1, 1),
        ("three buckets, 32 decisions in a call", 3, 1, TOGETHER),
        ("2 × three buckets, 32 decisions in a call", 3, 2, TOGETHER),
    ] {
        let calls = recorded(policies, partitions, together);
        server.command(&["FLUSHALL"]);
        let measure = |hash: &[u8]| {
            server.command(&["CONFIG", "RESETSTAT"]);
            send(&connection, &calls, hash);
            micros_per_call(&server) / together as f64
        };
        let mut sides = [
            Side::new("every algorithm", || measure(&every_algorithm)),
            Side::new("buckets", || measure(&buckets)),
        ];
        // A round that makes all users known and does not count.
        rounds::measure(1, &mut sides);
        let values = rounds::measure(rounds::setting("ROUNDS", 31), &mut sides);
        rounds::print(name, "us/decision", &sides, &values);
    }
}

/// The calls that a store sends for decisions about all users.
fn recorded(policies: usize, partitions: usize, together: usize) -> Vec<Words> {
    let calls = Arc::<Mutex<Vec<Words>>>::default();
    let record = {
        let calls = Arc::clone(&calls);
        move |call: ScriptCall| {
            let keys = std::str::from_utf8(&call.words[2])
                .ok()
                .and_then(|keys| keys.parse().ok());
            let keys: usize = keys.expect("a number of keys");
            let reply = call.reply(&vec![1.0; 1 + (2 + policies) * keys]);
            calls.lock().expect("nothing has panicked").push(call.words);
            reply
        }
    };
    let policies = PolicySet::new(POLICIES[..policies].iter().cloned()).expect("the policies are valid");
    let scope = Scope::new("scripts");
    let plans = (0..USERS).map(|user| {
        let partition = |kind| scope.partition(&PartitionKey::new(kind, user.to_le_bytes()));
        let plan = Plan::new(policies.clone(), partition("user"), 1);
        match partitions {
            1 => plan,
            _ => plan.and(policies.clone(), partition("account")),
        }
    });
    Runtime::new().expect("the runtime starts").block_on(async {
        let server = ScriptedServer::start(record).await;
        let store = RedisStore::builder(server.url()).decisions_per_call(together);
        let store = store.build().expect("the settings are valid");
        for decision in join_all(plans.map(|plan| store.decide(plan))).await {
            decision.expect("the server answers");
        }
    });
    let mut calls = std::mem::take(&mut *calls.lock().expect("nothing has panicked"));
    let keys = (together * partitions).to_string();
    calls.retain(|words| words[2] == keys.as_bytes());
    calls
}

/// Sends all calls with this script and waits for the replies.
fn send(mut connection: &TcpStream, calls: &[Words], hash: &[u8]) {
    let mut replies = BufReader::new(connection);
    for calls in calls.chunks(50) {
        let mut bytes = Vec::new();
        for words in calls {
            let own = words[2..].iter().map(Vec::as_slice);
            bytes.extend(encode(
                &[&b"EVALSHA"[..], hash].into_iter().chain(own).collect::<Vec<_>>(),
            ));
        }
        connection.write_all(&bytes).expect("the server reads");
        for _ in calls {
            let mut reply = Vec::new();
            read_reply(&mut replies, &mut reply).expect("the server answers");
            assert_eq!(reply[0], b'$', "{}", String::from_utf8_lossy(&reply));
        }
    }
}

fn micros_per_call(server: &RedisServer) -> f64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let micros = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")));
    micros.and_then(|micros| micros.parse().ok()).expect("a number")
}

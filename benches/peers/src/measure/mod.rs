//! The measurements, the same for every limiter.

mod closed;
mod server;
mod size;

use std::future::Future;

use serde_json::{Map, Value, json};
use test_kit::RedisServer;
use tokio::runtime::Runtime;

use self::server::Server;
use crate::{
    options::Options,
    peers::{self, Limiter, Peer, Windows, windows},
    results::outputs::rounded,
};

/// Limits that no user comes near.
const WIDE: Windows = windows(100, 1_000, 50_000);

/// Exhausts the shortest window. Where layers are stacked, it belongs to the outermost layer: the cheapest case for
/// them.
const SHORT_OF_SECONDS: Windows = windows(1, 100_000, 1_000_000);

/// Exhausts the longest window, which belongs to the innermost layer: the most expensive case.
const SHORT_OF_DAYS: Windows = windows(1_000_000, 10_000_000, 1);

#[derive(Debug)]
pub struct Bench<'a> {
    options: &'a Options,
    peers: Vec<&'a Peer>,
    runtime: Runtime,
    server: Server,
}

impl<'a> Bench<'a> {
    pub fn new(options: &'a Options, peers: Vec<&'a Peer>) -> Self {
        Self {
            options,
            peers,
            runtime: Runtime::new().expect("the runtime starts"),
            server: Server::new(RedisServer::start()),
        }
    }

    /// Measures all parts that are wanted, prints their tables, and returns the numbers for machines.
    pub fn run(&self) -> Value {
        let mut closed = Vec::new();
        if self.options.wants("allowed") {
            for tasks in [64, 512] {
                closed.extend(self.closed("All allowed", tasks, self.options.users, WIDE));
            }
        }
        if self.options.wants("rejected") {
            closed.extend(self.closed("One hot key, rejected by the second", 512, 1, SHORT_OF_SECONDS));
            closed.extend(self.closed("One hot key, rejected by the day", 512, 1, SHORT_OF_DAYS));
        }
        if self.options.wants("size") {
            self.sizes();
        }
        let version = peers::version(Some("tower-quota"));
        json!({
            "program": "peers", "schema": 1, "tower_quota_version": version,
            "rounds": self.options.rounds, "seconds_per_turn": rounded(self.options.length.as_secs_f64()),
            "users": self.options.users, "closed": closed,
        })
    }

    /// Connected to the one server, in the order in which they take turns.
    fn connect(&self, windows: Windows) -> Vec<(&'a Peer, Limiter)> {
        self.peers
            .iter()
            .map(|&peer| {
                let connected = self.runtime.block_on((peer.connect)(self.server.url(), windows));
                let limiter = connected.unwrap_or_else(|error| panic!("{}: {error}", peer.name));
                (peer, limiter)
            })
            .collect()
    }

    /// Every round has a turn for each limiter and begins with another one. One round before the others counts for
    /// nothing: connections are opened in it and scripts loaded.
    fn in_turns<T>(&self, title: &str, limiters: usize, mut turn: impl FnMut(usize) -> T) -> Vec<Vec<T>> {
        let mut results: Vec<Vec<T>> = (0..limiters).map(|_| Vec::new()).collect();
        for index in 0..limiters {
            self.server.flush();
            turn(index);
        }
        for round in 0..self.options.rounds {
            eprintln!("{title}: round {} of {}", round + 1, self.options.rounds);
            for index in (0..limiters).map(|place| (place + round) % limiters) {
                self.server.flush();
                results[index].push(turn(index));
            }
        }
        results
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

/// The fields of one object after the other, as one object.
fn joined(fields: impl IntoIterator<Item = Map<String, Value>>) -> Value {
    Value::Object(fields.into_iter().flatten().collect())
}

fn named(name: &str, version: &str) -> Map<String, Value> {
    Map::from_iter([("name".to_owned(), json!(name)), ("version".to_owned(), json!(version))])
}

//! The whole stack: an axum server on this machine, and `wrk` for its clients.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use tokio::net::TcpListener;

use super::{Bench, WIDE};
use crate::{
    peers::{self, Limiter},
    table::{self, Values},
};

const CONNECTIONS: u32 = 64;
const USERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/measure/users.lua");

struct Side {
    name: String,
    address: SocketAddr,
    /// Which side is tower-quota with the same store.
    rival: usize,
}

#[derive(Debug)]
struct Acquire {
    rate: f64,
    /// Answers that were not 200, if `wrk` has seen any.
    others: u64,
}

impl Bench<'_> {
    pub(super) fn http(&self) {
        if Command::new("wrk").arg("-v").output().is_err() {
            table::tell("\nWhole HTTP stack: not measured, wrk is not on the PATH");
            return;
        }
        let sides = self.serve_all();
        let turns = self.in_turns("HTTP", sides.len(), |index| self.http_turn(sides[index].address));
        let rates: Vec<_> = turns.iter().map(|turns| Values::of(turns, |turn| turn.rate)).collect();
        let rows: Vec<_> = sides
            .iter()
            .enumerate()
            .map(|(index, side)| {
                let own = &rates[index];
                vec![
                    side.name.clone(),
                    format!("{:.0}", own.median()),
                    own.over(&rates[0]).ratio(),
                    own.over(&rates[side.rival]).ratio(),
                    turns[index].iter().map(|turn| turn.others).sum::<u64>().to_string(),
                ]
            })
            .collect();
        let title = format!(
            "Whole HTTP stack: axum, wrk with {CONNECTIONS} connections, three windows, users: {}",
            self.options.users
        );
        let head = [
            "",
            "requests/s",
            "÷ no limiter (range)",
            "÷ tower-quota (range)",
            "not 200",
        ];
        table::print(&title, &head, &rows);
    }

    /// A server for each limiter: the one without, those in Redis, and those in memory.
    fn serve_all(&self) -> Vec<Side> {
        let _inside = self.runtime.enter();
        let in_redis = self.connect(WIDE);
        let in_memory = peers::all_local();
        let locals = in_memory.iter().enumerate();
        let mut locals = locals.filter(|(index, local)| self.options.includes(*index, local.name));
        let mut sides = Vec::new();
        let mut add = |name: String, limiter: &Limiter, rival| {
            let address = self.serve(limiter);
            sides.push(Side { name, address, rival });
        };
        if let Some((_, none)) = locals.next() {
            add(none.name.to_owned(), &(none.three)(WIDE), 2);
        }
        for (peer, limiter) in &in_redis {
            add(peer.name.to_owned(), limiter, 2);
        }
        for (_, local) in locals {
            let name = format!("{}, in memory", local.name);
            add(name, &(local.three)(WIDE), 1 + in_redis.len());
        }
        sides
    }

    fn serve(&self, limiter: &Limiter) -> SocketAddr {
        let listener = self.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let router = limiter.router.clone();
        self.runtime.spawn(async move { axum::serve(listener, router).await });
        address
    }

    fn http_turn(&self, address: SocketAddr) -> Acquire {
        // It takes whole seconds only.
        let seconds = self.options.length.as_secs().max(1);
        let output = Command::new("wrk")
            .args(["--threads", "1", "--connections", &CONNECTIONS.to_string()])
            .args(["--duration", &format!("{seconds}s"), "--script", USERS])
            .args([&format!("http://{address}/"), "--", &self.options.users.to_string()])
            .output()
            .expect("wrk starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        let after = |name: &str| printed.split_once(name)?.1.split_whitespace().next();
        Acquire {
            rate: after("Requests/sec:")
                .and_then(|rate| rate.parse().ok())
                .unwrap_or_else(|| panic!("wrk: {output:?}")),
            others: after("Non-2xx or 3xx responses:").map_or(0, |count| count.parse().unwrap_or(u64::MAX)),
        }
    }
}

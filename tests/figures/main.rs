//! The figures of `docs/outages.md`: what faults cost in real time, measured one after the other. `make outages` runs
//! the program, and `make test` does not, because the figures depend on the machine as much as on the crate.
//!
//! Prints one table, and ends with an error if a required bound is not met. `OUTAGES=quiet,distance` measures only
//! these parts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(clippy::disallowed_methods, reason = "these are figures in real time")]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]
#![allow(dead_code, reason = "each part uses some of what the tests have")]

#[path = "../../apps/load/main.rs"]
mod example;

#[path = "../outages/callers.rs"]
mod callers;
#[path = "../outages/fault.rs"]
mod fault;
#[path = "../outages/happening.rs"]
mod happening;
#[path = "../outages/harness.rs"]
mod harness;
#[path = "../outages/history.rs"]
mod history;
#[path = "../outages/load.rs"]
mod load;
#[path = "../outages/machine.rs"]
mod machine;
#[path = "../outages/record.rs"]
mod record;
#[path = "../outages/resolver.rs"]
mod resolver;
#[path = "../outages/scenario.rs"]
mod scenario;

mod distance;
mod faults;
mod migration;
mod names;
mod process;
mod quiet;
mod replies;
mod table;

use std::{env, process::ExitCode};

use table::Table;
use tokio::runtime::{self, Runtime};

/// A part measures something and adds rows.
type Part = fn(&Runtime, &mut Table);

const PARTS: [(&str, Part); 8] = [
    ("quiet", quiet::measure),
    ("distance", distance::measure),
    ("replies", replies::measure),
    ("starved", process::starved),
    ("resets", process::resets),
    ("migration", migration::measure),
    ("names", names::measure),
    ("faults", faults::measure),
];

fn main() -> ExitCode {
    let wanted = env::var("OUTAGES").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|one| one == name);
    let parts: Vec<_> = PARTS.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut table = Table::new();
    for (number, (name, part)) in (1..).zip(&parts) {
        table.progress(&format!("part {number} of {}: {name}", parts.len()));
        part(&runtime, &mut table);
    }
    print!("{table}");
    match parts.is_empty() || table.has_missed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

//! tower-quota beside other rate limiters for Tower that keep their counts in Redis, measured in turns in one run.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml
//!
//! See the README beside `Cargo.toml`.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod measure;
mod options;
mod peers;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod table;

use std::{env, process};

use self::{measure::Bench, options::Options, peers::Peer};

fn main() {
    let options = Options::parse(env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("{error}\n{}", options::USAGE);
        process::exit(2);
    });
    let peers = peers::all();
    let peers = peers.iter().enumerate();
    let peers: Vec<_> = peers
        .filter(|(index, peer)| options.includes(*index, peer.name))
        .map(|(_, peer)| peer)
        .collect();
    print_descriptions(&peers);
    println!(
        "\nRounds: {}, of {:?} for each limiter in each table of ratios. A ratio is the median over the rounds, with the \
         least and the most.",
        options.rounds, options.length
    );
    Bench::new(&options, peers).run();
}

fn print_descriptions(peers: &[&Peer]) {
    let rows = peers.iter().map(|peer| {
        let cells = [
            peer.name,
            peers::version(peer.package),
            peer.algorithm,
            peer.atomic,
            peer.fields,
            peer.failure,
        ];
        cells.map(str::to_owned).to_vec()
    });
    let head = [
        "",
        "version",
        "algorithm",
        "all or nothing",
        "fields",
        "without Redis (as it says)",
    ];
    table::print_text("What is compared", &head, &rows.collect::<Vec<_>>());
}

//! tower-quota beside other rate limiters for Tower that keep their counts in Redis, measured in turns in one run.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml
//!
//! See the README beside `Cargo.toml`.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod measure;
mod options;
mod peers;
#[path = "../../../examples/results/mod.rs"]
mod results;
mod table;

use std::{env, process};

use self::{measure::Bench, options::Options, peers::Peer};

fn main() {
    let options = Options::parse(env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("{error}\n{}", options::USAGE);
        process::exit(2);
    });
    if options.outputs.take_stdout() {
        table::leave_stdout();
    }
    let peers = peers::all();
    let peers = peers.iter().enumerate();
    let peers: Vec<_> = peers
        .filter(|(index, peer)| options.includes(*index, peer.name))
        .map(|(_, peer)| peer)
        .collect();
    print_descriptions(&peers);
    table::tell(format_args!(
        "\nRounds: {}, of {:?} for each limiter in each table of ratios. A ratio is the median over the rounds, with the \
         least and the most.",
        options.rounds, options.length
    ));
    let results = Bench::new(&options, peers).run();
    if let Err(error) = options.outputs.write("", &results) {
        eprintln!("{error}");
        process::exit(1);
    }
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

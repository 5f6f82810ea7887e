//! A load test of your own limits: what the layer adds to a request, and what it takes of Redis.
//!
//! ```sh
//! cargo run --release --example load -- --rate 30000 --seconds 30
//! cargo run --release --example load -- --mode rejection
//! cargo run --release --example load -- --mode outage
//! cargo run --release --example load -- --mode hot-key
//! cargo run --release --example load -- --rate 6000 --delay 40
//! cargo run --release --features metrics --example load -- --rate 60000
//! cargo run --release --example load -- --mode find
//! cargo run --release --example load -- --mode callers --users 10000000
//! ```
//!
//! `REDIS_URL` says where Redis is. Without it, a Redis without persistence is started on a free port and killed at the
//! end, however that comes: `$REDIS_SERVER`, else `redis-server` or `valkey-server` on the `PATH`.
//!
//! Four instances run in this process, each with a store, connections and a layer of its own around a service that
//! answers at once. The limits are in `instances.rs`: put your own there.
//!
//! Requests come as those of independent users do (a Poisson process, on a grid of a quarter of a millisecond): at moments
//! that are fixed in advance, whether or not earlier requests have been answered. From the moment at which a request is due
//! its time is counted, not from when it was sent. A generator or a server that does not keep up shows as latency and as
//! requests that were not answered in time; what was never sent counts with the time it had waited. So there is no
//! coordinated omission to correct afterwards.
//!
//! The same is done with the bare service first, for a second. What that shows is the generator's own lateness; the
//! difference of each percentile is what the layer adds. Then comes a second of warm-up that is not counted.
//!
//! With the feature `metrics`, the report says why requests were not decided.
//!
//! The test shows no network, and no more than one machine. Client, server and generator share the processors, and
//! all of them get slower when one gets more to do. Take the latencies to compare, on a machine that does nothing else,
//! and take the figures per decision to plan with.

#![allow(clippy::disallowed_methods, reason = "a load test takes the real time")]

mod callers;
mod conclusions;
mod failed_connections;
mod find;
pub(crate) mod generator;
mod instances;
mod measure;
pub(crate) mod options;
mod outage;
pub(crate) mod progress;
mod report;
mod server;
#[path = "../../tests/support/mod.rs"]
pub(crate) mod support;
pub(crate) mod tally;
mod undecided;
pub(crate) mod users;

use std::{env, error::Error, process::ExitCode, time::Duration};

use tokio::runtime::{self, Runtime};

use self::{
    options::{Asked, Mode, Options, USAGE},
    progress::Progress,
    server::Server,
    support::Proxy,
    undecided::Undecided,
};

pub(crate) fn main() -> ExitCode {
    let asked = Options::parse(env::args().skip(1), env::var("REDIS_URL").ok());
    let options = match asked {
        Ok(Asked::Help) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Run(options)) => options,
        Err(mistake) => {
            eprint!("{mistake}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The parts that every mode needs.
struct Test<'a> {
    options: &'a Options,
    server: &'a Server,
    /// The URL of the server for the instances.
    url: String,
    runtime: &'a Runtime,
    progress: Progress,
    undecided: Undecided,
}

/// A longer way to the server, if one is asked for.
fn delayed(options: &Options, server: &Server, runtime: &Runtime) -> Option<Proxy> {
    let server = server.own().filter(|_| options.delay > 0)?;
    let proxy = runtime.block_on(Proxy::start(server.port()));
    let round_trip = Duration::from_millis(options.delay);
    proxy.set_mode(support::Mode::Delay(round_trip / 2));
    Some(proxy)
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let server = Server::new(options.redis_url.as_deref());
    let delayed = delayed(options, &server, &runtime);
    let mut test = Test {
        options,
        server: &server,
        url: delayed.as_ref().map_or_else(|| server.url().to_owned(), Proxy::url),
        runtime: &runtime,
        progress: Progress::new(),
        #[cfg(feature = "metrics")]
        undecided: Undecided::count()?,
        #[cfg(not(feature = "metrics"))]
        undecided: Undecided::default(),
    };
    println!(
        "{}",
        report::Head {
            options,
            server: &server
        }
    );
    let result = match options.mode {
        Mode::Callers => callers::run(&mut test),
        Mode::Find => find::run(&mut test),
        Mode::Outage => outage::run(&mut test),
        Mode::HotKey | Mode::Normal | Mode::Rejection => measure::run(&mut test),
    };
    // Also after a mistake, so that no key stays in a Redis of yours.
    result.and(server.clean_up())
}

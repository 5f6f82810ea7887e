//! A load test of your own limits: what the layer adds to a request, and what it takes of Redis.
//!
//! ```sh
//! cargo run --release -p tower-quota-apps --bin load -- --rate 30000 --seconds 30
//! cargo run --release -p tower-quota-apps --bin load -- --mode rejection
//! cargo run --release -p tower-quota-apps --bin load -- --mode outage
//! cargo run --release -p tower-quota-apps --bin load -- --mode hot-key
//! cargo run --release -p tower-quota-apps --bin load -- --rate 6000 --delay 40
//! cargo run --release -p tower-quota-apps --features metrics --bin load -- --rate 60000
//! cargo run --release -p tower-quota-apps --bin load -- --mode find
//! cargo run --release -p tower-quota-apps --bin load -- --mode callers --users 10000000
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
//! After a second of warm-up, the bare service and the one with limits take turns, in up to seven rounds. The times of the
//! bare service are the generator's own lateness; the difference of each percentile, within each round, is what the layer
//! adds. Where the rounds differ from each other by more than that, the report says so in place of a figure.
//!
//! The report goes to stdout, progress to stderr. `--json FILE` writes the results for machines, `--svg FILE` a picture.
//!
//! With the feature `metrics`, the report says why requests were not decided.
//!
//! The test shows no network, and no more than one machine. Client, server and generator share the processors, and
//! all of them get slower when one gets more to do. Take the latencies to compare, on a machine that does nothing else,
//! and take the figures per decision to plan with.

#![allow(clippy::disallowed_methods, reason = "a load test takes the real time")]

mod callers;
mod conclusions;
mod difference;
mod failed_connections;
mod find;
pub(crate) mod generator;
mod instances;
mod measure;
pub(crate) mod options;
mod outage;
mod report;
#[path = "../../examples/results/mod.rs"]
mod results;
mod server;
pub(crate) mod tally;
mod undecided;
pub(crate) mod users;

use std::{env, error::Error, fmt::Display, process::ExitCode, time::Duration};

use serde_json::{Value, json};
use test_kit::{Mode as ProxyMode, Proxy};
use tokio::runtime::{self, Runtime};

use self::{
    instances::INSTANCES,
    options::{Asked, Mode, Options},
    results::{outputs::rounded, progress::Progress},
    server::Server,
    undecided::Undecided,
};

pub(crate) fn main() -> ExitCode {
    let asked = Options::parse(env::args().skip(1), env::var("REDIS_URL").ok());
    let options = match asked {
        Ok(Asked::Help) => {
            print!("{}", options::usage());
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Run(options)) => options,
        Err(mistake) => {
            eprint!("{mistake}\n\n{}", options::usage());
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
    /// The time that the whole test takes; zero if it cannot be known.
    expected: Duration,
    undecided: Undecided,
}

impl Test<'_> {
    fn show(&mut self, stage: &str, found: &dyn Display) {
        match self.expected.is_zero() {
            true => self.progress.show(stage, None, found),
            false => self.progress.show_of(stage, self.expected, found),
        }
    }
}

/// The results of a mode, as text and as fields for machines.
struct Found {
    text: String,
    json: Value,
}

/// The settings and the results of the mode, for machines.
fn with_settings(options: &Options, found: Value) -> Value {
    let policies = instances::policies(options).into_iter().map(|policy| {
        let window = policy.window().map_or(0, |window| window.as_secs());
        json!({"name": policy.name(), "quota": policy.quota(), "window_seconds": window})
    });
    let mut all = json!({
        "program": "load", "schema": 1, "mode": options.mode.name(), "rate_per_second": options.rate,
        "seconds": options.seconds, "users": options.users, "skew": rounded(options.skew), "round_trip_delay_ms": options.delay,
        "decisions_per_call_at_most": options.decisions_per_call, "instances": INSTANCES,
        "policies": policies.collect::<Vec<_>>(),
    });
    if let (Value::Object(all), Value::Object(found)) = (&mut all, found) {
        all.extend(found);
    }
    all
}

/// A longer way to the server, if one is asked for.
fn delayed(options: &Options, server: &Server, runtime: &Runtime) -> Option<Proxy> {
    let server = server.own().filter(|_| options.delay > 0)?;
    let proxy = runtime.block_on(Proxy::start(server.port()));
    let round_trip = Duration::from_millis(options.delay);
    proxy.set_mode(ProxyMode::Delay(round_trip / 2));
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
        expected: Duration::ZERO,
        #[cfg(feature = "metrics")]
        undecided: Undecided::count()?,
        #[cfg(not(feature = "metrics"))]
        undecided: Undecided::default(),
    };
    let head = report::Head {
        options,
        server: &server,
    };
    if let Some(own) = server.own() {
        eprintln!("Redis started for this on port {}", own.port());
    }
    let found = match options.mode {
        Mode::Callers => callers::run(&mut test),
        Mode::Find => find::run(&mut test),
        Mode::Outage => outage::run(&mut test),
        Mode::HotKey | Mode::Normal | Mode::Rejection => measure::run(&mut test),
    };
    test.progress.clear();
    // Also after a mistake, so that no key stays in a Redis of yours.
    server.clean_up()?;
    let Found { text, json } = found?;
    options
        .outputs
        .write(&format!("{head}\n{text}"), &with_settings(options, json))
}

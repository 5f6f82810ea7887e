//! A load test of your limits, which measures the added latency and the load on Redis.
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
//! `REDIS_URL` is the URL of Redis. Without it, the program runs `$REDIS_SERVER`, or else `redis-server` or
//! `valkey-server` on the `PATH`, on a free port and without persistence. The program kills this server at the end,
//! even after a failure.
//!
//! Four instances run in this process, each with a separate store, connections and layer around a service that responds
//! immediately. The limits are in `instances.rs`: replace them with yours.
//!
//! Requests arrive as if from independent users (a Poisson process on a grid of a quarter of a millisecond). Their due
//! times are fixed beforehand and do not depend on earlier responses. Latency is measured from the due time, not from
//! the time of sending. A generator or server that cannot keep up therefore increases the latency and the number of
//! late responses; unsent requests count with their waiting time. The results therefore need no correction for
//! coordinated omission.
//!
//! After a warm-up of one second, the bare service and the service with limits alternate in up to seven rounds. The
//! latency of the bare service is the lateness of the generator. The difference of each percentile within a round is
//! the latency added by the layer. If the rounds differ from each other by more than this difference, the report states
//! so instead of giving a figure.
//!
//! The report is written to stdout, and progress to stderr. `--json FILE` writes machine-readable results, and
//! `--svg FILE` a chart.
//!
//! With the feature `metrics`, the report includes the reasons for undecided requests.
//!
//! The test covers a single machine without a network. Client, server and generator share the CPUs, so load on one
//! slows down the others. Use the latencies for comparisons on an otherwise idle machine, and the figures per decision
//! for planning.

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

struct Test<'a> {
    options: &'a Options,
    server: &'a Server,
    /// The URL through which the instances connect.
    url: String,
    runtime: &'a Runtime,
    progress: Progress,
    /// The duration of the whole test, or zero if unknown.
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

/// The results of a mode, as text and as JSON.
struct Found {
    text: String,
    json: Value,
}

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

/// Adds the configured network delay.
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
    // Even after a failure, so that no keys remain in your Redis.
    server.clean_up()?;
    let Found { text, json } = found?;
    options
        .outputs
        .write(&format!("{head}\n{text}"), &with_settings(options, json))
}

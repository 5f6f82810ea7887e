//! The time of the first request after a start, a change of rules, and a failover.
//!
//!     cargo bench -p tower-quota-tests --bench first_requests
//!
//! All layers have the default deadline, 50 ms. The tables show medians and maxima of `ROUNDS` (31) rounds in
//! milliseconds, the median of the later requests, and how many first requests were undecided, so that the failure mode
//! admitted them. The sides of a table are measured in turns.
//!
//! - *Start*: each round starts this program again, with an empty script cache in Redis. The first request is sent as
//!   soon as the layer is built; 100 ms later, when the connections are open; or after `ready`. The time does not
//!   include the start of the process, this wait and `ready`.
//! - *Change of rules*: `RulesHandle::replace` on a layer in use, with other quotas, or with another algorithm, whose
//!   script is missing in Redis.
//! - *Failover*: `FAILOVERS` (5) times, new servers and three sentinels that declare a primary down after 500 ms. A
//!   request is due every millisecond, and does not wait for the earlier ones. Times begin when the primary has ended
//!   or hangs, or when a sentinel has accepted the command `SENTINEL FAILOVER`.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

#[path = "first_requests/failover.rs"]
mod failover;
mod rounds;

use std::{
    env,
    process::Command,
    time::{Duration, Instant},
};

use test_kit::{RedisServer, load::outcome};
use tokio::{runtime::Runtime, time::sleep};
use tower_quota::{Algorithm, MemoryStore, Outcome, QuotaPolicy, RateLimitLayer, RedisStore, Rules, Store, key};

use self::rounds::Values;

const LATER: usize = 100;
/// The variables of a process that only sends requests after a start.
const START: &str = "FIRST_REQUESTS_START";
const URL: &str = "FIRST_REQUESTS_URL";

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    if let Ok(start) = env::var(START) {
        println!("{}", Requests::after_start(&start).to_line());
        return;
    }
    let (server, runtime) = (RedisServer::start(), Runtime::new().expect("the runtime starts"));
    starts(&server);
    changes(&server, &runtime);
    failover::print(&runtime);
}

/// The first request and the later ones, in milliseconds.
struct Requests {
    first: f64,
    /// The median.
    later: f64,
    is_undecided: bool,
}

impl Requests {
    async fn send(layer: &RateLimitLayer) -> Self {
        let (first, outcome) = timed(layer).await;
        let mut later = Vec::with_capacity(LATER);
        for _ in 0..LATER {
            later.push(timed(layer).await.0);
        }
        Self {
            first,
            later: Values::from_iter(later).median(),
            is_undecided: outcome == Outcome::FailedOpen,
        }
    }

    /// Runs in a process that has done nothing before.
    fn after_start(start: &str) -> Self {
        let url = env::var(URL).unwrap_or_default();
        let start = start.to_owned();
        let runtime = Runtime::new().expect("the runtime starts");
        let requests = runtime.spawn(async move {
            if start == "memory" {
                return Self::send(&layer(MemoryStore::new())).await;
            }
            let layer = layer(RedisStore::new(url).expect("the URL is valid"));
            match &*start {
                "later" => sleep(Duration::from_millis(100)).await,
                "ready" => {
                    let report = layer.limiter().ready(Duration::from_secs(5)).await;
                    report.expect("the server is ready");
                }
                _ => {}
            }
            Self::send(&layer).await
        });
        runtime.block_on(requests).expect("no request panics")
    }

    fn to_line(&self) -> String {
        format!("{} {} {}", self.first, self.later, u8::from(self.is_undecided))
    }

    fn from_line(line: &str) -> Self {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        let [first, later, undecided] = numbers[..] else {
            panic!("{line:?} is not the result of a process")
        };
        Self {
            first,
            later,
            is_undecided: undecided > 0.0,
        }
    }
}

/// Sends a request, and returns its time in milliseconds.
async fn timed(layer: &RateLimitLayer) -> (f64, Outcome) {
    let start = Instant::now();
    let outcome = outcome(layer, "alice").await;
    (start.elapsed().as_secs_f64() * 1e3, outcome)
}

fn daily(quota: u64, algorithm: Algorithm) -> Rules {
    Rules::new().policy(QuotaPolicy::per_day("daily", quota).with_algorithm(algorithm))
}

fn layer(store: impl Store) -> RateLimitLayer {
    RateLimitLayer::builder(store)
        .scope("first")
        .key(key::header("x-user-id"))
        .rules(daily(1_000_000, Algorithm::TokenBucket))
        .build()
        .expect("the settings are valid")
}

/// Measures one round, given its number.
type Measure<'a> = Box<dyn Fn(usize) -> Requests + 'a>;
type Side<'a> = (&'static str, Measure<'a>);

fn table(title: &str, sides: &[Side<'_>]) {
    let mut all: Vec<Vec<Requests>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds::setting("ROUNDS", 31) {
        for ((_, measure), own) in sides.iter().zip(&mut all) {
            own.push(measure(round));
        }
    }
    println!(
        "\n{title:44} {:>12} {:>12} {:>12} {:>10}",
        "median", "maximum", "later", "undecided"
    );
    for ((name, _), own) in sides.iter().zip(&all) {
        let first: Values = own.iter().map(|requests| requests.first).collect();
        let later: Values = own.iter().map(|requests| requests.later).collect();
        let undecided = own.iter().filter(|requests| requests.is_undecided).count();
        println!(
            "  {name:42} {:12.3} {:12.3} {:12.3} {undecided:10}",
            first.median(),
            first.most(),
            later.median()
        );
    }
}

fn forget_scripts(server: &RedisServer) {
    assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
}

fn starts(server: &RedisServer) {
    let program = env::current_exe().expect("this program has a path");
    let start = |name| -> Measure<'_> {
        let (program, url) = (program.clone(), server.url());
        Box::new(move |_| {
            forget_scripts(server);
            let run = Command::new(&program)
                .arg("--bench")
                .env(START, name)
                .env(URL, &url)
                .output();
            let run = run.expect("the program starts");
            Requests::from_line(&String::from_utf8_lossy(&run.stdout))
        })
    };
    table(
        "first request after a start, ms",
        &[
            ("MemoryStore", start("memory")),
            ("RedisStore, at once", start("now")),
            ("RedisStore, 100 ms later", start("later")),
            ("RedisStore, after ready", start("ready")),
        ],
    );
}

fn changes(server: &RedisServer, runtime: &Runtime) {
    let memory = || layer(MemoryStore::new());
    let redis = || runtime.block_on(async { layer(RedisStore::new(server.url()).expect("the URL is valid")) });
    let side = |layer: RateLimitLayer, rules: fn(usize) -> Rules, loses_script: bool| -> Measure<'_> {
        Box::new(move |round| {
            // So that the layer is in use.
            runtime.block_on(Requests::send(&layer));
            if loses_script {
                forget_scripts(server);
            }
            layer
                .limiter()
                .rules()
                .replace(rules(round))
                .expect("the rules are valid");
            runtime.block_on(Requests::send(&layer))
        })
    };
    let quotas = |round| daily([500_000, 250_000][round % 2], Algorithm::TokenBucket);
    let algorithm = |round| {
        daily(
            1_000_000,
            [Algorithm::SlidingWindowCounter, Algorithm::FixedWindow][round % 2],
        )
    };
    table(
        "first request after a change of rules, ms",
        &[
            ("MemoryStore, other quotas", side(memory(), quotas, false)),
            ("MemoryStore, another algorithm", side(memory(), algorithm, false)),
            ("RedisStore, other quotas", side(redis(), quotas, false)),
            ("RedisStore, another algorithm", side(redis(), algorithm, true)),
        ],
    );
}

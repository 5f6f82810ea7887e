//! Applies each algorithm to the same requests, and prints and draws the results.
//!
//! ```sh
//! cargo run --example algorithms            # the chart goes to docs/algorithms.svg
//! cargo run --example algorithms chart.svg  # or where you want it
//! ```
//!
//! Uses a memory store with a manual clock, so the results are deterministic.

pub(crate) mod results;

use std::{
    env,
    error::Error,
    fmt::{self, Write},
    fs,
    time::Duration,
};

use self::results::svg::Svg;
use tower_quota::{
    Algorithm, MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store,
    clock::{Clock, Timestamp},
};

/// In milliseconds, like all times in this file.
const WINDOW: u64 = 10_000;
const QUOTA: u64 = 10;

const ALGORITHMS: [(&str, Algorithm); 7] = [
    ("token bucket", Algorithm::TokenBucket),
    ("strict token bucket", Algorithm::StrictTokenBucket),
    ("fixed window", Algorithm::FixedWindow),
    ("sliding window counter", Algorithm::SlidingWindowCounter),
    ("sliding window log", Algorithm::SlidingWindowLog),
    ("leaky bucket, meter", Algorithm::LeakyBucketMeter),
    (
        "leaky bucket, queue of 5",
        Algorithm::LeakyBucketQueue { max_waiting: 5 },
    ),
];

/// Bursts just before and after a window boundary, a stream at twice the rate, a pause, and a burst.
const PHASES: [Phase; 4] = [
    Phase::new("bursts of 10", 8_000, 10, 200),
    Phase::new("", 10_200, 10, 200),
    Phase::new("2 per second, twice the rate", 16_000, 30, 500),
    Phase::new("16 after a pause", 41_000, 16, 200),
];

/// The period in the chart.
const TIMES: std::ops::Range<u64> = 6_000..50_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rows = rows().await?;
    print!("{}", text(&rows)?);
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/algorithms.svg");
    let path = env::args().nth(1).unwrap_or_else(|| default.to_owned());
    fs::write(&path, svg(&rows))?;
    println!("\nThe chart is in {path}");
    Ok(())
}

struct Phase {
    /// The heading in the chart. Empty if the heading of the previous phase covers both phases.
    name: &'static str,
    from: u64,
    requests: u64,
    distance: u64,
}

impl Phase {
    const fn new(name: &'static str, from: u64, requests: u64, distance: u64) -> Self {
        Self {
            name,
            from,
            requests,
            distance,
        }
    }

    fn arrivals(&self) -> impl Iterator<Item = u64> {
        (0..self.requests).map(|number| self.from + number * self.distance)
    }
}

/// A request. A rejected request has no departure.
#[derive(Debug)]
struct Request {
    arrival: u64,
    departure: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Row {
    name: &'static str,
    requests: Vec<Request>,
}

/// Returns one row for the incoming requests, and one for each algorithm.
pub(crate) async fn rows() -> Result<Vec<Row>, Box<dyn Error>> {
    let arrivals = || PHASES.iter().flat_map(Phase::arrivals);
    let as_they_come = arrivals().map(|arrival| Request {
        arrival,
        departure: Some(arrival),
    });
    let mut rows = vec![Row {
        name: "requests",
        requests: as_they_come.collect(),
    }];
    for (name, algorithm) in ALGORITHMS {
        let requests = play(algorithm, arrivals()).await?;
        rows.push(Row { name, requests });
    }
    Ok(rows)
}

async fn play(algorithm: Algorithm, arrivals: impl Iterator<Item = u64>) -> Result<Vec<Request>, Box<dyn Error>> {
    let clock = Clock::manual(Timestamp::default());
    let store = MemoryStore::builder().clock(clock.clone()).build()?;
    let policy = QuotaPolicy::new("example", QUOTA, Duration::from_millis(WINDOW)).with_algorithm(algorithm);
    let policies = PolicySet::new([policy])?;
    let alice = Scope::new("example").partition(&PartitionKey::new("user", "alice"));

    let mut requests = Vec::new();
    for arrival in arrivals {
        clock.set(Timestamp::from_micros(arrival * 1_000));
        let decision = store.decide(Plan::new(policies.clone(), alice, 1)).await?;
        let departure = arrival + decision.delay().as_millis() as u64;
        requests.push(Request {
            arrival,
            departure: (decision.outcome() == Outcome::Allowed).then_some(departure),
        });
    }
    Ok(requests)
}

impl Row {
    fn departures(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().filter_map(|request| request.departure)
    }

    fn passed(&self) -> usize {
        self.departures().count()
    }

    fn rejected(&self) -> usize {
        self.requests.len() - self.passed()
    }

    /// Returns the maximum number of departures in any interval of one window.
    fn most_in_a_window(&self) -> usize {
        let in_window_from = |from| move |departure: &u64| (from..from + WINDOW).contains(departure);
        let counts = self
            .departures()
            .map(|from| self.departures().filter(in_window_from(from)).count());
        counts.max().unwrap_or(0)
    }

    fn longest_wait(&self) -> u64 {
        let waits = self
            .requests
            .iter()
            .filter_map(|request| Some(request.departure? - request.arrival));
        waits.max().unwrap_or(0)
    }
}

/// Formats a line for each row, and a table.
fn text(rows: &[Row]) -> Result<String, fmt::Error> {
    /// The time per character.
    const STEP: u64 = 500;

    let mut out = format!("{QUOTA} per {} s. A character is half a second:\n", WINDOW / 1_000);
    out.push_str("how many departed, x if requests came and all were rejected, | where a window begins\n\n");
    for row in rows {
        write!(out, "{:24} ", row.name)?;
        for from in TIMES.step_by(STEP as usize) {
            let is_now = |moment: &u64| (from..from + STEP).contains(moment);
            let departed = row.departures().filter(is_now).count();
            let has_arrivals = row.requests.iter().any(|request| is_now(&request.arrival));
            match (departed, has_arrivals) {
                (0, true) => out.push('x'),
                (0, false) if from % WINDOW == 0 => out.push('|'),
                (0, false) => out.push('.'),
                (departed, _) => write!(out, "{departed}")?,
            }
        }
        out.push('\n');
    }
    writeln!(out, "\n{:24} passed  rejected  most in any 10 s  longest wait", "")?;
    for row in rows {
        let (passed, rejected, most) = (row.passed(), row.rejected(), row.most_in_a_window());
        let wait = row.longest_wait() as f64 / 1_000.0;
        writeln!(
            out,
            "{:24} {passed:6}  {rejected:7}  {most:16}  {wait:10.1} s",
            row.name
        )?;
    }
    Ok(out)
}

// The chart.

const WIDTH: usize = 860;
/// In pixels: the vertical position of the first row, and the distance between rows.
const FIRST_LINE: usize = 62;
const ROW: usize = 38;
/// In pixels: the right edges of the columns.
const PASSED: f64 = 772.0;
const MOST: f64 = 858.0;

const STYLE: &str = "\
.passed { stroke: #2f81f7 }
.rejected { stroke: #e5533d }
.waiting { stroke: #2f81f7; stroke-width: .7 }";

pub(crate) fn svg(rows: &[Row]) -> String {
    let bottom = FIRST_LINE + (rows.len() - 1) * ROW + 16;
    let mut chart = Chart::default();
    chart.frame(bottom);
    for (index, row) in rows.iter().enumerate() {
        let line = FIRST_LINE + index * ROW;
        chart.text("", 0.0, line - 3, row.name);
        chart.path("line", &format!("M{} {line}H{}", x(TIMES.start), x(TIMES.end)));
        chart.requests(row, line, if index == 0 { "arrived" } else { "passed" });
        if index == 0 {
            chart.text("note end", PASSED, line - 3, &format!("of {}", row.passed()));
        } else {
            chart.numbers(row, line - 3);
        }
    }
    chart.legend(bottom + 48);
    let label = "Which of the same requests each algorithm lets pass";
    chart.0.finish("algorithms-chart", (WIDTH, bottom + 56), label, STYLE)
}

/// Returns the horizontal position of a time.
fn x(moment: u64) -> f64 {
    174.0 + (moment - TIMES.start) as f64 / 80.0
}

#[derive(Default)]
struct Chart(Svg);

impl Chart {
    fn path(&mut self, class: &str, path: &str) {
        self.0.path(class, path);
    }

    fn text(&mut self, class: &str, x: f64, y: usize, text: &str) {
        self.0.text(class, x, y as f64, text);
    }

    /// Draws the headings, the time axis and the window boundaries.
    fn frame(&mut self, bottom: usize) {
        for Phase { name, from, .. } in PHASES.iter().filter(|phase| !phase.name.is_empty()) {
            self.text("note", x(*from), 22, name);
        }
        self.text("note end", PASSED, 22, "passed");
        self.text("note end", MOST, 22, "most in 10 s");
        for border in (TIMES.start..=TIMES.end).filter(|moment| moment % WINDOW == 0) {
            self.path("border", &format!("M{} 32V{bottom}", x(border)));
            self.text("note center", x(border), bottom + 16, &format!("{} s", border / 1_000));
        }
        self.path("line", &format!("M{} {bottom}H{}", x(TIMES.start), x(TIMES.end)));
    }

    /// Draws a tick upwards for each departure and a short tick downwards for each rejection. Queued requests rise to
    /// their departure.
    fn requests(&mut self, row: &Row, line: usize, class: &str) {
        let (mut passed, mut rejected, mut waiting) = (String::new(), String::new(), String::new());
        for Request { arrival, departure } in &row.requests {
            let from = x(*arrival);
            let Some(to) = departure.map(x) else {
                rejected += &format!("M{from} {}v6", line + 2);
                continue;
            };
            passed += &format!("M{to} {line}v-17");
            if to > from {
                waiting += &format!("M{from} {line}L{to} {}", line - 17);
            }
        }
        self.path("waiting", &waiting);
        self.path(class, &passed);
        self.path("rejected", &rejected);
    }

    /// Draws the numbers at the end of a row, and highlights those above the quota.
    fn numbers(&mut self, row: &Row, y: usize) {
        let most = row.most_in_a_window();
        let class = if most as u64 > QUOTA { "end above" } else { "end" };
        self.text("end", PASSED, y, &row.passed().to_string());
        self.text(class, MOST, y, &most.to_string());
    }

    fn legend(&mut self, y: usize) {
        self.text("note", 0.0, y, &format!("quota: {QUOTA} per 10 s"));
        for (x, class, path, text) in [
            (175, "passed", "v-14", "passes"),
            (250, "rejected", "m0-7v6", "rejected"),
            (330, "waiting", "l14-14", "waits, then passes"),
            (484, "border", "v-14", "a window begins"),
        ] {
            self.path(class, &format!("M{x} {}{path}", y + 2));
            let after = if class == "waiting" { 22.0 } else { 8.0 };
            self.text("note", f64::from(x) + after, y, text);
        }
        self.path("passed", &format!("M344 {}v-14", y + 2));
    }
}

//! The results of one variant.

use std::{fmt, time::Duration};

use serde_json::{Value, json};
use tower_quota::Outcome;

use super::{
    callers::{REGIONS, WINDOW},
    fleet::Fleet,
    results::outputs::rounded,
};

pub(crate) const HEAD: &str = "\
| | calls a second | at the busiest Redis | do not wait | wait p50 | wait p99 | over | unused | uncounted |
|---|---|---|---|---|---|---|---|---|
";

pub(crate) struct Report {
    pub(crate) requests: u64,
    pub(crate) uncounted: u64,
    pub(crate) over: u64,
    pub(crate) over_of: u64,
    pub(crate) unused: u64,
    pub(crate) unused_of: u64,
    calls: [u64; REGIONS],
    /// Requests of busy callers by the milliseconds that they have waited.
    waits: Vec<u64>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            uncounted: 0,
            over: 0,
            over_of: 0,
            unused: 0,
            unused_of: 0,
            calls: [0; REGIONS],
            waits: vec![0; 2_000],
        }
    }

    /// A request of a busy caller was answered.
    pub(crate) fn answered(&mut self, outcome: Outcome, wait: Duration) {
        self.requests += 1;
        self.uncounted += u64::from(outcome == Outcome::FailedOpen);
        let last = self.waits.len() - 1;
        self.waits[last.min(wait.as_millis() as usize)] += 1;
    }

    pub(crate) fn add_calls(&mut self, fleet: &Fleet) {
        for (store, calls) in fleet.calls() {
            self.calls[store] += calls;
        }
    }

    /// The least number of milliseconds in which this part of the busy callers' requests was decided.
    fn wait(&self, part: f64) -> usize {
        let wanted = self.waits.iter().sum::<u64>() as f64 * part;
        let mut so_far = 0;
        let reached = self.waits.iter().position(|count| {
            so_far += count;
            so_far as f64 >= wanted
        });
        reached.unwrap_or(self.waits.len())
    }

    /// A row of the table.
    pub(crate) fn row(&self, name: &str) -> String {
        let Self {
            calls, over, unused, ..
        } = self;
        let [calls, busiest] = [calls.iter().sum(), calls.iter().max().copied().unwrap_or(0)].map(a_second);
        format!(
            "| {name} | {calls} | {busiest} | {:.1} % | {} ms | {} ms | {:.1} % | {:.1} % | {:.2} % |\n",
            percent(self.waits[0], self.waits.iter().sum()),
            self.wait(0.5),
            self.wait(0.99),
            percent(*over, self.over_of),
            percent(*unused, self.unused_of),
            percent(self.uncounted, self.requests),
        )
    }

    /// The same for machines.
    pub(crate) fn json(&self, name: &str) -> Value {
        json!({
            "name": name, "requests": self.requests,
            "calls_per_second": a_second(self.calls.iter().sum()),
            "calls_per_second_at_the_busiest": a_second(self.calls.iter().max().copied().unwrap_or(0)),
            "without_wait_percent": rounded(percent(self.waits[0], self.waits.iter().sum())),
            "wait_p50_ms": self.wait(0.5), "wait_p99_ms": self.wait(0.99),
            "over_quota_percent": rounded(percent(self.over, self.over_of)),
            "unused_quota_percent": rounded(percent(self.unused, self.unused_of)),
            "uncounted_percent": rounded(percent(self.uncounted, self.requests)),
        })
    }
}

/// So far.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: u64 = self.calls.iter().sum();
        let Self {
            requests,
            over,
            unused,
            uncounted,
            ..
        } = self;
        write!(
            f,
            "{requests} requests, {calls} calls, {over} over, {unused} unused, {uncounted} uncounted"
        )
    }
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn a_second(calls: u64) -> u64 {
    calls / WINDOW.as_secs()
}

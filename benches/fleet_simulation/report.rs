//! The results of one variant.

use std::time::{Duration, Instant};

use tower_quota::Outcome;

use super::{
    callers::{REGIONS, WINDOW},
    fleet::Fleet,
};

pub(crate) const HEAD: &str = "\
| | calls a second | at the busiest Redis | do not wait | wait p50 | wait p99 | over | unused | uncounted |
|---|---|---|---|---|---|---|---|---|";

pub(crate) struct Report {
    what: String,
    shown: Instant,
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
    pub(crate) fn new(what: String) -> Self {
        Self {
            what,
            shown: Instant::now(),
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

    /// A line each two seconds.
    pub(crate) fn progress(&mut self, how_far: &str) {
        if self.shown.elapsed() < Duration::from_secs(2) && how_far != "done" {
            return;
        }
        self.shown = Instant::now();
        eprintln!(
            "{}: {how_far}; so far {} requests, {} calls, {} over, {} unused, {} uncounted",
            self.what,
            self.requests,
            self.calls.iter().sum::<u64>(),
            self.over,
            self.unused,
            self.uncounted
        );
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
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let a_second = |calls: u64| calls / WINDOW.as_secs();
        let busiest = self.calls.iter().max().copied().unwrap_or(0);
        format!(
            "| {name} | {} | {} | {:.1} % | {} ms | {} ms | {:.1} % | {:.1} % | {:.2} % |",
            a_second(self.calls.iter().sum()),
            a_second(busiest),
            percent(self.waits[0], self.waits.iter().sum()),
            self.wait(0.5),
            self.wait(0.99),
            percent(self.over, self.over_of),
            percent(self.unused, self.unused_of),
            percent(self.uncounted, self.requests),
        )
    }
}

//! The measured figures, beside the wanted ones.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use tokio::runtime::Runtime;

pub struct Table {
    began: Instant,
    rows: Vec<Row>,
}

struct Row {
    what: String,
    measured: String,
    wanted: String,
    is_met: bool,
}

impl Table {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            rows: Vec::new(),
        }
    }

    pub fn progress(&self, what: &str) {
        eprintln!("{:4.0} s  {what}", self.began.elapsed().as_secs_f64());
    }

    pub fn add(
        &mut self,
        what: impl Into<String>,
        measured: impl Into<String>,
        wanted: impl Into<String>,
        is_met: bool,
    ) {
        let row = Row {
            what: what.into(),
            measured: measured.into(),
            wanted: wanted.into(),
            is_met,
        };
        let mark = if row.is_met { "" } else { "  MISSED" };
        self.progress(&format!(
            "  {}: {} (wanted: {}){mark}",
            row.what, row.measured, row.wanted
        ));
        self.rows.push(row);
    }

    /// Runs it, and adds a row of what it has found, or of why it has panicked.
    pub fn run<F>(&mut self, runtime: &Runtime, what: &str, wanted: &str, measuring: F)
    where
        F: Future<Output = (String, bool)>,
    {
        self.progress(&format!("  {what} …"));
        match catch_unwind(AssertUnwindSafe(|| runtime.block_on(measuring))) {
            Ok((measured, is_met)) => self.add(what, measured, wanted, is_met),
            Err(_) => self.add(what, "an assertion has failed, see above", wanted, false),
        }
    }

    pub fn has_missed(&self) -> bool {
        self.rows.iter().any(|row| !row.is_met)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | measured | wanted | |")?;
        writeln!(f, "|---|---|---|---|")?;
        for Row {
            what,
            measured,
            wanted,
            is_met,
        } in &self.rows
        {
            let mark = if *is_met { "met" } else { "**missed**" };
            writeln!(f, "| {what} | {measured} | {wanted} | {mark} |")?;
        }
        let missed = self.rows.iter().filter(|row| !row.is_met).count();
        let took = self.began.elapsed().as_secs();
        writeln!(f, "\n{} rows in {took} s, {missed} bounds missed", self.rows.len())
    }
}

pub fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

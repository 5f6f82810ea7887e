//! A line for each second: one line that changes on a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use super::{report::milliseconds, tally::Tally};

pub(crate) struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// `time` after the start, and what the last `length` brought.
    pub(crate) fn show(&mut self, what: &str, time: Duration, length: Duration, tally: &Tally) {
        let line = format!(
            "{what:12} {:>4.0} s {:>8.0}/s  p99 {} ms  rejected {}  failed open {}",
            time.as_secs_f64(),
            tally.answered() as f64 / length.as_secs_f64(),
            milliseconds(tally.latencies().percentile(99.0)).trim_start(),
            tally.rejected.count(),
            tally.failed_open.count(),
        );
        self.write(&line);
    }

    /// Leaves the terminal to what comes next.
    pub(crate) fn clear(&mut self) {
        if self.is_terminal {
            self.write("");
        }
    }

    /// A closed output is no reason to stop the test.
    fn write(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        let _ = match self.is_terminal {
            true => write!(stderr, "\r{line}\x1b[K").and_then(|()| stderr.flush()),
            false => writeln!(stderr, "{line}"),
        };
    }
}

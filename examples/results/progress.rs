//! Progress on stderr: the current stage, the completed part, and intermediate results. On a terminal, a single line is
//! updated; in a file, a line is appended every few seconds.

#![allow(clippy::disallowed_methods, reason = "progress is in real time")]

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// The interval between appended lines.
const PAUSE: Duration = Duration::from_secs(5);
/// The interval between updates of a line.
const SHORT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    lines: Lines,
    width: usize,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        Self {
            began: Instant::now(),
            lines: Lines::new(io::stderr().is_terminal()),
            width: columns.unwrap_or(120),
        }
    }

    /// Shows the stage, the completed part and the intermediate results, unless a line was shown recently.
    pub(crate) fn show(&mut self, stage: &str, part: Option<f64>, found: &dyn Display) {
        if let Some(line) = self.lines.next(self.began.elapsed(), stage, part, found) {
            self.write(&line);
        }
    }

    /// Like `show`, for a known total duration.
    pub(crate) fn show_of(&mut self, stage: &str, expected: Duration, found: &dyn Display) {
        let part = self.began.elapsed().as_secs_f64() / expected.as_secs_f64().max(0.001);
        self.show(stage, Some(part), found);
    }

    /// Clears the line, so that other output can follow.
    pub(crate) fn clear(&mut self) {
        if self.lines.is_terminal && self.lines.last.take().is_some() {
            self.write("");
        }
    }

    /// Ignores a closed output.
    fn write(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        let _ = match self.lines.is_terminal {
            // A wrapped line could not be overwritten.
            true => {
                let line: String = line.chars().take(self.width.saturating_sub(1)).collect();
                write!(stderr, "\r{line}\x1b[K").and_then(|()| stderr.flush())
            }
            false => writeln!(stderr, "{line}"),
        };
    }
}

/// Determines when to show a line, and its text.
#[derive(Debug)]
pub(crate) struct Lines {
    is_terminal: bool,
    /// The time and the stage of the last line.
    last: Option<(Duration, String)>,
}

impl Lines {
    pub(crate) fn new(is_terminal: bool) -> Self {
        Self {
            is_terminal,
            last: None,
        }
    }

    pub(crate) fn next(
        &mut self,
        now: Duration,
        stage: &str,
        part: Option<f64>,
        found: &dyn Display,
    ) -> Option<String> {
        let pause = if self.is_terminal { SHORT_PAUSE } else { PAUSE };
        let is_due = |(shown, last): &(Duration, String)| last != stage || now.saturating_sub(*shown) >= pause;
        if !self.last.as_ref().is_none_or(is_due) {
            return None;
        }
        self.last = Some((now, stage.to_owned()));
        let seconds = now.as_secs_f64();
        let part = part.filter(|part| part.is_finite()).map(|part| part.clamp(0.0, 1.0));
        let how_far = match part {
            // Too early to estimate the remaining time.
            Some(part) if part < 0.02 => format!("{:3.0} %", part * 100.0),
            Some(part) => format!("{:3.0} %, {:.0} s left", part * 100.0, seconds * (1.0 - part) / part),
            None => "…".to_owned(),
        };
        Some(format!("{seconds:5.0} s  {how_far}  {stage}: {found}"))
    }
}

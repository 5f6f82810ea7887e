//! Columns of text, and medians of rounds.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Map, Value};

use crate::results::outputs::rounded;

static IS_STDOUT_TAKEN: AtomicBool = AtomicBool::new(false);

/// From now on text goes to stderr, because results for machines go to stdout.
pub fn leave_stdout() {
    IS_STDOUT_TAKEN.store(true, Ordering::Relaxed);
}

pub fn tell(text: impl fmt::Display) {
    match IS_STDOUT_TAKEN.load(Ordering::Relaxed) {
        true => eprintln!("{text}"),
        false => println!("{text}"),
    }
}

/// Aligns the first column to the left and the others to the right.
pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let head: Vec<String> = head.iter().map(|&word| word.to_owned()).collect();
    let width = |column: usize| {
        let cells = [&head].into_iter().chain(rows).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    tell(format_args!("\n{title}"));
    for row in [&head].into_iter().chain(rows) {
        let mut line = format!("  {:<1$}", row[0], widths[0]);
        for (cell, &width) in row.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        tell(line.trim_end());
    }
}

/// The same, with all columns at the left.
pub fn print_text(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let cells = rows.iter().map(|row| row.iter().map(String::as_str).collect());
    let all: Vec<Vec<&str>> = [head.to_vec()].into_iter().chain(cells).collect();
    tell(format_args!("\n{title}"));
    for row in &all {
        let line = row.iter().enumerate().fold(" ".to_owned(), |line, (column, cell)| {
            let width = all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            line + &format!(" {cell:<width$} ")
        });
        tell(line.trim_end());
    }
}

/// A value for each round.
#[derive(Clone, Debug)]
pub struct Values(Vec<f64>);

impl Values {
    pub fn of<T>(turns: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self(turns.iter().map(value).collect())
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            length if length % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// Divides each round by the same round of `other`, because other load on the machine has affected both.
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }

    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The median, the least and the most.
    pub fn ratio(&self) -> String {
        format!("{:.2} ({:.2}..{:.2})", self.median(), self.least(), self.most())
    }

    /// The same for machines, as the fields `name`, `least_name` and `most_name`.
    pub fn fields(&self, name: &str) -> Map<String, Value> {
        let fields = [("", self.median()), ("least_", self.least()), ("most_", self.most())];
        let fields = fields.map(|(prefix, value)| (format!("{prefix}{name}"), rounded(value)));
        fields.into_iter().collect()
    }
}

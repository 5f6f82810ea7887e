//! The difference between two sides, unless it is smaller than the noise of the machine.

use serde_json::{Value, json};

use super::results::outputs::rounded;

/// With fewer rounds, the range of the differences is not a usable estimate of the noise.
pub(crate) const FEWEST_ROUNDS: usize = 5;

/// The difference between two sides that were measured alternately.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    /// The median of the differences within each round.
    median: f64,
    /// Half of the range of these differences. `None` with too few rounds.
    noise: Option<f64>,
    rounds: usize,
}

impl Difference {
    pub(crate) fn between(rounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let differences = rounds.into_iter().map(|(own, other)| own - other);
        let mut sorted: Vec<f64> = differences.filter(|difference| difference.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => 0.0,
            length if length % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        let range = sorted.first().zip(sorted.last());
        let noise = range.filter(|_| sorted.len() >= FEWEST_ROUNDS);
        Self {
            median,
            noise: noise.map(|(least, most)| (most - least) / 2.0),
            rounds: sorted.len(),
        }
    }

    /// The second side minus the first. The true difference cannot be negative, so a median below zero is noise.
    pub(crate) fn added(rounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut added = Self::between(rounds.into_iter().map(|(without, with)| (with, without)));
        added.noise = added.noise.map(|noise| noise.max(-added.median));
        added
    }

    /// Returns the difference and its noise, or `None` if the noise exceeds the difference.
    pub(crate) fn measured(&self) -> Option<(f64, f64)> {
        let noise = self.noise?;
        (self.median.abs() > noise).then_some((self.median, noise))
    }

    /// The unit is the suffix of the names. An unmeasured difference is `null`.
    pub(crate) fn json(&self, unit: &str) -> Value {
        let number = |number: Option<f64>| number.map_or(Value::Null, rounded);
        json!({
            format!("median_{unit}"): number(self.measured().map(|(median, _)| median)),
            format!("noise_{unit}"): number(self.noise),
            "rounds": self.rounds,
        })
    }

    pub(crate) fn with_unit(&self, unit: &str) -> String {
        match (self.measured(), self.noise) {
            (Some((median, noise)), _) => format!("{median:+.3} {unit}, noise ±{noise:.3}"),
            (None, Some(noise)) => format!("not measurable here: noise ±{noise:.3} {unit}"),
            (None, None) => format!("not measurable in {} rounds: --seconds {FEWEST_ROUNDS}", self.rounds),
        }
    }
}

//! Alternatives measured in turns, so that all of them see the same noise of the machine, and a table of the results.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every benchmark includes this module and uses a part of it"
)]

pub mod server;

use std::{env, fmt, fs, str::FromStr, time::Duration};

/// One of the alternatives: a name and what measures it once.
pub struct Side<'a> {
    name: String,
    measure: Box<dyn FnMut() -> f64 + 'a>,
}

impl fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> Side<'a> {
    pub fn new(name: impl Into<String>, measure: impl FnMut() -> f64 + 'a) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(measure),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Measures this side once, alone.
    pub fn measure(&mut self) -> f64 {
        (self.measure)()
    }
}

/// The measured values of one side, one for each round.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<f64>);

impl FromIterator<f64> for Values {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Values {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        }
    }

    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Subtracts the values of `other`, round by round.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| own - other).collect())
    }

    /// The ratio of this side to `other`: the median over the rounds, each compared within itself.
    pub fn ratio(&self, other: &Self) -> f64 {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect()).median()
    }
}

/// Measures all sides once in each round. Every round begins with another side.
pub fn measure(rounds: usize, sides: &mut [Side<'_>]) -> Vec<Values> {
    let mut values = vec![Values::default(); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let index = (round + turn) % sides.len();
            values[index].0.push((sides[index].measure)());
        }
    }
    values
}

/// A table of the medians, with ratios to the first side.
pub fn print(title: &str, unit: &str, sides: &[Side<'_>], values: &[Values]) {
    println!("\n{title:44} {unit:>12} {:>19} {:>7}", "least..most", "ratio");
    for (side, own) in sides.iter().zip(values) {
        let decimals = usize::from(own.median() < 10_000.0);
        let range = format!("{:.decimals$}..{:.decimals$}", own.least(), own.most());
        println!(
            "  {:42} {:12.decimals$} {range:>19} {:7.2}",
            side.name,
            own.median(),
            own.ratio(&values[0])
        );
    }
}

/// Measures all sides in `ROUNDS` rounds, after one that opens connections and does not count, and prints a table.
pub fn table(title: &str, unit: &str, rounds: usize, sides: &mut [Side<'_>]) -> Vec<Values> {
    measure(1, sides);
    let values = measure(setting("ROUNDS", rounds), sides);
    print(title, unit, sides, &values);
    values
}

/// Returns `true` if `cargo bench` runs this program. `cargo test --benches` runs it too, to see that it starts.
pub fn is_asked_for() -> bool {
    env::args().skip(1).eq(["--bench"])
}

/// A setting from the environment.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(value) => match value.parse() {
            Ok(value) => value,
            Err(_) => panic!("{name}: {value:?} is not a number that can be used here"),
        },
        Err(_) => default,
    }
}

/// The milliseconds within which this part of the requests ended.
pub fn millis_at(part: f64, times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let index = ((times.len() - 1) as f64 * part) as usize;
    times[index].as_secs_f64() * 1_000.0
}

/// Numbers that look random, the same in each run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0)
    }
}

/// The time for which the threads of this process have run, or NaN where the system does not report it.
pub fn own_seconds() -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return f64::NAN;
    };
    let nanos = threads.filter_map(|thread| {
        let schedule = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        schedule.split(' ').next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}

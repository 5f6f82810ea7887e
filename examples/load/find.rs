//! The highest rate that this machine carries: a quarter more at each step, until it is too much.
//!
//! A machine has other things to do, too, so a rate is too much only if it was three times in a row.

use std::{error::Error, time::Duration};

use super::{
    Test,
    measure::{Measured, measure},
    options::Options,
    report::milliseconds,
};

/// The share of requests that must be decided for a rate to count as carried.
const DECIDED: f64 = 0.99;
const P99: Duration = Duration::from_millis(5);
const TRIES: usize = 3;
const HIGHEST: u64 = 1_000_000;

pub(crate) fn run(test: &mut Test<'_>) -> Result<(), Box<dyn Error>> {
    println!("        rate   decided in time   p99 with limits   p99 bare service");
    let (mut rate, mut best) = (test.options.rate, None);
    while rate <= HIGHEST {
        let step = Step::try_often(test, rate)?;
        if !step.is_carried() {
            break;
        }
        rate += rate.div_ceil(4);
        best = Some(step);
    }
    let Some(best) = best else {
        println!("\nThe first rate is too much already: begin with a lower --rate.");
        return Ok(());
    };
    let half = Step::try_often(test, best.rate.div_ceil(2))?;
    println!();
    for (name, step) in [("highest rate carried", &best), ("half of it", &half)] {
        println!(
            "{name:22} {}/s, p99 {} ms",
            step.rate,
            milliseconds(step.p99).trim_start()
        );
    }
    println!("Carried: at least 99 % decided in time, and p99 at most 5 ms, counted from when requests were due.");
    Ok(())
}

struct Step {
    rate: u64,
    /// The share of all due requests that was decided.
    decided: f64,
    p99: Duration,
    bare_p99: Duration,
}

impl Step {
    fn try_often(test: &mut Test<'_>, rate: u64) -> Result<Self, Box<dyn Error>> {
        let mut step = Self::measure(test, rate)?;
        for _ in 1..TRIES {
            if step.is_carried() {
                break;
            }
            step = Self::measure(test, rate)?;
        }
        Ok(step)
    }

    fn measure(test: &mut Test<'_>, rate: u64) -> Result<Self, Box<dyn Error>> {
        let options = Options {
            rate,
            ..test.options.clone()
        };
        let Measured { limited, bare, .. } = measure(test, &options)?;
        let tally = &limited.tally;
        let decided = limited.in_time.saturating_sub(tally.failed_open.count());
        let step = Self {
            rate,
            decided: decided as f64 / limited.due.max(1) as f64,
            p99: tally.latencies().percentile(99.0),
            bare_p99: bare.tally.latencies().percentile(99.0),
        };
        step.print();
        Ok(step)
    }

    fn is_carried(&self) -> bool {
        self.decided >= DECIDED && self.p99 <= P99
    }

    fn print(&self) {
        println!(
            "{:>10}/s {:>15.2} % {:>14} ms {:>15} ms",
            self.rate,
            self.decided * 100.0,
            milliseconds(self.p99),
            milliseconds(self.bare_p99),
        );
    }
}

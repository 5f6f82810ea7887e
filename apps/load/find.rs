//! Finds the highest sustainable rate: the rate increases by a quarter per step until the machine is overloaded.
//!
//! Other load can disturb a step, so a rate is too high only if it fails three times in a row.

use std::{error::Error, fmt};

use serde_json::{Value, json};

use super::{
    Found, Test,
    measure::{Measured, measure},
    options::Options,
    results::outputs::rounded,
};

/// The share of requests that must be decided at a sustainable rate.
const DECIDED: f64 = 0.99;
const TRIES: usize = 3;
const HIGHEST: u64 = 1_000_000;

pub(crate) fn run(test: &mut Test<'_>) -> Result<Found, Box<dyn Error>> {
    let (mut rate, mut steps) = (test.options.rate, Vec::new());
    while rate <= HIGHEST {
        let step = Step::try_often(test, rate)?;
        let is_carried = step.is_carried;
        steps.push(step);
        if !is_carried {
            break;
        }
        rate += rate.div_ceil(4);
    }
    let best = steps.iter().rfind(|step| step.is_carried).map(|step| step.rate);
    let half = match best {
        Some(best) => Some(Step::try_often(test, best.div_ceil(2))?),
        None => None,
    };
    let json = json!({
        "highest_rate_carried_per_second": best,
        "carried_means": {"decided_percent_at_least": DECIDED * 100.0, "p99_ms_at_most": test.options.p99},
        "half_of_it": half.as_ref().map(Step::json),
        "steps": steps.iter().map(Step::json).collect::<Vec<_>>(),
    });
    Ok(Found {
        text: text(&steps, half, test.options.p99),
        json,
    })
}

fn text(steps: &[Step], half: Option<Step>, p99: u64) -> String {
    let mut text = "        rate   decided in time   p99 with limits   p99 bare service\n".to_owned();
    for step in steps {
        text += &format!("{step}\n");
    }
    let best = steps.iter().rfind(|step| step.is_carried);
    let Some((best, half)) = best.zip(half) else {
        return text + "\nThe first rate is too much already: begin with a lower --rate.\n";
    };
    for (name, step) in [("\nhighest rate carried  ", best), ("half of it            ", &half)] {
        text += &format!("{name} {}/s, p99 {:.3} ms\n", step.rate, step.limited.1);
    }
    let carried = format!(
        "Carried: at least 99 % decided in time, and p99 at most {p99} ms, counted from when requests were due.\n"
    );
    text + &carried
}

struct Step {
    rate: u64,
    is_carried: bool,
    /// The share of due requests that were decided.
    decided: f64,
    /// p50 and p99 in milliseconds.
    limited: (f64, f64),
    bare: (f64, f64),
}

impl Step {
    fn try_often(test: &mut Test<'_>, rate: u64) -> Result<Self, Box<dyn Error>> {
        let mut step = Self::measure(test, rate)?;
        for _ in 1..TRIES {
            if step.is_carried {
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
        let Measured { limited, bare, .. } = measure(test, &options, &[[1, options.seconds]])?;
        let decided = limited.in_time.saturating_sub(limited.tally.failed_open.count());
        let decided = decided as f64 / limited.due.max(1) as f64;
        let p99 = limited.percentile(99.0);
        let step = Self {
            rate,
            is_carried: decided >= DECIDED && p99 <= options.p99 as f64,
            decided,
            limited: (limited.percentile(50.0), p99),
            bare: (bare.percentile(50.0), bare.percentile(99.0)),
        };
        let found = format!(
            "{:.2} % decided in time, p99 {:.3} ms",
            step.decided * 100.0,
            step.limited.1
        );
        test.show(&format!("{rate}/s was tried"), &found);
        Ok(step)
    }

    fn json(&self) -> Value {
        json!({
            "rate_per_second": self.rate, "decided_percent": rounded(self.decided * 100.0),
            "limited_p50_ms": rounded(self.limited.0), "limited_p99_ms": rounded(self.limited.1),
            "bare_p50_ms": rounded(self.bare.0), "bare_p99_ms": rounded(self.bare.1), "is_carried": self.is_carried,
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decided = self.decided * 100.0;
        let ((_, limited), (_, bare)) = (self.limited, self.bare);
        write!(
            f,
            "{:>10}/s {decided:>15.2} % {limited:>14.3} ms {bare:>15.3} ms",
            self.rate
        )
    }
}

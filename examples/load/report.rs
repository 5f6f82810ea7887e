//! The measured figures, and their meaning for more users.

use std::{fmt, time::Duration};

use super::{
    conclusions::Conclusions,
    instances::{INSTANCES, policies},
    measure::{Measured, Run},
    options::{Mode, Options},
    server::Server,
    tally::Latencies,
};

/// Formats a duration with a fixed width, so that numbers stand below each other.
pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{:8.3}", duration.as_secs_f64() * 1_000.0)
}

/// The plan of the test, printed before it begins.
pub(crate) struct Head<'a> {
    pub(crate) options: &'a Options,
    pub(crate) server: &'a Server,
}

impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options {
            rate,
            seconds,
            users,
            skew,
            mode,
            ..
        } = self.options;
        match mode {
            Mode::Callers => writeln!(f, "mode callers: a request of each of {users}, one after the other"),
            _ => writeln!(f, "mode {}: {rate} requests a second for {seconds} s", mode.name()),
        }?;
        match mode {
            Mode::Callers => writeln!(f, "{INSTANCES} instances"),
            Mode::HotKey => writeln!(f, "{INSTANCES} instances; all requests are those of one user"),
            _ => writeln!(f, "{INSTANCES} instances; {users} users, chosen with a skew of {skew}"),
        }?;
        for policy in policies(self.options) {
            let window = policy.window().map_or(0, |window| window.as_secs());
            writeln!(f, "  {:8} {} in {window} s", policy.name(), policy.quota())?;
        }
        match self.server.own() {
            Some(own) => writeln!(f, "Redis started for this on port {}", own.port()),
            // The URL may hold a password.
            None => writeln!(f, "Redis of REDIS_URL; what others do there is counted, too"),
        }
    }
}

pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) measured: &'a Measured,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latencies(f)?;
        self.outcomes(f)?;
        self.redis(f)?;
        let Self { options, measured } = self;
        write!(f, "{}", Conclusions { options, measured })
    }
}

impl Report<'_> {
    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { bare, limited, .. } = self.measured;
        let (bare, tally) = (bare.tally.latencies(), &limited.tally);
        let all = tally.latencies();
        writeln!(f, "ms from due to answered     p50      p90      p99    p99.9      max")?;
        row(f, "bare service", &points(&bare))?;
        row(f, "with limits", &points(&all))?;
        let added: Vec<_> = points(&all)
            .iter()
            .zip(points(&bare))
            .map(|(all, bare)| all - bare)
            .collect();
        row(f, "added", &added)?;
        if tally.rejected.count() > 0 {
            row(f, "  allowed", &points(&tally.allowed))?;
            row(f, "  rejected", &points(&tally.rejected))?;
        }
        writeln!(f)
    }

    fn outcomes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run {
            tally, due, in_time, ..
        } = &self.measured.limited;
        let rate = *in_time as f64 / self.options.seconds as f64;
        writeln!(f, "due                {due}")?;
        writeln!(
            f,
            "answered in time   {in_time}, {:.2} %, {rate:.0} a second",
            percent(*in_time, *due)
        )?;
        if tally.given_up() > 0 {
            let unsent = tally.given_up();
            writeln!(
                f,
                "never sent         {unsent}, since all of this was too slow for the rate"
            )?;
        }
        writeln!(f, "allowed            {}", tally.allowed.count())?;
        writeln!(
            f,
            "rejected            {}, {:.2} %",
            tally.rejected.count(),
            percent(tally.rejected.count(), tally.answered())
        )?;
        writeln!(
            f,
            "failed open        {}  {}\n",
            tally.failed_open.count(),
            self.measured.undecided
        )
    }

    fn redis(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { before, after, .. } = self.measured;
        let busy = after.processor_seconds - before.processor_seconds;
        writeln!(f, "{}", after.version)?;
        writeln!(
            f,
            "  processor        {:.3} s per second, {:.2} µs per decision",
            busy / self.options.seconds as f64,
            self.measured.redis_micros()
        )?;
        writeln!(
            f,
            "  calls            {:.3} of the script per decision, {:.2} µs each inside of Redis",
            self.measured.per_decision(self.measured.script_calls() as f64),
            after.script_micros.saturating_sub(before.script_micros) as f64
                / self.measured.script_calls().max(1) as f64
        )?;
        writeln!(
            f,
            "  commands         {:.2} per decision, with those inside of the script",
            self.measured
                .per_decision(after.commands.saturating_sub(before.commands) as f64)
        )?;
        self.memory(f)?;
        let Measured { bare, limited, .. } = self.measured;
        match (limited.processor_seconds, limited.micros_per_request()) {
            (Some(busy), Some(micros)) => writeln!(
                f,
                "this process       {:.3} s per second, {micros:.2} µs per request; with the bare service {:.2} µs\n",
                busy / self.options.seconds as f64,
                bare.micros_per_request().unwrap_or(0.0)
            ),
            _ => writeln!(f, "this process       the system does not say how busy it was\n"),
        }
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            empty,
            after,
            bytes_per_key: (bytes, sample),
            ..
        } = self.measured;
        writeln!(f, "  live keys        {}", self.measured.live_keys())?;
        write!(f, "  bytes per key    {bytes:.0} by MEMORY USAGE of {sample} keys")?;
        match self.measured.extra_key_bytes {
            0 => writeln!(f)?,
            extra => writeln!(f, ", whose prefix is {extra} bytes longer than the default")?,
        }
        let grown = after.used_memory.saturating_sub(empty.used_memory) as f64;
        writeln!(
            f,
            "  used memory      {:.2} MB, {:.2} MB more than before the test",
            after.used_memory as f64 / 1e6,
            grown / 1e6
        )
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, milliseconds: &[f64]) -> fmt::Result {
    write!(f, "{name:22}")?;
    for point in milliseconds {
        write!(f, " {point:8.3}")?;
    }
    writeln!(f)
}

/// Milliseconds.
fn points(latencies: &Latencies) -> [f64; 5] {
    let [p50, p90, p99, p999] = [50.0, 90.0, 99.0, 99.9].map(|percent| latencies.percentile(percent));
    [p50, p90, p99, p999, latencies.max()].map(|point| point.as_secs_f64() * 1_000.0)
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

pub(crate) fn per(total: f64, number: u64) -> f64 {
    total / number.max(1) as f64
}

pub(crate) fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

//! The measured figures, extrapolated to more users.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use super::{
    conclusions::Conclusions,
    instances::{INSTANCES, policies},
    measure::{Measured, Run},
    options::{Mode, Options},
    results::outputs::rounded,
    server::Server,
    tally::Latencies,
};

/// Formats a duration with a fixed width, so that numbers are aligned.
pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{:8.3}", duration.as_secs_f64() * 1_000.0)
}

/// The description of the test.
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
            // The URL may contain a password.
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
        writeln!(f, "ms from due to answered     p50      p90      p99    p99.9      max")?;
        row(f, "bare service", &points(&bare))?;
        row(f, "with limits", &points(&tally.latencies()))?;
        if tally.rejected.count() > 0 {
            row(f, "  allowed", &points(&tally.allowed))?;
            row(f, "  rejected", &points(&tally.rejected))?;
        }
        writeln!(
            f,
            "\nadded by the layer, median of {} rounds",
            self.measured.rounds.len()
        )?;
        for (name, percent) in PERCENTILES {
            let added = self.measured.added(|run| run.percentile(percent));
            writeln!(f, "  {name:7} {}", added.with_unit("ms"))?;
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
        let Measured { spent, after, .. } = self.measured;
        writeln!(f, "{}", after.version)?;
        writeln!(
            f,
            "  processor        {:.3} s per second, {:.2} µs per decision",
            spent.processor_seconds / self.options.seconds as f64,
            self.measured.redis_micros()
        )?;
        writeln!(
            f,
            "  calls            {:.3} of the script per decision, {:.2} µs each inside of Redis",
            self.measured.per_decision(spent.script_calls as f64),
            per(spent.script_micros as f64, spent.script_calls)
        )?;
        writeln!(
            f,
            "  commands         {:.2} per decision, with those inside of the script",
            self.measured.per_decision(spent.commands as f64)
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

/// Machine-readable results. The schema may only be extended: names and units must not change.
impl Report<'_> {
    pub(crate) fn json(&self) -> Value {
        let Measured {
            bare, limited, spent, ..
        } = self.measured;
        let added = PERCENTILES.map(|(name, percent)| {
            let added = self.measured.added(|run| run.percentile(percent));
            (name.replace('.', "_"), added.json("ms"))
        });
        let rounds = self.measured.rounds.iter().map(|round| {
            let [bare, limited] = [&round.bare, &round.limited].map(|run| run.tally.latencies());
            json!({"bare": latencies(&bare), "limited": latencies(&limited)})
        });
        let Run {
            tally, due, in_time, ..
        } = limited;
        let process = [bare, limited].map(|run| run.micros_per_request().map_or(Value::Null, rounded));
        json!({
            "latency_from_due": {
                "bare": latencies(&bare.tally.latencies()), "limited": latencies(&tally.latencies()),
                "allowed": latencies(&tally.allowed), "rejected": latencies(&tally.rejected),
            },
            "added": Value::Object(added.into_iter().collect()),
            "rounds": rounds.collect::<Vec<_>>(),
            "requests": {
                "due": due, "answered_in_time": in_time, "never_sent": tally.given_up(), "allowed": tally.allowed.count(),
                "rejected": tally.rejected.count(), "failed_open": tally.failed_open.count(),
                "rejected_without_redis": self.measured.local_rejections(),
            },
            "redis": {
                "version": self.measured.after.version,
                "processor_us_per_decision": rounded(self.measured.redis_micros()),
                "script_calls_per_decision": rounded(self.measured.per_decision(spent.script_calls as f64)),
                "script_us_per_call": rounded(per(spent.script_micros as f64, spent.script_calls)),
                "commands_per_decision": rounded(self.measured.per_decision(spent.commands as f64)),
                "live_keys": self.measured.live_keys(),
                "bytes_per_key": rounded(self.measured.bytes_per_key.0),
                "used_memory_bytes": self.measured.after.used_memory,
            },
            "process": {"processor_us_per_request_bare": process[0], "processor_us_per_request_limited": process[1]},
        })
    }
}

const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

/// `null` without requests.
fn latencies(latencies: &Latencies) -> Value {
    if latencies.count() == 0 {
        return Value::Null;
    }
    let [p50, p90, p99, p999, most] = points(latencies).map(rounded);
    json!({"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "p99_9_ms": p999, "max_ms": most})
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, milliseconds: &[f64]) -> fmt::Result {
    write!(f, "{name:22}")?;
    for point in milliseconds {
        write!(f, " {point:8.3}")?;
    }
    writeln!(f)
}

/// In milliseconds.
fn points(latencies: &Latencies) -> [f64; 5] {
    let [p50, p90, p99, p999] = PERCENTILES.map(|(_, percent)| latencies.percentile(percent));
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

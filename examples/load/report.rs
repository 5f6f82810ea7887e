//! What was measured, and what it means for more users.

use std::{fmt, time::Duration};

use super::{
    instances::{INSTANCES, policies},
    measure::{Measured, Run},
    options::{Mode, Options},
    server::Server,
    tally::Latencies,
};

/// With fewer, what connections take weighs more than what keys take.
const ENOUGH_KEYS: u64 = 10_000;

const MANY_USERS: f64 = 10_000_000.0;
const PEAK: f64 = 30_000.0;

/// Of a width, so that numbers stand below each other.
pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{:8.3}", duration.as_secs_f64() * 1_000.0)
}

/// What is about to be done.
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
        writeln!(f, "mode {}: {rate} requests a second for {seconds} s", mode.name())?;
        match mode {
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
        match self.options.mode {
            Mode::HotKey => self.hot_key(f),
            Mode::Refusal => self.refusals(f),
            _ => self.many_users(f),
        }
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
        if tally.refused.count() > 0 {
            row(f, "  allowed", &points(&tally.allowed))?;
            row(f, "  refused", &points(&tally.refused))?;
        }
        writeln!(f)
    }

    fn outcomes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run {
            tally, due, in_time, ..
        } = &self.measured.limited;
        let rate = *in_time as f64 / self.seconds();
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
            "refused            {}, {:.2} %",
            tally.refused.count(),
            percent(tally.refused.count(), tally.answered())
        )?;
        writeln!(f, "failed open        {}\n", tally.failed_open.count())
    }

    fn redis(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { before, after, .. } = self.measured;
        let busy = after.processor_seconds - before.processor_seconds;
        writeln!(f, "{}", after.version)?;
        writeln!(
            f,
            "  processor        {:.3} s per second, {:.2} µs per decision",
            busy / self.seconds(),
            self.redis_micros()
        )?;
        writeln!(
            f,
            "  calls            {:.3} of the script per decision, {:.2} µs each inside of Redis",
            self.per_decision(self.script_calls() as f64),
            after.script_micros.saturating_sub(before.script_micros) as f64 / self.script_calls().max(1) as f64
        )?;
        writeln!(
            f,
            "  commands         {:.2} per decision, with those inside of the script",
            self.per_decision(after.commands.saturating_sub(before.commands) as f64)
        )?;
        self.memory(f)?;
        let Measured { bare, limited, .. } = self.measured;
        match (limited.processor_seconds, limited.micros_per_request()) {
            (Some(busy), Some(micros)) => writeln!(
                f,
                "this process       {:.3} s per second, {micros:.2} µs per request; with the bare service {:.2} µs\n",
                busy / self.seconds(),
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
        writeln!(f, "  live keys        {}", after.keys)?;
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

    fn many_users(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, source) = self.bytes_per_user();
        writeln!(f, "what that means for 10 million users")?;
        writeln!(
            f,
            "  memory of Redis      10 000 000 x {bytes:.0} bytes ({source}) = {:.2} GB, if all are live at once",
            MANY_USERS * bytes / 1e9
        )?;
        let micros = self.redis_micros();
        writeln!(
            f,
            "  processors of Redis  30 000 decisions a second at peak x {micros:.2} µs = {:.2}; one server has one for scripts",
            PEAK * micros / 1e6
        )?;
        let Measured { bare, limited, .. } = self.measured;
        if let Some((bare, limited)) = bare.micros_per_request().zip(limited.micros_per_request()) {
            writeln!(
                f,
                "  all instances        30 000 requests a second at peak x ({limited:.2} - {bare:.2}) µs = {:.2} processors \
                 for their limits",
                PEAK * (limited - bare) / 1e6
            )?;
        }
        Ok(())
    }

    /// All users are in Redis, the tables that find them included, if there are enough of them.
    fn bytes_per_user(&self) -> (f64, &'static str) {
        let Measured {
            empty,
            after,
            bytes_per_key,
            ..
        } = self.measured;
        let keys = after.keys.saturating_sub(empty.keys);
        if keys < ENOUGH_KEYS {
            return (bytes_per_key.0, "MEMORY USAGE; too few keys to tell what tables take");
        }
        let grown = after.used_memory.saturating_sub(empty.used_memory);
        (grown as f64 / keys as f64, "growth of used memory / live keys")
    }

    fn refusals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = self.measured.limited.tally.refused.count();
        let asked = refused.saturating_sub(self.local_refusals());
        writeln!(f, "what refusals cost")?;
        writeln!(
            f,
            "  calls            {:.3} of the script per refusal; {:.2} % of the refusals were made without Redis",
            asked as f64 / refused.max(1) as f64,
            percent(self.local_refusals(), refused)
        )?;
        let more = |percent| {
            let points = [
                &self.measured.limited.tally.refused,
                &self.measured.limited.tally.allowed,
            ];
            let [refused, allowed] = points.map(|latencies| latencies.percentile(percent).as_secs_f64() * 1e3);
            refused - allowed
        };
        writeln!(
            f,
            "  latency          {:+.3} ms at p50 and {:+.3} ms at p99, compared with allowed requests",
            more(50.0),
            more(99.0)
        )
    }

    fn hot_key(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: u64| count as f64 / self.seconds();
        writeln!(f, "one user under attack")?;
        writeln!(
            f,
            "  calls            {:.1} of the script a second from each instance",
            per_second(self.script_calls()) / INSTANCES as f64
        )?;
        writeln!(
            f,
            "  local denials    {:.1} a second, of all instances together",
            per_second(self.local_refusals())
        )?;
        if let Some(busy) = self.measured.limited.processor_seconds {
            let denials = self.local_refusals() as f64 / busy;
            writeln!(
                f,
                "                   {denials:.0} in a second of a processor, the generator included"
            )?;
        }
        Ok(())
    }

    /// Refusals that Redis was not asked for.
    fn local_refusals(&self) -> u64 {
        let decided_by_redis = self.script_calls();
        self.measured.limited.tally.decided().saturating_sub(decided_by_redis)
    }

    fn script_calls(&self) -> u64 {
        let Measured { before, after, .. } = self.measured;
        after.script_calls.saturating_sub(before.script_calls)
    }

    fn redis_micros(&self) -> f64 {
        self.per_decision((self.measured.after.processor_seconds - self.measured.before.processor_seconds) * 1e6)
    }

    fn per_decision(&self, total: f64) -> f64 {
        total / self.measured.limited.tally.decided().max(1) as f64
    }

    fn seconds(&self) -> f64 {
        self.options.seconds as f64
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

fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

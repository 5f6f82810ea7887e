//! Two outages of Redis during the load: first it hangs, then it is killed and restarted without data.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use test_kit::RedisServer;

use super::{
    Found, Test,
    failed_connections::FailedConnections,
    generator::{Load, Slice},
    instances::limited,
    report::milliseconds,
    results::outputs::rounded,
    tally::Tally,
};

/// The length of a slice, short enough to show changes within a second.
const LOOK: Duration = Duration::from_millis(100);

/// A part of the run, which starts with an event of the server.
struct Part {
    name: &'static str,
    event: &'static str,
    happen: fn(&RedisServer),
    /// `true` if the server responds again from this part on.
    is_back: bool,
    /// The length of the part, in sevenths of the run. The last part lasts for the remaining time.
    sevenths: u64,
}

impl Part {
    const fn new(
        name: &'static str,
        event: &'static str,
        happen: fn(&RedisServer),
        is_back: bool,
        sevenths: u64,
    ) -> Self {
        Self {
            name,
            event,
            happen,
            is_back,
            sevenths,
        }
    }
}

const PARTS: [Part; 5] = [
    Part::new("undisturbed", "the load begins", |_| {}, false, 1),
    Part::new(
        "paused",
        "SIGSTOP: connections stay, nothing is answered",
        RedisServer::pause,
        false,
        1,
    ),
    Part::new(
        "resumed",
        "SIGCONT: what was sent meanwhile is answered",
        RedisServer::resume,
        true,
        2,
    ),
    Part::new(
        "killed",
        "SIGKILL: connections break, new ones are rejected",
        RedisServer::kill,
        false,
        1,
    ),
    Part::new(
        "restarted",
        "an empty server on the same port",
        RedisServer::restart,
        true,
        2,
    ),
];

struct Phase {
    part: &'static Part,
    /// Relative to the start.
    at: Duration,
    /// The time from which the event of the part was in effect.
    since: Instant,
    tally: Tally,
    failed_connections: u64,
}

pub(crate) fn run(test: &mut Test<'_>) -> Result<Found, Box<dyn Error>> {
    let server = test.server.own().ok_or("the outage takes a server of its own")?;
    let failed_connections = FailedConnections::count()?;
    let services = limited(test, test.options)?;
    test.expected = Duration::from_secs(test.options.seconds);
    let mut load = Load::start(test.runtime, services, test.options, 0);
    let (start, mut end, mut phases, mut slices) = (Instant::now(), 0, Vec::new(), Vec::new());
    for (number, part) in (1..).zip(&PARTS) {
        let at = start.elapsed();
        (part.happen)(server);
        let since = Instant::now();
        end += part.sevenths * (test.options.seconds / 7);
        if number == PARTS.len() {
            end = test.options.seconds;
        }
        let tally = load.watch(Duration::from_secs(end), LOOK, |slice| {
            test.show(part.name, slice);
            slices.push(slice.json());
        });
        phases.push(Phase {
            part,
            at,
            since,
            tally,
            failed_connections: failed_connections.take(),
        });
    }
    if let Some(last) = phases.last_mut() {
        last.tally.add(&load.finish().1);
    }
    let json = json!({
        "phases": phases.iter().map(Phase::json).collect::<Vec<_>>(),
        "slices": slices,
    });
    Ok(Found {
        text: text(&phases),
        json,
    })
}

impl Slice {
    fn json(&self) -> Value {
        let Self { from, to, tally } = self;
        let milliseconds = |duration: Duration| rounded(duration.as_secs_f64() * 1_000.0);
        let latencies = tally.latencies();
        json!({
            "from_seconds": rounded(from.as_secs_f64()), "to_seconds": rounded(to.as_secs_f64()),
            "allowed": tally.allowed.count(), "rejected": tally.rejected.count(), "failed_open": tally.failed_open.count(),
            "p50_ms": milliseconds(latencies.percentile(50.0)), "p99_ms": milliseconds(latencies.percentile(99.0)),
            "max_ms": milliseconds(latencies.max()),
        })
    }
}

impl Phase {
    fn json(&self) -> Value {
        let Self { part, at, tally, .. } = self;
        json!({
            "name": part.name, "event": part.event, "at_seconds": rounded(at.as_secs_f64()),
            "allowed": tally.allowed.count(), "rejected": tally.rejected.count(), "failed_open": tally.failed_open.count(),
            "longest_wait_ms": rounded(tally.latencies().max().as_secs_f64() * 1_000.0),
            "failed_connections": self.failed_connections,
            "limits_hold_after_seconds": self.recovery().map(|after| rounded(after.as_secs_f64())),
        })
    }

    /// The time from the recovery of the server to the last undecided request. `None` if the server did not recover in
    /// this part, or if no request was decided.
    fn recovery(&self) -> Option<Duration> {
        let last = self.tally.last_failed_open.unwrap_or(self.since);
        let has_recovered = self.part.is_back && self.tally.decided() > 0;
        has_recovered.then(|| last.saturating_duration_since(self.since))
    }
}

fn text(phases: &[Phase]) -> String {
    let mut text = "what happened\n".to_owned();
    for Phase { part, at, .. } in phases {
        text += &format!("  {:>6.2} s  {:12} {}\n", at.as_secs_f64(), part.name, part.event);
    }
    text += "\nphase          allowed    rejected  failed open   longest wait   failed connections\n";
    for phase in phases {
        let tally = &phase.tally;
        text += &format!(
            "{:11} {:>10} {:>10} {:>12} {:>11} ms {:>20}\n",
            phase.part.name,
            tally.allowed.count(),
            tally.rejected.count(),
            tally.failed_open.count(),
            milliseconds(tally.latencies().max()),
            phase.failed_connections,
        );
    }
    text.push('\n');
    for phase in phases.iter().filter(|phase| phase.part.is_back) {
        let after = phase
            .recovery()
            .map(|after| format!("after {:.2} s", after.as_secs_f64()));
        let after = after.unwrap_or_else(|| "not in this phase".to_owned());
        text += &format!("limits hold again, {}: {after}\n", phase.part.name);
    }
    text + "A request is counted in the phase in which it was answered, its wait from when it was due.\n"
}

//! Redis goes away twice during the load: once it hangs, once it is gone and comes back empty.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use super::{
    Test, failed_connections::FailedConnections, generator::Load, instances::limited, report::milliseconds,
    support::RedisServer, tally::Tally,
};

/// A part of the run, which begins with something that happens to the server.
struct Part {
    name: &'static str,
    event: &'static str,
    happen: fn(&RedisServer),
    /// True if the server answers from then on.
    is_up: bool,
    /// The last one takes what is left.
    sevenths: u64,
}

impl Part {
    const fn new(
        name: &'static str,
        event: &'static str,
        happen: fn(&RedisServer),
        is_up: bool,
        sevenths: u64,
    ) -> Self {
        Self {
            name,
            event,
            happen,
            is_up,
            sevenths,
        }
    }
}

const PARTS: [Part; 5] = [
    Part::new("undisturbed", "the load begins", |_| {}, true, 1),
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

/// The result of one part.
struct Phase {
    part: &'static Part,
    /// After the start.
    at: Duration,
    /// When the part's event was over: from then on the server answered, or did not.
    since: Instant,
    tally: Tally,
    failed_connections: u64,
}

pub(crate) fn run(test: &mut Test<'_>) -> Result<(), Box<dyn Error>> {
    let server = test.server.own().ok_or("the outage takes a server of its own")?;
    let failed_connections = FailedConnections::count()?;
    let services = limited(test, test.options)?;
    let mut load = Load::start(test.runtime, services, test.options);
    let (start, mut end, mut phases) = (Instant::now(), 0, Vec::new());
    for (number, part) in (1..).zip(&PARTS) {
        let at = start.elapsed();
        (part.happen)(server);
        let since = Instant::now();
        end += part.sevenths * (test.options.seconds / 7);
        if number == PARTS.len() {
            end = test.options.seconds;
        }
        let tally = load.watch(Duration::from_secs(end), &mut test.progress, part.name);
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
    test.progress.clear();
    print(&phases);
    Ok(())
}

fn print(phases: &[Phase]) {
    println!("what happened");
    for Phase { part, at, .. } in phases {
        println!("  {:>6.2} s  {:12} {}", at.as_secs_f64(), part.name, part.event);
    }
    println!("\nphase          allowed    rejected  failed open   longest wait   failed connections");
    for phase in phases {
        let tally = &phase.tally;
        println!(
            "{:11} {:>10} {:>10} {:>12} {:>11} ms {:>20}",
            phase.part.name,
            tally.allowed.count(),
            tally.rejected.count(),
            tally.failed_open.count(),
            milliseconds(tally.latencies().max()),
            phase.failed_connections,
        );
    }
    println!();
    for phase in phases[1..].iter().filter(|phase| phase.part.is_up) {
        println!("limits hold again, {}: {}", phase.part.name, recovery(phase));
    }
    println!("A request is counted in the phase in which it was answered, its wait from when it was due.");
}

/// The time from the return of the server to the last request that passed without a decision.
fn recovery(phase: &Phase) -> String {
    if phase.tally.decided() == 0 {
        return "not in this phase".to_owned();
    }
    let last = phase.tally.last_failed_open.unwrap_or(phase.since);
    let after = last.saturating_duration_since(phase.since);
    format!("after {:.2} s", after.as_secs_f64())
}

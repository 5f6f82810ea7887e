//! Redis goes away twice during the load: once it hangs, once it is gone and comes back empty.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use super::{
    Test, failed_connections::FailedConnections, generator::Load, instances::limited, report::milliseconds,
    tally::Tally,
};

/// A part of the run between two things that happen to the server.
struct Phase {
    name: &'static str,
    /// What happened, and when after the start.
    event: &'static str,
    at: Duration,
    /// From when on the server answered, if it does.
    up: Option<Instant>,
    tally: Tally,
    failed_connections: u64,
}

pub(crate) fn run(test: &mut Test<'_>) -> Result<(), Box<dyn Error>> {
    let server = test.server.own().ok_or("the outage takes a server of its own")?;
    let happenings: [(_, _, &dyn Fn()); 5] = [
        ("undisturbed", "the load begins", &|| {}),
        ("paused", "SIGSTOP: connections stay, nothing is answered", &|| {
            server.pause()
        }),
        ("resumed", "SIGCONT: what was sent meanwhile is answered", &|| {
            server.resume()
        }),
        ("killed", "SIGKILL: connections break, new ones are refused", &|| {
            server.kill()
        }),
        ("restarted", "an empty server on the same port", &|| server.restart()),
    ];
    let failed_connections = FailedConnections::count()?;
    let services = limited(test, test.options)?;
    let mut load = Load::start(test.runtime, services, test.options);
    let (start, part) = (Instant::now(), test.options.seconds / 5);
    let mut phases = Vec::new();
    for (number, (name, event, happen)) in (1..).zip(happenings) {
        let at = start.elapsed();
        happen();
        let up = !matches!(name, "killed" | "paused");
        let up = up.then(Instant::now);
        let seconds = if number == 5 {
            test.options.seconds
        } else {
            part * number
        };
        let tally = load.watch(Duration::from_secs(seconds), &mut test.progress, name);
        phases.push(Phase {
            name,
            event,
            at,
            up,
            tally,
            failed_connections: failed_connections.take(),
        });
    }
    load.finish();
    test.progress.clear();
    print(&phases);
    Ok(())
}

fn print(phases: &[Phase]) {
    println!("what happened");
    for phase in phases {
        println!("  {:>6.2} s  {:12} {}", phase.at.as_secs_f64(), phase.name, phase.event);
    }
    println!("\nphase          allowed    refused  failed open   longest wait   failed connections");
    for phase in phases {
        let tally = &phase.tally;
        println!(
            "{:11} {:>10} {:>10} {:>12} {:>11} ms {:>20}",
            phase.name,
            tally.allowed.count(),
            tally.refused.count(),
            tally.failed_open.count(),
            milliseconds(tally.latencies().max()),
            phase.failed_connections,
        );
    }
    println!();
    for phase in &phases[1..] {
        if let Some(up) = phase.up {
            println!("limits hold again, {}: {}", phase.name, recovery(phase, up));
        }
    }
    println!("A request is counted in the phase in which it was answered, its wait from when it was due.");
}

/// How long after the server was there the last request passed without a decision.
fn recovery(phase: &Phase, up: Instant) -> String {
    if phase.tally.decided() == 0 {
        return "not in this phase".to_owned();
    }
    let last = phase.tally.last_failed_open.unwrap_or(up);
    format!("after {:.2} s", last.saturating_duration_since(up).as_secs_f64())
}

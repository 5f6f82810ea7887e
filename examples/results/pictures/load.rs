//! Charts of the load test, one for each kind of mode.

use super::{
    super::{
        chart::{Axis, Bar, Bars, Chart, Panel, Series, number},
        svg::Colour,
    },
    Results,
};

fn settings(results: &Results<'_>) -> Result<String, String> {
    let policies = results.entries("policies")?;
    let policies = policies.iter().map(|policy| {
        let [quota, window] = ["quota", "window_seconds"].map(|name| policy.number(name));
        Ok(format!("{} in {} s", number(quota?), number(window?)))
    });
    let policies = policies.collect::<Result<Vec<_>, String>>()?.join(", ");
    let instances = number(results.number("instances")?);
    Ok(format!("{instances} instances share limits through Redis: {policies}"))
}

const MACHINE: &str =
    "Redis, the instances and the generator share one machine. A request's time counts from when it was due.";

/// Draws the percentiles with and without limits.
pub(super) fn latencies(results: &Results<'_>) -> Result<String, String> {
    let mut groups = Vec::new();
    for (name, percentile) in [("p50", "p50_ms"), ("p90", "p90_ms"), ("p99", "p99_ms")] {
        let bar = |what: &str, side: &str, colour| {
            let value = results.number(&format!("latency_from_due.{side}.{percentile}"))?;
            let text = format!("{} ms", number(value));
            Ok::<_, String>(Bar {
                name: what.to_owned(),
                colour,
                value,
                text,
            })
        };
        let added = Results(&results.get("added")[name]);
        let added = match (added.number("median_ms"), added.number("noise_ms")) {
            (Ok(median), Ok(noise)) => format!("the layer adds {} ms, noise ±{}", number(median), number(noise)),
            (Err(_), Ok(noise)) => format!(
                "what the layer adds is not measurable here: noise ±{} ms",
                number(noise)
            ),
            _ => "too few rounds to tell what the layer adds".to_owned(),
        };
        let bars = vec![
            bar("bare service", "bare", Colour::Grey)?,
            bar("with limits", "limited", Colour::Blue)?,
        ];
        groups.push((format!("{name}: {added}"), bars));
    }
    let rate = number(results.number("rate_per_second")?);
    let bars = Bars {
        id: "load-chart".to_owned(),
        label: format!("Time until requests are answered, at {rate} requests a second, with limits and without"),
        groups,
        notes: vec![
            format!("{rate} requests a second. {}", settings(results)?),
            MACHINE.to_owned(),
        ],
    };
    Ok(bars.draw())
}

pub(super) fn rates(results: &Results<'_>) -> Result<String, String> {
    let line = |name: &str, colour, field: &str| {
        let points = results.points("steps", |step| {
            Ok((step.number("rate_per_second")?, step.number(field)?))
        });
        Ok::<_, String>(Series::new(name, colour, points?))
    };
    let series = vec![
        line("p99 with limits", Colour::Blue, "limited_p99_ms")?,
        line("p50 with limits", Colour::Green, "limited_p50_ms")?,
        line("p99 bare service", Colour::Grey, "bare_p99_ms")?,
        line("p50 bare service", Colour::Amber, "bare_p50_ms")?,
    ];
    let carried = match results.number("highest_rate_carried_per_second") {
        Ok(rate) => format!("{} requests a second were carried", number(rate)),
        Err(_) => "No rate was carried".to_owned(),
    };
    let p99 = number(results.number("carried_means.p99_ms_at_most")?);
    let chart = Chart {
        id: "latency-chart".to_owned(),
        label: "Time until a request is answered against requests a second, with limits and without".to_owned(),
        x: Axis::logarithmic("requests a second"),
        panels: vec![Panel::new(Axis::logarithmic("ms from due to answered"), series)],
        marks: Vec::new(),
        notes: vec![
            settings(results)?,
            format!("{carried}: 99 % decided in time, p99 at most {p99} ms."),
            MACHINE.to_owned(),
        ],
    };
    Ok(chart.draw())
}

pub(super) fn outage(results: &Results<'_>) -> Result<String, String> {
    // Each slice is drawn at its midpoint.
    let slices = |field: &str, is_rate: bool| {
        results.points("slices", |slice| {
            let [from, to, value] = [
                slice.number("from_seconds")?,
                slice.number("to_seconds")?,
                slice.number(field)?,
            ];
            Ok((
                f64::midpoint(from, to),
                if is_rate { value / (to - from) } else { value },
            ))
        })
    };
    let requests = vec![
        Series::new("allowed and counted", Colour::Blue, slices("allowed", true)?),
        Series::new("passed uncounted", Colour::Red, slices("failed_open", true)?),
    ];
    let waits = vec![
        Series::new("longest", Colour::Amber, slices("max_ms", false)?),
        Series::new("p99", Colour::Grey, slices("p99_ms", false)?),
        Series::new("p50", Colour::Blue, slices("p50_ms", false)?),
    ];
    let panel = |label: &str, series| Panel::new(Axis::linear(label), series);
    let phases = results.entries("phases")?;
    let marks = phases
        .iter()
        .map(|phase| Ok((phase.number("at_seconds")?, phase.text("name")?.to_owned())));
    let chart = Chart {
        id: "outage-chart".to_owned(),
        label: "Requests a second and their waits, while Redis is paused, resumed, killed and started again".to_owned(),
        x: Axis::linear("seconds since the load began"),
        panels: vec![
            panel("requests a second", requests),
            panel("ms from due to answered", waits),
        ],
        marks: marks.collect::<Result<_, String>>()?,
        notes: vec![
            settings(results)?,
            UNDECIDED.to_owned(),
            recoveries(&phases)?,
            MACHINE.to_owned(),
        ],
    };
    Ok(chart.draw())
}

const UNDECIDED: &str = "A request without a decision within 50 ms passes, uncounted.";

fn recoveries(phases: &[Results<'_>]) -> Result<String, String> {
    let mut parts = Vec::new();
    for phase in phases {
        if let Ok(after) = phase.number("limits_hold_after_seconds") {
            parts.push(format!("{after:.2} s after Redis is {}", phase.text("name")?));
        }
    }
    Ok(format!("Limits hold again {}.", parts.join(", and ")))
}

pub(super) fn callers(results: &Results<'_>) -> Result<String, String> {
    let megabytes = |field: &str| {
        results.points("samples", |sample| {
            Ok((sample.number("callers")?, sample.number(field)? / 1e6))
        })
    };
    let mut series = vec![Series::new(
        "Redis, more than without callers",
        Colour::Blue,
        megabytes("redis_used_bytes")?,
    )];
    // Not every system reports the memory of a process.
    if let Ok(points) = megabytes("process_resident_bytes") {
        series.push(Series::new("the process of all instances", Colour::Amber, points));
    }
    let each = number(results.number("redis.used_bytes_per_caller")?);
    let chart = Chart {
        id: "memory-chart".to_owned(),
        label: "Memory of Redis and of the instances against the number of callers".to_owned(),
        x: Axis::linear("callers whose state has not expired"),
        panels: vec![Panel::new(Axis::linear("MB"), series)],
        marks: Vec::new(),
        notes: vec![
            settings(results)?,
            format!(
                "{}: {each} bytes for each caller at the end. Steps are tables of Redis that grow.",
                results.text("redis.version")?
            ),
        ],
    };
    Ok(chart.draw())
}

//! Charts of the soak test and of benchmarks.

use super::{
    super::{
        chart::{Axis, Bar, Bars, Chart, Panel, Series, number},
        svg::Colour,
    },
    Results,
};

pub(super) fn soak(results: &Results<'_>) -> Result<String, String> {
    let line = |name: &str, colour, field: &str, unit: f64| {
        let points = results.points("samples", |sample| {
            Ok((sample.number("at_seconds")?, sample.number(field)? / unit))
        });
        Ok::<_, String>(Series::new(name, colour, points?))
    };
    let memory = vec![
        line("this process", Colour::Amber, "process_bytes", 1e6)?,
        line("its heap", Colour::Green, "heap_bytes", 1e6)?,
        line("Redis", Colour::Blue, "redis_bytes", 1e6)?,
    ];
    let held = vec![line(
        "limits held after a fault",
        Colour::Red,
        "limits_hold_after_seconds",
        1.0,
    )?];
    let panel = |label: &str, series| Panel::new(Axis::linear(label), series);
    let growth = results.entries("growth")?;
    let growth = growth.iter().map(|growth| {
        let [bytes, most] = [growth.number("bytes")? / 1e6, growth.number("bytes_at_most")? / 1e6];
        let of = growth.text("of")?;
        Ok(format!(
            "{of} has grown by {} MB, {} at most",
            number(bytes),
            number(most)
        ))
    });
    let chart = Chart {
        id: "soak-chart".to_owned(),
        label: "Memory after each fault of a soak, and the time until limits held again".to_owned(),
        x: Axis::linear("seconds since the start"),
        panels: vec![panel("MB", memory), panel("seconds", held)],
        marks: Vec::new(),
        notes: growth.collect::<Result<_, String>>()?,
    };
    Ok(chart.draw())
}

/// Compares the decisions per second of layers that store their counts in Redis.
pub(super) fn peers(results: &Results<'_>) -> Result<String, String> {
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    for side in results.entries("closed")? {
        if side.text("title")? != "All allowed" {
            continue;
        }
        let heading = format!(
            "decisions a second, {} requests under way",
            number(side.number("tasks")?)
        );
        let bar = peer(&side)?;
        match groups.last_mut().filter(|(last, _)| *last == heading) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((heading, vec![bar])),
        }
    }
    if groups.is_empty() {
        return Err("the part `allowed` was not measured".to_owned());
    }
    let [rounds, seconds] = [results.number("rounds")?, results.number("seconds_per_turn")?].map(number);
    let bars = Bars {
        id: "peers-chart".to_owned(),
        label: "Decisions a second of layers for Tower that keep their counts in Redis".to_owned(),
        groups,
        notes: vec![
            format!(
                "Three windows, all requests allowed: median and range of {rounds} rounds of {seconds} s, in turns."
            ),
            "Limiters, Redis and load share one machine. x3: a layer for each window, which are not charged together."
                .to_owned(),
            "The bare script is no layer: one call of a script for each decision, and nothing around it.".to_owned(),
        ],
    };
    Ok(bars.draw())
}

fn peer(side: &Results<'_>) -> Result<Bar, String> {
    let fields = [
        "decisions_per_second",
        "least_decisions_per_second",
        "most_decisions_per_second",
    ];
    let [value, least, most] = fields.map(|field| side.number(field));
    let (value, range) = (value?, format!("{}–{}", number(least?), number(most?)));
    let name = side.text("name")?;
    Ok(Bar {
        name: name.to_owned(),
        colour: match name {
            "bare script" => Colour::Amber,
            name if name.starts_with("tower-quota") => Colour::Blue,
            _ => Colour::Grey,
        },
        value,
        text: format!("{} ({range})", number(value)),
    })
}

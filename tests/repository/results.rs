//! The progress of long programs, and the results that they write at the end.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

use self::{
    difference::Difference,
    results::{
        chart::number,
        outputs::{Outputs, lines},
        pictures,
        progress::Lines,
    },
};
use super::documents::algorithms::results;

#[path = "../../apps/load/difference.rs"]
mod difference;

fn parse(arguments: &[&str]) -> Result<Outputs, String> {
    Outputs::parse(arguments.iter().map(|&argument| argument.to_owned()))
}

#[test]
fn a_difference_beyond_its_noise_is_told_with_the_noise() {
    // Bare service, with limits.
    let added = Difference::added([(1.0, 1.5), (3.0, 3.75), (1.0, 1.625), (2.0, 2.625), (2.0, 2.625)]);
    assert_eq!(added.measured(), Some((0.625, 0.125)));
    assert_eq!(added.with_unit("ms"), "+0.625 ms, noise ±0.125");
    assert_eq!(
        added.json("ms"),
        json!({"median_ms": 0.625, "noise_ms": 0.125, "rounds": 5})
    );
}

#[test]
fn a_difference_within_its_noise_is_no_figure() {
    let added = Difference::added([(70.0, 1.0), (1.0, 2.0), (1.0, 2.5), (1.0, 2.0), (1.0, 2.0)]);
    assert_eq!(added.measured(), None);
    assert_eq!(added.with_unit("ms"), "not measurable here: noise ±35.250 ms");
    assert_eq!(
        added.json("ms"),
        json!({"median_ms": null, "noise_ms": 35.25, "rounds": 5})
    );
}

#[test]
fn a_layer_that_seems_to_make_requests_faster_shows_noise() {
    let pairs = [(72.0, 2.0), (73.0, 3.0), (72.5, 2.5), (73.0, 2.5), (72.0, 2.5)];
    assert_eq!(Difference::added(pairs).measured(), None);
    assert_eq!(
        Difference::added(pairs).with_unit("ms"),
        "not measurable here: noise ±70.000 ms"
    );
    // Between two kinds of requests either may be the faster one.
    assert_eq!(Difference::between(pairs).measured(), Some((70.0, 0.5)));
    assert_eq!(
        Difference::between(pairs.map(|(own, other)| (other, own))).measured(),
        Some((-70.0, 0.5))
    );
}

#[test]
fn without_rounds_enough_or_without_figures_nothing_is_measured() {
    for pairs in [
        vec![],
        vec![(1.0, 9.0)],
        vec![(1.0, 9.0); 4],
        vec![
            (f64::NAN, 9.0),
            (1.0, f64::INFINITY),
            (1.0, 9.0),
            (1.0, 9.0),
            (1.0, 9.0),
            (1.0, 9.0),
        ],
    ] {
        let added = Difference::added(pairs);
        assert_eq!(added.measured(), None);
        assert!(added.with_unit("ms").starts_with("not measurable in "), "{added:?}");
        assert_eq!(added.json("ms")["noise_ms"], Value::Null);
    }
    // Equal sides are no difference.
    assert_eq!(Difference::added([(2.0, 2.0); 7]).measured(), None);
}

#[test]
fn a_terminal_gets_one_line_that_changes_and_a_file_a_line_every_few_seconds() {
    let shown = |is_terminal| {
        let mut lines = Lines::new(is_terminal);
        let times = (0..100).map(|step| Duration::from_millis(100 * step));
        let shown = times.filter_map(|now| lines.next(now, "warm-up", Some(0.5), &"5/s"));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(shown(true).len(), 100);
    assert_eq!(
        shown(false),
        [
            "    0 s   50 %, 0 s left  warm-up: 5/s",
            "    5 s   50 %, 5 s left  warm-up: 5/s"
        ]
    );
}

#[test]
fn a_new_stage_is_shown_at_once() {
    let (mut lines, now) = (Lines::new(false), Duration::from_secs(2));
    assert!(lines.next(now, "paused", None, &1).is_some());
    assert_eq!(lines.next(now, "paused", None, &2), None);
    assert_eq!(
        lines.next(now, "resumed", Some(0.001), &3).unwrap(),
        "    2 s    0 %  resumed: 3"
    );
    assert_eq!(
        lines.next(now, "killed", Some(f64::NAN), &4).unwrap(),
        "    2 s  …  killed: 4"
    );
    assert_eq!(
        lines.next(now, "late", Some(1.2), &5).unwrap(),
        "    2 s  100 %, 0 s left  late: 5"
    );
}

#[test]
fn wrong_outputs_are_told_before_the_work_begins() {
    for (arguments, mistake) in [
        (&["--json"][..], "--json has no value"),
        (&["--svg", "a.svg", "--svg"], "--svg has no value"),
        (&["--jsn", "a"], "--jsn is no option"),
        (&["--json", "-", "--svg", "-"], "--json and --svg both go to -"),
        (&["--json", "a", "--svg", "a"], "--json and --svg both go to a"),
        (
            &["--json", "no/such/folder/a.json"],
            "--json no/such/folder/a.json: there can be no such file",
        ),
        (&["--svg", "/"], "--svg /: there can be no such file"),
        (&["--json", ""], "--json : there can be no such file"),
    ] {
        assert_eq!(parse(arguments), Err(mistake.to_owned()));
    }
    assert_eq!(parse(&[]), Ok(Outputs::default()));
    assert!(parse(&["--json", "-", "--svg", "a.svg"]).is_ok());
}

#[test]
fn results_have_a_line_for_each_field_and_entry_and_are_json() {
    let results = json!({"b": [{"x": 1}, {"x": 2}], "a": {"y": [1, 2]}, "c": []});
    let text = lines(&results);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), results);
    assert_eq!(text.lines().count(), 8, "{text}");
}

#[test]
fn numbers_have_what_a_reader_can_use() {
    for (value, text) in [
        (0.0, "0"),
        (0.0614, "0.061"),
        (0.5, "0.5"),
        (1.26, "1.3"),
        (9_999.0, "9999"),
        (111_000.4, "111\u{a0}000"),
        (-12_345.0, "-12\u{a0}345"),
    ] {
        assert_eq!(number(value), text);
    }
}

fn normal() -> Value {
    let side = |p99: f64| json!({"p50_ms": 0.25, "p90_ms": 1.0, "p99_ms": p99, "p99_9_ms": 8.0, "max_ms": 9.0});
    let added = |median: Option<f64>| json!({"median_ms": median, "noise_ms": 0.5, "rounds": 7});
    json!({
        "program": "load", "mode": "normal", "rate_per_second": 30_000, "instances": 4,
        "policies": [{"name": "second", "quota": 100, "window_seconds": 1}],
        "latency_from_due": {"bare": side(3.0), "limited": side(4.5)},
        "added": {"p50": added(Some(0.75)), "p90": added(Some(0.75)), "p99": added(None)},
    })
}

#[test]
fn a_picture_carries_its_figures_and_is_well_formed() {
    let drawn = pictures::draw(&normal()).unwrap();
    for text in [
        "30\u{a0}000 requests a second",
        "4.5 ms",
        "not measurable here: noise ±0.5 ms",
        "100 in 1 s",
    ] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
    assert_is_well_formed(&drawn);
}

#[test]
fn a_soak_has_a_picture_with_its_figures() {
    let sample = |at: u32, bytes: u64| json!({"at_seconds": at, "limits_hold_after_seconds": 0.5, "heap_bytes": bytes, "process_bytes": bytes, "redis_bytes": 0});
    let soak = json!({
        "program": "soak", "samples": [sample(3, 2_000_000), sample(23, 2_500_000)],
        "growth": [{"of": "the heap", "bytes": 12_345_678, "bytes_at_most": 1_048_576}],
    });
    let drawn = pictures::draw(&soak).unwrap();
    for text in ["the heap has grown by 12 MB, 1 at most", "seconds since the start"] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
    assert_is_well_formed(&drawn);
}

#[test]
fn names_in_a_picture_are_escaped() {
    let side = json!({
        "title": "All allowed", "tasks": 64, "name": "one <Redis>, \"prefetch\" & more",
        "decisions_per_second": 3, "least_decisions_per_second": 2, "most_decisions_per_second": 4,
    });
    let peers = json!({"program": "peers", "rounds": 5, "seconds_per_turn": 1, "closed": [side]});
    let drawn = pictures::draw(&peers).unwrap();
    assert!(
        drawn.contains("one &lt;Redis&gt;, &quot;prefetch&quot; &amp; more"),
        "{drawn}"
    );
    assert_is_well_formed(&drawn);
}

#[test]
fn results_that_lack_something_are_not_drawn() {
    let mut results = normal();
    results["latency_from_due"]["bare"] = Value::Null;
    assert_eq!(
        pictures::draw(&results),
        Err("no number at latency_from_due.bare.p50_ms".to_owned())
    );
    assert_eq!(pictures::draw(&json!([])), Err("no text at program".to_owned()));
    let other = pictures::draw(&json!({"program": "<&>"}));
    assert_eq!(other, Err("there is no picture for the results of <&>".to_owned()));
}

/// A change to the drawing shows in all pictures, and a change to the figures in one.
#[test]
fn each_picture_is_drawn_from_the_results_beside_it_and_has_a_command() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures"));
    let commands = fs::read_to_string(folder.join("README.md")).unwrap();
    let (mut drawn, mut all) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".json") {
            let text = fs::read_to_string(&path).unwrap();
            let results: Value = serde_json::from_str(&text).unwrap();
            let picture = fs::read_to_string(path.with_extension("svg")).unwrap();
            assert!(
                picture == pictures::draw(&results).unwrap(),
                "{name}: run `cargo run --example pictures` and look at the picture"
            );
            assert_is_well_formed(&picture);
            assert!(
                commands.contains(&format!("docs/pictures/{name} --svg")),
                "{name} has no command"
            );
            assert!(text.len() < 40_000, "{name} has {} bytes", text.len());
            drawn += 1;
        }
        all += usize::from(name.ends_with(".svg"));
    }
    assert!(drawn >= 4 && drawn == all, "{drawn} of {all}");
}

/// Each element is closed, each attribute is quoted, no text has a bracket; nothing is loaded and nothing is run.
fn assert_is_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>'), "{text}");
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        assert!(["svg", "style", "path", "text"].contains(&name), "{tag}");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (_, false) => open.push(name),
            (_, true) => {}
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    assert!(
        svg.lines().all(|line| !line.trim().is_empty()),
        "a blank line ends it in Markdown"
    );
    for word in ["NaN", "inf", "href", "url(", "@import", "&lt;script"] {
        assert!(!svg.contains(word), "{word}: {svg}");
    }
    assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("aria-label=\""));
    assert_eq!(svg.matches("http").count(), 1, "only the name space");
}

//! Tests the playground: the programs on its page compile, and the server accepts no requests from other sites.
//! `browser-tests` tests the page itself.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod server;

#[path = "../../playground/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod playground;

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use playground::{
    program::program,
    setup::{ALGORITHMS, DIALECTS, Outage, Setup},
};
use serde_json::json;

const PAGE: &str = include_str!("../../playground/page/index.html");

/// Compiled together with this file, without comments and blank lines.
#[allow(dead_code, reason = "they are only compiled")]
mod programs {
    include!("programs.rs");
}

/// The algorithm and the window of the first policy, the builder calls of the second policy, and the number of
/// policies; the cost, the outage, the dialect and the store.
type Choice = [&'static str; 8];

/// There are too many configurations to compile a program for each. These 11 cover each option of the page's lists, and
/// each pair of branches that [`program`] takes for two settings ([`branches`]). They were found by a random search. To
/// add an option, replace an option of the same branch that occurs twice, or add a row. A leaky-bucket meter never
/// admits a cost of 2.
///
/// `browser-tests` copies the first program and the last but one.
#[rustfmt::skip]
const CHOICES: [Choice; 11] = [
    ["token-bucket",           "10",    "1", "2", "1", "open",     "draft-11",        "memory"],
    ["token-bucket",           "1",     "2", "3", "2", "closed",   "draft-11-and-06", "redis"],
    ["token-bucket",           "1",     "3", "3", "1", "fallback", "x-unix-time",     "memory"],
    ["strict-token-bucket",    "86400", "2", "3", "2", "open",     "x-unix-time",     "memory"],
    ["fixed-window",           "86400", "1", "3", "2", "fallback", "none",            "memory"],
    ["sliding-window-counter", "10",    "1", "2", "1", "closed",   "x-seconds",       "redis"],
    ["sliding-window-log",     "10",    "3", "2", "2", "open",     "in-between",      "redis"],
    ["leaky-bucket-meter",     "10",    "2", "3", "1", "fallback", "draft-11",        "redis"],
    ["leaky-bucket-queue",     "3600",  "2", "2", "1", "fallback", "x-seconds",       "redis"],
    ["leaky-bucket-queue",     "10",    "1", "2", "1", "open",     "draft-06",        "memory"],
    ["leaky-bucket-queue",     "1",     "3", "3", "2", "closed",   "draft-11",        "memory"],
];

fn setup([algorithm, window, calls, policies, cost, outage, dialect, _]: Choice) -> Setup {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let (second, burst) = match calls {
        "1" => ("token-bucket", None),
        "2" => ("token-bucket", Some(15)),
        _ => ("strict-token-bucket", Some(15)),
    };
    let name = "all of \"them\"";
    let mut all = vec![
        json!({"name": "burst", "algorithm": algorithm, "quota": 5, "window": number(window), "max_waiting": 5}),
        json!({"name": "minute", "algorithm": second, "quota": 20, "window": 60, "burst": burst}),
        json!({"name": name, "algorithm": "fixed-window", "quota": 50_000, "window": 86_400}),
    ];
    all.truncate(number(policies) as usize);
    let setup = json!({"policies": all, "cost": number(cost), "outage": outage, "dialect": dialect});
    Setup::from_json(&setup).unwrap()
}

/// Replaces each option by the representative of its branch in [`program`].
fn branches([algorithm, window, calls, policies, cost, outage, dialect, store]: Choice) -> Choice {
    let algorithm = match algorithm {
        "token-bucket" | "leaky-bucket-queue" => algorithm,
        _ => "fixed-window",
    };
    let window = if window == "10" { window } else { "1" };
    let dialect = match dialect {
        "draft-11" => dialect,
        "x-seconds" | "x-unix-time" => "x-seconds",
        _ => "none",
    };
    [algorithm, window, calls, policies, cost, outage, dialect, store]
}

fn program_of(choice: Choice) -> String {
    program(&setup(choice), choice[7] == "redis")
}

fn all_programs() -> String {
    let mut text = String::new();
    for (number, choice) in CHOICES.into_iter().enumerate() {
        let program = program_of(choice);
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let code: String = program.split_inclusive('\n').filter(is_code).collect();
        text += &format!("mod program_{number} {{\n{code}}}\n");
    }
    text
}

#[test]
fn the_programs_that_are_compiled_are_those_that_the_page_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/playground/programs.rs");
    if env::var_os("WRITE_PROGRAMS").is_some() {
        fs::write(&path, all_programs()).unwrap();
    }
    let is_current = fs::read_to_string(&path).unwrap() == all_programs();
    assert!(is_current, "run this test with WRITE_PROGRAMS=1 and compile again");
}

#[test]
fn every_option_of_the_page_is_in_a_program_that_is_compiled() {
    for list in PAGE.split("<select ").skip(1) {
        let (name, list) = list.split_once('>').unwrap();
        let chosen = match name {
            r#"name="algorithm""# => CHOICES.map(|choice| choice[0]),
            r#"id="outage""# => CHOICES.map(|choice| choice[5]),
            r#"id="dialect""# => CHOICES.map(|choice| choice[6]),
            // The callers of the load, which programs do not contain.
            r#"id="from""# => continue,
            _ => panic!("{name} is in no program"),
        };
        let (list, _) = list.split_once("</select>").unwrap();
        for option in list.split("value=\"").skip(1) {
            let option = option.split('"').next().unwrap();
            assert!(chosen.contains(&option), "{name}: {option}");
        }
    }
}

#[test]
fn every_two_branches_of_two_settings_are_together_in_a_program() {
    let programs = CHOICES.map(branches);
    let taken = [0, 1, 2, 3, 4, 5, 6, 7].map(|setting| {
        let branches = programs.iter().map(|branches| branches[setting]);
        branches.collect::<BTreeSet<_>>()
    });
    assert_eq!(taken.each_ref().map(BTreeSet::len), [3, 2, 3, 2, 2, 3, 3, 2]);
    for (second, others) in taken.iter().enumerate() {
        for (first, ones) in taken[..second].iter().enumerate() {
            for (one, other) in ones.iter().flat_map(|one| others.iter().map(move |other| (one, other))) {
                let mut programs = programs.iter();
                let are_together = programs.any(|branches| branches[first] == *one && branches[second] == *other);
                assert!(are_together, "settings {first} and {second}: {one} and {other}");
            }
        }
    }
}

/// Line forms that depend on several settings or are common to all policies.
#[test]
fn every_form_of_a_line_is_in_a_program_that_is_compiled() {
    let programs = CHOICES.map(program_of).concat();
    for form in [
        "use std::{error::Error, net::SocketAddr};",
        "use std::{error::Error, net::SocketAddr, time::Duration};",
        "RedisStore, ResponseFields,\n",
        "RedisStore,\n    ResponseFields,\n",
        "let limits = RateLimitLayer::builder(MemoryStore::new())\n",
        "let limits = RateLimitLayer::builder(RedisStore::new(",
        "let limiter = Limiter::builder(MemoryStore::new())",
        "let limiter =\n        Limiter::builder(RedisStore::new(",
        "place can.\n    let limiter = ",
        "place can.\n        .failure_mode(",
        ")\n        .failure_mode(",
        "QuotaPolicy::new(\"burst\", 5, Duration::from_secs(10))",
        "QuotaPolicy::per_second(",
        "QuotaPolicy::per_minute(\"minute\", 20))",
        "QuotaPolicy::per_hour(",
        ".policy(QuotaPolicy::per_minute(\"minute\", 20).with_burst_capacity(15))",
        ".policy(\n            QuotaPolicy::per_day(\"all of \\\"them\\\"\", 50_000).with_algorithm(Algorithm::FixedWindow),\n",
        "Duration::from_secs(10))\n                .with_algorithm(",
        ".with_algorithm(Algorithm::StrictTokenBucket)\n                .with_burst_capacity(15),",
        "Algorithm::LeakyBucketQueue { max_waiting: 5 }",
    ] {
        assert!(programs.contains(form), "{form}");
    }
}

#[test]
fn rustfmt_leaves_the_programs_as_they_are() {
    for choice in CHOICES {
        let mut rustfmt = Command::new("rustfmt")
            .args(["--check", "--edition", "2024", "--config", "max_width=100"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = rustfmt.stdin.take().unwrap();
        input.write_all(program_of(choice).as_bytes()).unwrap();
        drop(input);
        let Output { status, stdout, .. } = rustfmt.wait_with_output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stdout));
    }
}

#[test]
fn the_page_offers_all_that_the_server_knows() {
    let script = include_str!("../../playground/page/playground.js");
    for (name, _) in ALGORITHMS {
        assert!(PAGE.contains(&format!("value=\"{name}\"")), "{name}");
        assert!(script.contains(&format!("[\"{name}\", ")), "{name}");
    }
    let others = DIALECTS.iter().map(|dialect| dialect.name);
    for name in others.chain(Outage::ALL.map(|(name, _)| name)) {
        assert!(PAGE.contains(&format!("value=\"{name}\"")), "{name}");
    }
}

#[test]
fn the_programs_need_the_version_that_the_readme_names() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let program = program(&Setup::default(), false);
    let comments = program.lines().filter_map(|line| line.strip_prefix("// "));
    let dependencies: Vec<_> = comments.filter(|line| line.contains(" = ")).collect();
    assert_eq!(dependencies.len(), 3);
    assert!(
        dependencies.iter().all(|dependency| readme.contains(dependency)),
        "{dependencies:?}"
    );
}

//! The example `playground`: its programs compile, and it answers its own page only. `browser-tests` has the page itself.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod server;

#[path = "../../playground/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod playground;

use std::{env, fs, path::Path};

use playground::{
    program::program,
    setup::{ALGORITHMS, DIALECTS, Outage, Setup},
};
use tower_quota::QuotaPolicy;

/// A program for each algorithm with each dialect. They compile with this file.
#[allow(dead_code, reason = "they are only compiled")]
mod programs {
    include!("programs.rs");
}

/// The other settings vary as well, so that each is in many programs.
fn setup(algorithm: usize, dialect: usize) -> (Setup, bool) {
    let number = algorithm * DIALECTS.len() + dialect;
    let mut setup = Setup::default();
    setup.policies[0] = setup.policies[0].clone().with_algorithm(ALGORITHMS[algorithm].1);
    if number % 5 == 4 {
        setup.policies[1] = setup.policies[1].clone().with_burst_capacity(40);
    }
    if number % 7 == 6 {
        let third = QuotaPolicy::per_day("all of \"them\"", 50_000).with_algorithm(ALGORITHMS[number % 5].1);
        setup.policies.push(third);
    }
    setup.cost = if number % 6 == 5 { 2 } else { 1 };
    setup.outage = Outage::ALL[number % 3].1;
    setup.dialect = DIALECTS[dialect];
    (setup, number % 4 == 3)
}

fn all_programs() -> String {
    let mut text = String::new();
    for (algorithm, (name, _)) in ALGORITHMS.iter().enumerate() {
        for (dialect, of) in DIALECTS.iter().enumerate() {
            let (setup, with_redis) = setup(algorithm, dialect);
            let module = format!("{name}_{}", of.name).replace('-', "_");
            text += &format!("mod {module} {{\n{}}}\n\n", program(&setup, with_redis));
        }
    }
    text
}

#[test]
fn the_programs_that_are_compiled_are_those_that_the_page_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/playground/programs.rs");
    if env::var_os("WRITE_PROGRAMS").is_some() {
        fs::write(&path, all_programs()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == all_programs(),
        "run this test with WRITE_PROGRAMS=1 and compile again"
    );
}

#[test]
fn the_page_offers_all_that_the_server_knows() {
    let page = include_str!("../../playground/page/index.html");
    let script = include_str!("../../playground/page/playground.js");
    for (name, _) in ALGORITHMS {
        assert!(
            page.contains(&format!("value=\"{name}\"")) && script.contains(&format!("[\"{name}\", ")),
            "{name}"
        );
    }
    let others = DIALECTS.iter().map(|dialect| dialect.name);
    for name in others.chain(Outage::ALL.map(|(name, _)| name)) {
        assert!(page.contains(&format!("value=\"{name}\"")), "{name}");
    }
}

#[test]
fn the_programs_need_the_version_that_the_readme_names() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let (setup, _) = setup(0, 0);
    let program = program(&setup, false);
    let dependencies = program
        .lines()
        .filter_map(|line| line.strip_prefix("// ").filter(|line| line.contains(" = ")));
    let mut count = 0;
    for dependency in dependencies {
        assert!(readme.contains(dependency), "{dependency}");
        count += 1;
    }
    assert_eq!(count, 3);
}

//! Mistakes, their events, their page and their tests name the same things.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)).unwrap()
}

/// A mistake without a section, and a section without a mistake, help no reader.
#[test]
fn the_page_has_a_section_for_each_mistake_and_a_test_makes_each() {
    let (code, page) = (read("src/mistake.rs"), read("docs/mistakes.md"));
    let (_, names) = code.split_once("\nmistakes! {\n").unwrap();
    let names: Vec<&str> = names
        .split_once("\n}")
        .unwrap()
        .0
        .split('"')
        .skip(1)
        .step_by(2)
        .collect();
    let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: Vec<&str> = sections.filter(|title| !title.starts_with("Errors")).collect();
    assert_eq!(names, sections);

    let tests = read("tests/telemetry.rs") + &read("tests/telemetry/mistakes.rs");
    for name in names {
        assert!(tests.contains(&format!("\"{name}\"")), "no test makes {name}");
    }
}

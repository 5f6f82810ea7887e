//! `docs/conformance.md` is complete, and the tests that it names exist.

use std::{fs, path::Path};

/// The groups of rows, and how many each has.
const GROUPS: [(char, usize); 14] = [
    ('A', 25),
    ('B', 16),
    ('C', 15),
    ('D', 20),
    ('E', 11),
    ('F', 19),
    ('G', 10),
    ('H', 3),
    ('I', 9),
    ('J', 32),
    ('K', 18),
    ('L', 37),
    ('M', 42),
    ('N', 23),
];

const LEVELS: [&str; 8] = [
    "MUST",
    "MUST NOT",
    "SHOULD",
    "SHOULD NOT",
    "MAY",
    "should",
    "should not",
    "sketch",
];

#[derive(Debug)]
struct Row<'a> {
    id: &'a str,
    level: &'a str,
    text: &'a str,
    status: &'a str,
    evidence: &'a str,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)).ok()
}

fn document() -> String {
    read("docs/conformance.md").unwrap()
}

/// All lines of tables but their heads. A line with a cell too many or too few is a mistake, not something to skip.
fn rows(document: &str) -> Vec<Row<'_>> {
    let lines = document.lines().filter(|line| line.starts_with('|'));
    let lines = lines.filter(|line| !line.starts_with("| id |") && !line.starts_with("|---"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [id, level, text, status, evidence] = cells[..] else {
                panic!("{line} has {} cells in place of 5", cells.len())
            };
            Row {
                id,
                level,
                text,
                status,
                evidence,
            }
        })
        .collect()
}

/// The mistake in a row, if there is one.
fn mistake(row: &Row<'_>) -> Option<String> {
    if !LEVELS.contains(&row.level) {
        return Some(format!("there is no level {:?}", row.level));
    }
    if row.text.is_empty() {
        return Some("it says nothing".to_owned());
    }
    match row.status {
        "done" => mistake_in_tests(row.evidence),
        "documentation" => mistake_in_quotation(row.evidence),
        status
            if status
                .strip_prefix("in part: ")
                .is_some_and(|missing| !missing.is_empty()) =>
        {
            mistake_in_tests(row.evidence)
        }
        status => match status.strip_prefix("not done: ").filter(|reason| !reason.is_empty()) {
            Some(_) if row.evidence.is_empty() => None,
            Some(_) => Some("it is not done and has a test".to_owned()),
            None => Some(format!("{status:?} is no status, or has no reason")),
        },
    }
}

/// Tests are written as `file::name`, with commas between them.
pub(crate) fn mistake_in_tests(evidence: &str) -> Option<String> {
    evidence.split(", ").find_map(|test| {
        let named = test.strip_prefix('`').and_then(|test| test.strip_suffix('`'));
        let Some((file, name)) = named.and_then(|test| test.split_once("::")) else {
            return Some(format!("{test:?} is not `file::name`"));
        };
        match read(file) {
            None => Some(format!("there is no file {file}")),
            Some(source) if !has_test(&source, name) => Some(format!("there is no test {name} in {file}")),
            Some(_) => None,
        }
    })
}

/// Returns `true` if a function with this name follows a test attribute, with only comments and attributes in between,
/// also in `proptest!`. A program without libtest reports by itself that the test has passed.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    let is_head = |line: &str| heads.iter().any(|head| line.starts_with(head));
    let is_above = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
    let mut found = lines.iter().enumerate().filter(|(_, line)| is_head(line));
    let passed = format!("crate::passed(\"{name}\");");
    lines.contains(&&*passed)
        || found.any(|(index, _)| {
            let above: Vec<_> = lines[..index].iter().rev().take_while(is_above).collect();
            let is_test = |line: &&&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            above.iter().any(is_test) && !above.iter().any(|line| line.starts_with("#[ignore"))
        })
}

/// Documentation is written as `file`: “words of it”.
fn mistake_in_quotation(evidence: &str) -> Option<String> {
    let quotation = evidence.strip_prefix('`').and_then(|rest| rest.split_once("`: “"));
    let Some((file, words)) = quotation.and_then(|(file, rest)| Some((file, rest.strip_suffix('”')?))) else {
        return Some(format!("{evidence:?} is not `file`: “words”"));
    };
    let source = read(file).unwrap_or_default();
    let lines = source
        .lines()
        .map(|line| line.trim().trim_start_matches(['/', '!']).trim());
    let text = lines.collect::<Vec<_>>().join(" ");
    (words.is_empty() || !text.contains(words)).then(|| format!("{file} does not say {words:?}"))
}

#[test]
fn each_row_appears_once_and_in_order() {
    let document = document();
    let ids: Vec<String> = rows(&document).iter().map(|row| row.id.to_owned()).collect();
    let expected = GROUPS.iter();
    let expected: Vec<String> = expected
        .flat_map(|(group, rows)| (1..=*rows).map(move |number| format!("{group}{number}")))
        .collect();
    assert_eq!(ids, expected);
}

#[test]
fn each_row_is_done_with_a_test_that_exists_or_says_why_it_is_not() {
    let document = document();
    let rows = rows(&document);
    let mistakes = rows
        .iter()
        .filter_map(|row| Some(format!("{}: {}", row.id, mistake(row)?)));
    let mistakes: Vec<String> = mistakes.collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn mistakes_in_the_table_are_found() {
    let row = |status, evidence| Row {
        id: "A1",
        level: "MUST",
        text: "text",
        status,
        evidence,
    };
    let this = "`tests/repository/conformance.rs::mistakes_in_the_table_are_found`";
    for (status, evidence) in [
        ("done", this),
        ("in part: for a reason", this),
        ("not done: for a reason", ""),
        (
            "documentation",
            "`tests/repository/conformance.rs`: “is complete, and the tests”",
        ),
    ] {
        assert_eq!(mistake(&row(status, evidence)), None, "{status} {evidence}");
    }
    for (status, evidence) in [
        ("done", ""),
        ("done", "none yet"),
        ("done", "`tests/conformance.rs::has_test`"),
        ("done", "`tests/repository/conformance.rs::mistakes_in`"),
        ("done", "`tests/nowhere.rs::mistakes_in_the_table_are_found`"),
        ("open", this),
        ("in part: ", this),
        ("in part: for a reason", ""),
        ("not done", ""),
        ("not done: ", ""),
        ("not done: for a reason", this),
        ("documentation", ""),
        ("documentation", "`tests/nowhere.rs`: “is complete”"),
        ("ready", this),
    ] {
        assert!(mistake(&row(status, evidence)).is_some(), "{status} {evidence}");
    }
    let ignored = "#[test]\n#[ignore = \"slow\"]\nfn slow() {}\n\n/// #[test]\nfn helper() {}\n\n#[test]\nfn fast() {}";
    assert!(has_test(ignored, "fast"));
    assert!(!has_test(ignored, "slow") && !has_test(ignored, "helper"));
}

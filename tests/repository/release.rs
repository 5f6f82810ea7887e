//! The interface may change before the first release, and the changelog names each change.

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The lines of a report of cargo-semver-checks that this changelog does not name.
fn unnamed(changelog: &str, report: &str) -> (bool, String) {
    static FILES: AtomicU64 = AtomicU64::new(0);
    // Tests run at the same time, and each has a file of its own.
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tower-quota-changelog-{}-{number}.md", process::id());
    let file = env::temp_dir().join(name);
    fs::write(&file, changelog).unwrap();
    let mut script = Command::new(Path::new(ROOT).join("scripts/unnamed-breaks"))
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    script.stdin.take().unwrap().write_all(report.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    fs::remove_file(file).unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

const REPORT: &str = "\
    Checking tower-quota v0.1.0 -> v0.1.0 (no change; assume patch)

--- failure struct_missing: pub struct removed or renamed ---

Failed in:
  struct tower_quota::Checked, previously in file /src/lib.rs:10
  method Plan::frob, previously in file /src/plan.rs:4

--- failure enum_variant_missing: pub enum variant removed or renamed ---

Failed in:
  variant Outcome::Refused, previously in file /src/outcome.rs:7
  feature tests in the package's Cargo.toml

     Summary semver requires new major version: 3 major and 0 minor checks failed
";

const CHANGELOG: &str = "\
# Changelog

## [Unreleased]

### Added

- `Plan::frob` and `Checked`.

### Changed

- `Outcome::Refused` is `Rejected`, `Checked` is `PolicySet`, the feature `tests` is `test-util`. `Plan::frobs` stays.

## [0.0.1]

### Changed

- `Plan::frob` is new.
";

#[test]
fn a_break_that_the_changelog_does_not_name_as_a_change_is_found() {
    let line = "method Plan::frob, previously in file /src/plan.rs:4\n";
    assert_eq!(unnamed(CHANGELOG, REPORT), (false, line.to_owned()));
}

#[test]
fn breaks_that_the_changelog_names_are_no_mistake() {
    let changelog = CHANGELOG.replace("`Plan::frobs` stays", "`Plan::frob` is gone");
    assert_eq!(unnamed(&changelog, REPORT), (true, String::new()));
}

#[test]
fn the_same_word_in_the_text_or_of_another_type_names_no_break() {
    let report = REPORT.replace("Plan::frob", "Plan::key");
    for text in ["the key of a plan is gone", "`Rules::key` is gone", "`key` is gone"] {
        let changelog = CHANGELOG.replace("`Plan::frobs` stays", text);
        let (is_named, lines) = unnamed(&changelog, &report);
        assert!(!is_named && lines.contains("method Plan::key"), "{text}: {lines}");
    }
    let changelog = CHANGELOG.replace("`Plan::frobs` stays", "`Plan::key` is gone");
    assert_eq!(unnamed(&changelog, &report), (true, String::new()));
}

#[test]
fn a_member_is_named_only_with_its_type_however_the_report_writes_it() {
    for member in [
        "field frob of struct tower_quota::Plan",
        "field Plan.frob",
        "field frob of variant Outcome::Plan",
        "trait method <tower_quota::Plan>::frob",
        "trait method tower_quota::Plan::frob",
    ] {
        let report = REPORT.replace("method Plan::frob", member);
        for (text, expected) in [
            ("`Plan` has other fields, and `Rules::frob` is gone", false),
            ("`Plan::frob` is gone", true),
        ] {
            let changelog = CHANGELOG.replace("`Plan::frobs` stays", text);
            let (is_named, lines) = unnamed(&changelog, &report);
            assert_eq!(
                (is_named, lines.contains(member)),
                (expected, !expected),
                "{member}, {text}: {lines}"
            );
        }
    }
}

//! Alerts are in the file that Prometheus loads, in its tests, on a runbook page, and for other packages than the core
//! in a table beside their metrics. All of these must list the same alerts. The dashboard shows every metric.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

/// The metrics of each package, and the alerts of all but the core.
const TABLES: [&str; 3] = [
    CORE,
    "crates/tower-quota-fleet/docs/fleet.md",
    "crates/tower-quota-anonymous/docs/anonymous.md",
];

const CORE: &str = "src/telemetry/mod.rs";

const RUNBOOK: &str = "https://docs.rs/tower-quota/latest/tower_quota/docs/alerts/index.html#";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)).unwrap()
}

/// An alert as one of the files has it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alert {
    /// The words of its name, joined by hyphens: the section of the runbook.
    section: String,
    expression: String,
    /// In minutes.
    lasts: u32,
}

/// The lines of all tables that begin so.
fn rows(beginning: &str) -> Vec<String> {
    let texts = TABLES.map(read).join("\n");
    let lines = texts.lines().map(|line| line.trim_start_matches("//! "));
    let rows = lines.filter_map(|line| line.strip_prefix(beginning));
    rows.map(str::to_owned).collect()
}

/// The alerts of the tables.
fn documented() -> BTreeSet<Alert> {
    let rows = rows("| [").into_iter();
    rows.map(|row| {
        // A vertical bar within a cell has a backslash before it.
        let row = row.replace("\\|", "\0");
        let [name, condition, _meaning] = row.splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let (name, link) = name.split_once("](").unwrap();
        let (page, section) = link.trim_end_matches(')').split_once('#').unwrap();
        assert!(
            page.ends_with("docs::alerts") || page.ends_with("/docs/alerts/"),
            "{link}"
        );
        let section = section.to_owned();
        assert_eq!(name.replace(' ', "-"), section);
        let [_, expression, rest] = condition.split('`').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let minutes = rest.strip_prefix(", for ").and_then(|rest| rest.strip_suffix(" min"));
        Alert {
            section,
            expression: expression.replace('\0', "|"),
            lasts: minutes.map_or(0, |minutes| minutes.parse().unwrap()),
        }
    })
    .collect()
}

/// The value of a key in a YAML file that has the key on a separate line.
fn value<'a>(block: &'a str, key: &str) -> &'a str {
    let value = block.lines().find_map(|line| line.trim().strip_prefix(key));
    value.unwrap_or_else(|| panic!("no {key} in {block}"))
}

/// `TowerQuotaLimitsLeak` is `limits-leak`.
fn section_of(alert: &str) -> String {
    let mut section = String::new();
    for letter in alert.strip_prefix("TowerQuota").unwrap().chars() {
        if letter.is_ascii_uppercase() && !section.is_empty() {
            section.push('-');
        }
        section.push(letter.to_ascii_lowercase());
    }
    section
}

/// The rules that Prometheus loads, by the names that it shows.
fn loaded() -> Vec<(String, Alert)> {
    let rules = read("ops/prometheus/alerts.yml");
    let blocks = rules.split("- alert: ").skip(1);
    blocks
        .map(|block| {
            let name = block.lines().next().unwrap();
            let section = section_of(name);
            assert_eq!(value(block, "runbook_url: "), format!("{RUNBOOK}{section}"));
            assert!(["critical", "warning", "info"].contains(&value(block, "severity: ")));
            assert!(value(block, "summary: ").ends_with(".'"), "{block}");
            let alert = Alert {
                section,
                expression: value(block, "expr: ").to_owned(),
                lasts: value(block, "for: ").strip_suffix('m').unwrap().parse().unwrap(),
            };
            (name.to_owned(), alert)
        })
        .collect()
}

#[test]
fn prometheus_loads_the_alerts_of_the_documentation() {
    let documented = documented();
    assert!(documented.len() > 5, "{documented:?}");
    let loaded: BTreeSet<_> = loaded().into_iter().map(|(_, alert)| alert).collect();
    assert!(documented.is_subset(&loaded), "{documented:?}");
    let core = read(CORE);
    for alert in loaded.difference(&documented) {
        let words = alert
            .expression
            .split(|character: char| !character.is_ascii_lowercase() && character != '_');
        let metrics = words.filter(|word| word.starts_with("tower_quota_"));
        for metric in metrics.map(|name| name.trim_end_matches("_bucket")) {
            assert!(core.contains(&format!("| `{metric}` |")), "no table has {alert:?}");
        }
    }
}

#[test]
fn the_page_has_a_section_for_each_alert() {
    let page = read("docs/alerts.md");
    let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: Vec<_> = sections.map(|title| title.to_lowercase().replace(' ', "-")).collect();
    let alerts: Vec<_> = loaded().into_iter().map(|(_, alert)| alert.section).collect();
    assert_eq!(sections, alerts);
}

/// The operators' page links its alerts to these sections.
#[test]
fn the_operators_page_links_to_sections_that_exist() {
    let sections: BTreeSet<_> = loaded().into_iter().map(|(_, alert)| alert.section).collect();
    let scripts = ["fleet", "operators"].map(|name| read(&format!("apps/platform/page/{name}.js")));
    let scripts = scripts.join("\n");
    let links: Vec<_> = scripts.split("runbook(\"").skip(1).collect();
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        let (section, _) = link.split_once('"').unwrap();
        assert!(sections.contains(section), "{section}");
    }
}

/// `make ops-test` has promtool run them.
#[test]
fn each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_is_silent() {
    let tests = read("ops/prometheus/alerts_test.yml");
    let expectations: Vec<_> = tests.split("- alertname: ").skip(1).collect();
    for (name, _) in loaded() {
        let of_alert = || expectations.iter().filter(|test| test.lines().next() == Some(&name));
        let silent = of_alert().filter(|test| test.contains("exp_alerts: []")).count();
        assert!(silent >= 1, "{name}");
        assert!(of_alert().count() > silent, "{name}");
    }
}

/// The panels and rows of the dashboard that Grafana loads. A row that is collapsed contains its panels.
fn rows_and_panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read("ops/grafana.json")).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// The panels, also those of collapsed rows.
fn panels() -> Vec<Value> {
    let inside = |panel: Value| match panel["panels"].as_array() {
        Some(panels) => panels.clone(),
        None => vec![panel],
    };
    rows_and_panels().into_iter().flat_map(inside).collect()
}

#[test]
fn what_only_other_packages_report_is_in_rows_that_are_collapsed() {
    let of_packages = ["tower_quota_rules_", "tower_quota_tokens_", "tower_quota_credentials_"];
    for panel in rows_and_panels() {
        let shown = panel["targets"].to_string();
        assert!(
            !of_packages.iter().any(|metric| shown.contains(metric)),
            "{}",
            panel["title"]
        );
        for hidden in panel["panels"].as_array().into_iter().flatten() {
            let queries = hidden["targets"].to_string();
            assert_eq!(panel["collapsed"], true, "{}", panel["title"]);
            assert!(
                of_packages.iter().any(|metric| queries.contains(metric)),
                "{}",
                hidden["title"]
            );
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let panels = panels();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let expressions = expressions.join("\n");
    let mut count = 0;
    for metric in rows("| `tower_quota_") {
        let metric = format!("tower_quota_{}", metric.split('`').next().unwrap());
        assert!(expressions.contains(&metric), "no panel shows {metric}");
        count += 1;
    }
    assert!(count > 25, "{count}");
}

#[test]
fn every_panel_has_a_title_a_unit_an_explanation_and_the_data_source_of_the_reader() {
    for panel in panels() {
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
        assert!(["reqps", "ops", "percentunit", "s", "short"].contains(&unit), "{panel}");
        for text in ["title", "description"] {
            assert!(!panel[text].as_str().unwrap().is_empty(), "{panel}");
        }
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
}

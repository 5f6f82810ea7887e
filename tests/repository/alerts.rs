//! Alerts are in the file that Prometheus loads, in its tests and on a runbook page, which must list the same alerts.
//! The tables of the packages have their metrics, and the dashboard shows every metric.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

/// The metrics of each package.
const TABLES: [&str; 3] = [
    "src/telemetry/mod.rs",
    "crates/tower-quota-fleet/docs/fleet.md",
    "crates/tower-quota-anonymous/docs/anonymous.md",
];

const RUNBOOK: &str = "https://docs.rs/tower-quota/latest/tower_quota/docs/alerts/index.html#";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)).unwrap()
}

/// The metrics of all tables.
fn documented() -> BTreeSet<String> {
    let texts = TABLES.map(read).join("\n");
    let lines = texts.lines().map(|line| line.trim_start_matches("//! "));
    let metrics = lines.filter_map(|line| line.strip_prefix("| `tower_quota_")?.split('`').next());
    metrics.map(|name| format!("tower_quota_{name}")).collect()
}

/// A rule that Prometheus loads.
#[derive(Debug)]
struct Alert {
    name: String,
    /// The words of the name, joined by hyphens: the section of the runbook.
    section: String,
    expression: String,
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

fn loaded() -> Vec<Alert> {
    let rules = read("ops/prometheus/alerts.yml");
    let blocks = rules.split("- alert: ").skip(1);
    blocks
        .map(|block| {
            let name = block.lines().next().unwrap();
            let section = section_of(name);
            assert_eq!(value(block, "runbook_url: "), format!("{RUNBOOK}{section}"));
            assert!(["critical", "warning", "info"].contains(&value(block, "severity: ")));
            assert!(value(block, "summary: ").ends_with(".'"), "{block}");
            Alert {
                name: name.to_owned(),
                section,
                expression: value(block, "expr: ").to_owned(),
            }
        })
        .collect()
}

#[test]
fn every_alert_is_on_documented_metrics() {
    let documented = documented();
    for alert in loaded() {
        let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
        let words = alert.expression.split(|character| !is_part(character));
        let metrics = words.filter(|word| word.starts_with("tower_quota_"));
        let metrics: Vec<_> = metrics.map(|name| name.trim_end_matches("_bucket")).collect();
        assert!(!metrics.is_empty(), "{alert:?}");
        for metric in metrics {
            assert!(documented.contains(metric), "no table has {metric}: {alert:?}");
        }
    }
}

#[test]
fn the_page_has_a_section_for_each_alert() {
    let page = read("docs/alerts.md");
    let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: Vec<_> = sections.map(|title| title.to_lowercase().replace(' ', "-")).collect();
    let alerts: Vec<_> = loaded().into_iter().map(|alert| alert.section).collect();
    assert_eq!(sections, alerts);
}

/// The operators' page links its alerts to these sections.
#[test]
fn the_operators_page_links_to_sections_that_exist() {
    let sections: BTreeSet<_> = loaded().into_iter().map(|alert| alert.section).collect();
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
    for Alert { name, .. } in loaded() {
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
    let documented = documented();
    assert!(documented.len() > 25, "{documented:?}");
    for metric in documented {
        assert!(expressions.contains(&metric), "no panel shows {metric}");
    }
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
